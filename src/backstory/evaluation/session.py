"""A session that keeps reading: lines are scored as they arrive, a reader that adapts learns from them, and it can go on
another day from where it stands."""

import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from backstory.config import TextConfig, UserError
from backstory.config import scores as measures
from backstory.config.arguments import checked
from backstory.config.options import SAVE_EVERY
from backstory.config.scores import UnknownShare
from backstory.data import Vocabulary
from backstory.data.corpora.text_files import decoded, stream_lines
from backstory.data.tokenizers.built_in import END
from backstory.data.tokenizers.pieces import Pieces
from backstory.data.tokenizers.vocabulary import classify
from backstory.evaluation.opening import Readers, open_reader
from backstory.evaluation.reading_checkpoint import Saved, load, open_saved, reader_identity, save, sweep
from backstory.evaluation.reading_loop import ScoredBlock, StreamReading
from backstory.readers.base import Reader
from backstory.storage.atomic import TEMPORARY
from backstory.storage.documents import has_fields
from backstory.storage.lock import LOCK, locked

MOST_BEGUN = 50_000
"""Tokens of a line that is read in part up to which a session is saved within it."""
MOST_WORDS = 1000
"""About so many different words outside the vocabulary tell why they are."""


@dataclass
class SessionState:
    """Progress of a session: whole lines, and the part of the next line that is read already."""

    last: int
    """The last token that was read."""
    lines: int = 0
    tokens: int = 0
    unknown: int = 0
    """Tokens that are `<unk>`."""
    nats: float = 0.0
    """Sum over the tokens."""
    lost: int | None = 0
    """Tokens outside the vocabulary; None if they were not counted from the beginning."""
    begun_ids: list[int] = field(default_factory=list)
    """Tokens of the next line that are read already, as blocks end within lines; they are not read again."""
    begun_nats: list[float] = field(default_factory=list)


@dataclass
class Line:
    """A line that was read."""

    number: int
    """Counted from 1, over the whole session."""
    ids: list[int] = field(default_factory=list)
    nats: list[float] = field(default_factory=list)
    """The surprisal of each token."""
    all_tokens: int = 0
    all_nats: float = 0.0
    all_unknown: int = 0
    """Of the session up to the end of this line."""
    unknown: int = 0
    """Tokens that are `<unk>`."""

    @property
    def perplexity(self) -> float:
        return perplexity(sum(self.nats), len(self.nats))

    @property
    def running_perplexity(self) -> float:
        return perplexity(self.all_nats, self.all_tokens)


Told = Callable[[Line], None]


