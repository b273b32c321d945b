"""A session that keeps reading: lines are scored as they arrive, a reader that adapts learns from them, and it can go on
another day from where it stands."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import get_type_hints

import numpy as np
from torch import Tensor

from backstory.config import UserError, measures
from backstory.models import Prediction
from backstory.reading.opening import Readers, open_reader
from backstory.reading.reader import Reader
from backstory.reading.resuming import SAVE_EVERY
from backstory.reading.saved import Saved, load, open_saved, read_by, save, sweep
from backstory.reading.stream import Block, read
from backstory.storage.atomic import TEMPORARY
from backstory.storage.documents import has_fields
from backstory.storage.lock import LOCK, locked
from backstory.text import Vocabulary
from backstory.text.arriving import arriving
from backstory.text.files import decoded
from backstory.text.pieces import Pieces


@dataclass
class Standing:
    """How far a session has come."""

    last: int
    """The token read last: what comes next is predicted after it."""
    lines: int = 0
    tokens: int = 0
    unknown: int = 0
    """How many of the tokens are `<unk>`."""
    nats: float = 0.0
    """Sum over the tokens."""


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
    """Of the session up to the end of this line."""

    @property
    def perplexity(self) -> float:
        return perplexity(sum(self.nats), len(self.nats))

    @property
    def running_perplexity(self) -> float:
        return perplexity(self.all_nats, self.all_tokens)


Told = Callable[[Line], None]


class Session:
    """A reader over a text that has no end yet."""

    def __init__(
        self, reader: Reader, vocabulary: Vocabulary, at: Standing, told: Told, passed: Callable[[], None]
    ) -> None:
        """`told` is given every line once all of it is scored; `passed` is called after every block."""
        self.reader, self.vocabulary, self.at = reader, vocabulary, at
        self._told, self._passed = told, passed
        self._waiting: list[int] = []
        self._lines: deque[Line] = deque()
        self._arrived = at.lines
        self._tokens, self._nats = at.tokens, at.nats  # of the lines that were told

    def read(self, descriptor: int, name: str = "standard input", stopped: Callable[[], bool] = lambda: False) -> None:
        """Read what comes from an open file until it ends or `stopped` says so.

        Blocks are as long as the reader takes them, shorter only where nothing more has come. Raises UserError for what is no
        text, once what came before it is read, and NonFiniteError.
        """
        blocks = arriving(descriptor, self._catch_up, stopped)
        as_is = self.vocabulary.tokenizer.unit == "byte"
        try:
            for ids in _encoded(self.vocabulary, self._counted(decoded(blocks, name, as_is))):
                self._take(ids.tolist(), stopped)
        except UserError:
            self._catch_up()
            raise
        del self._waiting[self.reader.block :]  # there is more only where one line of many blocks was stopped
        self._catch_up()
        if not self._lines:
            self.at.lines = self._arrived

    def _counted(self, lines: Iterator[str]) -> Iterator[str]:
        ended = True
        for line in lines:
            if ended:
                self._arrived += 1
                self._lines.append(Line(self._arrived))
            ended = line.endswith("\n")
            yield line

    def _take(self, ids: list[int], stopped: Callable[[], bool]) -> None:
        if not self._lines:  # the end of a last line that was told before it was known to have one
            self._lines.append(Line(self._arrived))
        self._lines[-1].ids += ids
        self._waiting += ids
        while len(self._waiting) >= self.reader.block and not stopped():
            self._read(self.reader.block)

    def _catch_up(self) -> None:
        """Read what has come, and tell of it."""
        if self._waiting:
            self._read(len(self._waiting))
        self._tell(len(self._lines))

    def _read(self, tokens: int) -> None:
        ids, self._waiting = np.array(self._waiting[:tokens], np.int64), self._waiting[tokens:]
        total = read(self.reader, ids, self.at.last, each=self._each, fresh=False)
        self.at.nats += total.nats * total.tokens
        self.at.tokens, self.at.last = self.at.tokens + tokens, int(ids[-1])
        self.at.unknown += int((ids == self.vocabulary.unknown).sum()) if self.vocabulary.unknown is not None else 0
        self._tell(len(self._lines) - 1)
        self._passed()

    def _each(self, block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        """Share the scores of a block among the lines that they are of."""
        scores, place = (-log_prob[0].double()).tolist(), 0
        for line in self._lines:
            wanted = min(len(line.ids) - len(line.nats), len(scores) - place)
            line.nats += scores[place : place + wanted]
            place += wanted
            if wanted:  # a session that is saved here goes on after this line, whatever has arrived already
                self.at.lines = line.number

    def _tell(self, ended: int) -> None:
        """Tell of lines that are scored, of the first so many."""
        for _ in range(ended):
            if len(self._lines[0].nats) < len(self._lines[0].ids):
                return
            line = self._lines.popleft()
            self._tokens, self._nats = self._tokens + len(line.nats), self._nats + sum(line.nats)
            line.all_tokens, line.all_nats = self._tokens, self._nats
            self._told(line)


def _encoded(vocabulary: Vocabulary, lines: Iterable[str]) -> Iterator[np.ndarray]:
    """The ids of lines as they come. How pieces are cut may depend on all that follows, so a line of them is cut by itself."""
    if isinstance(vocabulary.tokenizer, Pieces):
        return (vocabulary.encode(line) for line in lines)
    return vocabulary.encode_stream(lines)


def perplexity(nats: float, tokens: int) -> float:
    """exp of the mean; 1 where there is no token."""
    return measures.perplexity(nats / tokens) if tokens else 1.0


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
    """A session over a run, saved in a folder, if there is one, every `save_every` seconds (0: never) and at the end.

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
            at = Standing(loaded.vocabulary.start)
        else:
            loaded, made, layers = open_saved(run, saved, reader, precision, device)
            at = standing(saved, loaded.vocabulary)
        by = read_by(loaded, layers, made) if folder is not None else {}
        kept, kept_at = at.tokens, time.monotonic()

        def keep() -> None:
            nonlocal kept, kept_at
            if folder is not None and at.tokens > kept:
                save(folder, at.tokens, made, by, asdict(at))
                kept, kept_at = at.tokens, time.monotonic()

        def passed() -> None:
            if save_every and time.monotonic() - kept_at >= save_every:
                keep()

        opened = Session(made, loaded.vocabulary, at, told, passed)
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
    """What is saved in the folder. Raises UserError where that is not as expected."""
    sweep(folder)
    saved = load(folder)
    if saved is None and resume:
        raise UserError(f"{folder} holds no session to resume; leave --resume out to begin one")
    if saved is not None and not resume:
        raise UserError(f"{folder} holds a session; use --resume to go on with it, or another --session")
    if saved is None and any(p.name != LOCK and not p.name.startswith(TEMPORARY) for p in folder.iterdir()):
        raise UserError(f"{folder} holds something other than a session; choose another folder with --session")
    return saved


def standing(saved: Saved, vocabulary: Vocabulary) -> Standing:
    """Where a saved session stands. Raises UserError where that is no session of this vocabulary."""
    at = saved.at
    if not has_fields(at, get_type_hints(Standing)):
        raise UserError(f"{saved.path} is no saved session; choose another folder with --session")
    if not 0 <= at["last"] < len(vocabulary) or min(at.values()) < 0:
        raise UserError(f"{saved.path} is damaged: it stands nowhere; remove it and start again")
    return Standing(**at)