class Session:
    """A reader over a text whose end is not known."""

    def __init__(
        self,
        reader: Reader,
        vocabulary: Vocabulary,
        at: SessionState,
        told: Told,
        passed: Callable[[], None],
        cuts: tuple[int, int | None] = (1, None),
    ) -> None:
        """`told` is given every line once all of it is scored; `passed` is called after every block.

        `cuts` are `minimum_count` and `maximum_size` of the vocabulary.
        """
        self.cuts = cuts
        self.reader, self.vocabulary, self.at = reader, vocabulary, at
        self._told, self._passed = told, passed
        self._waiting: list[int] = []
        self._lines: deque[Line] = deque()
        self._arrived = at.lines
        self._so_far = at.tokens, at.nats, at.unknown
        """Of the lines that were told."""
        self._lost: deque[int] = deque()
        self._words: Counter[str] = Counter()

    def read(self, descriptor: int, name: str = "standard input", stopped: Callable[[], bool] = lambda: False) -> None:
        """Read an open file until it ends or `stopped` returns True.

        Blocks are as long as the reader takes them, shorter only where nothing more has come. Raises UserError for what is no
        text, once what came before it is read, and NonFiniteError.
        """
        blocks = stream_lines(descriptor, self._catch_up, stopped)
        as_is = self.vocabulary.tokenizer.unit == "byte"
        try:
            lines, before_any = self._counted(decoded(blocks, name, as_is)), self._arrived
            for ids, lost in _encoded(self.vocabulary, lines, self._in_paragraph()):
                if self._arrived == before_any:  # the end of a paragraph that nothing came of
                    break
                known = self._known(ids.tolist())
                before = self.at.tokens + len(self._waiting) - known
                self._lost.extend(before + place for place in lost if place >= known)
                if len(self._words) < MOST_WORDS:
                    self._words.update(lost.values())
                self._take(ids.tolist()[known:], stopped)
        except UserError:
            self._catch_up()
            raise
        del self._waiting[self.reader.block :]  # there is more only where one line of many blocks was stopped
        self._catch_up()
        if not self._lines:
            self.at.lines = self._arrived

    def begun(self) -> Line | None:
        """Return the line that is read in part, if any."""
        return next((line for line in self._lines if 0 < len(line.nats) < len(line.ids)), None)

    def unknown_share(self) -> UnknownShare:
        """Return how much of what was read is `<unk>`."""
        unknown = None if self.vocabulary.unknown is None else self.at.unknown
        lost = None if unknown is None else self.at.lost
        cause = classify(self._words, self.vocabulary).cause if lost else None
        return UnknownShare(self.at.tokens, unknown, lost, cause)

    def _counted(self, lines: Iterator[str]) -> Iterator[str]:
        ended = True
        for line in lines:
            if ended:
                self._arrived += 1
                self._lines.append(Line(self._arrived))
            ended = line.endswith("\n")
            yield line

    def _in_paragraph(self) -> bool:
        """Return True if the next line continues a paragraph, which a blank line would end."""
        end, at = self.vocabulary.index.get(END), self.at
        return at.tokens > 0 and (at.begun_ids[0] == end if at.begun_ids else at.last != end)

    def _known(self, ids: list[int]) -> int:
        """Return how many of these tokens were read before the session was saved, and give their scores to the line."""
        again, nats = self.at.begun_ids, self.at.begun_nats
        if not again or not ids:
            return 0
        self.at.begun_ids, self.at.begun_nats = [], []
        if ids[: len(again)] != again:
            warnings.warn(
                f"line {self.at.lines + 1} was read in part when the session was saved, and other text comes now; "
                "what was read of it stays read",
                stacklevel=2,
            )
            return 0
        self._lines[-1].ids += again
        self._lines[-1].nats += nats
        return len(again)

    def _take(self, ids: list[int], stopped: Callable[[], bool]) -> None:
        if not self._lines:  # the end of a last line that was told before it was known to have one
            self._lines.append(Line(self._arrived))
        self._lines[-1].ids += ids
        self._waiting += ids
        while len(self._waiting) >= self.reader.block and not stopped():
            self._read(self.reader.block)

    def _catch_up(self) -> None:
        """Read the tokens that have arrived and report their lines."""
        if self._waiting:
            self._read(len(self._waiting))
        self._tell(len(self._lines))

    def _read(self, tokens: int) -> None:
        ids, self._waiting = np.array(self._waiting[:tokens], np.int64), self._waiting[tokens:]
        stream = StreamReading(self.reader, ids, self.at.last, reset=False)
        for block in stream.remaining():
            self._share_out(stream.score(block))
            stream.observe(block)
        self.at.last = int(ids[-1])
        while self._lost and self._lost[0] < self.at.tokens:
            self._lost.popleft()
            self.at.lost = None if self.at.lost is None else self.at.lost + 1
        self._tell(len(self._lines) - 1)
        self._passed()

    def _share_out(self, block: ScoredBlock) -> None:
        """Share the scores of a block among its lines."""
        scores, place, at = (-block.log_prob[0].double()).tolist(), 0, self.at
        for line in self._lines:
            first = len(line.nats)
            new = scores[place : place + len(line.ids) - first]
            if not new:
                continue
            place += len(new)
            line.nats += new
            for nats in new:  # one by one, so that the sum does not depend on where blocks end
                at.nats += nats
            ids, unknown = line.ids[first : len(line.nats)], self.vocabulary.unknown
            unknown = 0 if unknown is None else ids.count(unknown)
            line.unknown, at.unknown, at.tokens = line.unknown + unknown, at.unknown + unknown, at.tokens + len(new)
            line.all_tokens, line.all_nats, line.all_unknown = at.tokens, at.nats, at.unknown
            if len(line.nats) == len(line.ids):  # a session that is saved here goes on after it, whatever has arrived
                at.lines = line.number

    def _tell(self, ended: int) -> None:
        """Report the first `ended` lines, as far as they are scored."""
        for _ in range(ended):
            if len(self._lines[0].nats) < len(self._lines[0].ids):
                return
            line = self._lines.popleft()
            if not line.ids:
                line.all_tokens, line.all_nats, line.all_unknown = self._so_far
            self._so_far = line.all_tokens, line.all_nats, line.all_unknown
            self._told(line)


def _encoded(
    vocabulary: Vocabulary, lines: Iterable[str], in_paragraph: bool
) -> Iterator[tuple[np.ndarray, dict[int, str]]]:
    """Yield the ids of lines as they arrive, with the tokens outside the vocabulary by their place (`encode_marked`).

    How pieces are cut may depend on all that follows, so a line of them is cut by itself.
    """
    word = next(filter(str.isalpha, vocabulary.words), None)
    if in_paragraph and word is not None and vocabulary.tokenizer.unit == "word":
        encoded = vocabulary.encode_marked(chain([f"{word}\n"], lines))  # the word stands for what was read before
        next(encoded)
        return encoded
    if isinstance(vocabulary.tokenizer, Pieces):
        return (marked for line in lines for marked in vocabulary.encode_marked([line]))
    return vocabulary.encode_marked(lines)


def perplexity(nats: float, tokens: int) -> float:
    """Return exp of the mean; 1 if there is no token."""
    return measures.perplexity(nats / tokens) if tokens else 1.0


@checked(save_every=0)
@contextmanager
def session(
    run: Path | str,
    folder: Path | None = None,
    *,
    told: Told,
    reader: Readers | None = None,
    precision: str = "float32",
    device: str = "auto",
    resume: bool = False,
    save_every: float = SAVE_EVERY,
) -> Iterator[Session]:
    """Open a session over a run, saved in a folder, if one is given, every `save_every` seconds (0: never) and at the end.

    With `resume` it goes on from what is saved there, with the reader it was saved with. It is saved also where the block ends
    by a UserError or a BrokenPipeError. Raises UserError: also for a folder that holds a session, or holds none, against what
    `resume` says.
    """
    if folder is None and resume:
        raise UserError("--resume goes on with a session that was saved; say which with --session")
    with nullcontext() if folder is None else locked(folder, "reading", "--session"):
        saved = None if folder is None else _found(folder, resume)
        if saved is None:
            loaded, made, layers = open_reader(run, reader or "static", precision, device)
            made.start(1)
            at = SessionState(loaded.vocabulary.start)
        else:
            loaded, made, layers = open_saved(run, saved, reader, precision, device)
            at = session_state(saved, loaded.vocabulary)
        by = reader_identity(loaded, layers, made) if folder is not None else {}
        kept, kept_at = at.tokens, time.monotonic()

        def keep(ends: bool = True) -> None:
            nonlocal kept, kept_at
            if folder is None or at.tokens <= kept:
                return
            now, begun = at, opened.begun()
            if begun is not None and len(begun.nats) <= MOST_BEGUN:
                now = replace(at, begun_ids=begun.ids[: len(begun.nats)], begun_nats=begun.nats)
            elif begun is not None and not ends:
                return  # later, at its end
            elif begun is not None:
                now = replace(at, lines=begun.number)
            save(folder, at.tokens, made, by, asdict(now))
            kept, kept_at = at.tokens, time.monotonic()

        def passed() -> None:
            if save_every and time.monotonic() - kept_at >= save_every:
                keep(ends=False)

        made_of = TextConfig() if loaded.config is None else loaded.config.text
        cuts = made_of.minimum_count, made_of.maximum_size
        opened = Session(made, loaded.vocabulary, at, told, passed, cuts)
        try:
            yield opened
        except (
            UserError,
            BrokenPipeError,
        ):  # what was read is whole: the text goes wrong later, or nobody listens any more
            keep()
            raise
        keep()


def _found(folder: Path, resume: bool) -> Saved | None:
    """Return the session in the folder. Raises UserError if there is one without `resume`, or none with it."""
    sweep(folder)
    saved = load(folder)
    if saved is None and resume:
        raise UserError(f"{folder} holds no session to resume; leave --resume out to begin one")
    if saved is not None and not resume:
        raise UserError(f"{folder} holds a session; use --resume to go on with it, or another --session")
    if saved is None and any(p.name != LOCK and not p.name.startswith(TEMPORARY) for p in folder.iterdir()):
        raise UserError(f"{folder} holds something other than a session; choose another folder with --session")
    return saved


def session_state(saved: Saved, vocabulary: Vocabulary) -> SessionState:
    """Return the state of a saved session. Raises UserError if it is no session of this vocabulary."""
    at: dict[str, Any] = {"lost": None, "begun_ids": [], "begun_nats": [], **saved.at}
    if not has_fields(at, get_type_hints(SessionState)):
        raise UserError(f"{saved.path} is no saved session; choose another folder with --session")
    found = SessionState(**at)
    counts = [found.last, found.lines, found.tokens, found.unknown, found.nats, found.lost or 0, *found.begun_ids]
    ids, nats = [found.last, *found.begun_ids], found.begun_nats
    if min(counts) < 0 or max(ids) >= len(vocabulary) or not len(nats) == len(ids) - 1 <= found.tokens:
        raise UserError(f"{saved.path} is damaged: it stands nowhere; remove it and start again")
    return found
