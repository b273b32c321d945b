"""A session of reading: lines are scored as they arrive, an adaptive reader learns from them, and it can be resumed later."""

import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backstory.config import TextConfig
from backstory.config.options import SAVE_EVERY, LoadOptions
from backstory.data import Vocabulary
from backstory.data.corpora.text_files import decoded, stream_lines
from backstory.data.tokenizers.built_in import END
from backstory.data.tokenizers.pieces import Pieces
from backstory.data.tokenizers.vocabulary import classify
from backstory.evaluation.opening import Readers, open_reader
from backstory.evaluation.reading_loop import ScoredBlock, StreamReading
from backstory.evaluation.session_state import SessionState, saved_session, session_state
from backstory.models.devices import restored_threads
from backstory.readers.base import Reader
from backstory.readers.reading_threads import LONG, SOON, TOKENS, choose_threads, set_threads
from backstory.readers.saved_reading import (
    open_saved,
    reader_identity,
    save_reading,
)
from backstory.storage.lock import locked
from backstory.storage.run_files import check_outside_runs
from backstory.utils.arguments import checked
from backstory.utils.errors import NoDisk, UserError, refused
from backstory.utils.scores import UnknownShare, perplexity

LONGEST_PARTIAL_LINE = 50_000
"""Tokens of a line that is read in part up to which a session is saved within it."""
ENOUGH_WORDS = 1000
"""Different words outside the vocabulary that are enough to classify the cause."""


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
    """Tokens that are `<unk>` in the session up to the end of this line."""
    unknown: int = 0
    """Tokens that are `<unk>`."""

    @property
    def perplexity(self) -> float:
        """Perplexity per token; 1 of a line without any."""
        return perplexity(sum(self.nats) / max(1, len(self.nats)))

    @property
    def running_perplexity(self) -> float:
        return perplexity(self.all_nats / max(1, self.all_tokens))


class Session:
    """A reader over a text of unknown length."""

    def __init__(
        self,
        reader: Reader,
        vocabulary: Vocabulary,
        state: SessionState,
        on_line: Callable[[Line], None],
        cuts: tuple[int, int | None] = (1, None),
    ) -> None:
        """`on_line` is called with every line once all of it is scored; `on_block` may be set, to be called after every block.

        `cuts` are `minimum_count` and `maximum_size` of the vocabulary.
        """
        self.reader, self.vocabulary, self.state, self.cuts = reader, vocabulary, state, cuts
        self.on_line = on_line
        self.on_block: Callable[[], None] = lambda: None
        self._pending: list[int] = []
        """Tokens that have arrived and are not read."""
        self._lines: deque[Line] = deque()
        """Lines that have begun to arrive and are not reported."""
        self._arrived = state.lines
        self._reported = state.tokens, state.nats, state.unknown
        """Totals of the lines that were reported."""
        self._lost: deque[int] = deque()
        """Positions of pending tokens that are outside the vocabulary."""
        self._words: Counter[str] = Counter()
        self._threads_at = SOON
        """Tokens after which the number of threads is chosen, if it is not yet."""

    @restored_threads()
    def read(self, descriptor: int, name: str = "standard input", stopped: Callable[[], bool] = lambda: False) -> None:
        """Read an open file until it ends or `stopped` returns True.

        Blocks have the reader's length, and are shorter only if no more text has arrived. Raises NonFiniteError, and UserError
        for bytes that are not text, after the text before them is read.
        """
        blocks = stream_lines(descriptor, self._catch_up, stopped)
        as_is = self.vocabulary.tokenizer.unit == "byte"
        if self.state.threads is not None:
            set_threads(self.state.threads)
        try:
            lines, first = self._counted(decoded(blocks, name, as_is)), self._arrived
            for ids, lost in _encoded(self.vocabulary, lines, self._in_paragraph()):
                if self._arrived == first:  # the end of a paragraph, and no line came
                    break
                known = self._known(ids.tolist())
                position = self.state.tokens + len(self._pending) - known
                self._lost.extend(position + index for index in lost if index >= known)
                if len(self._words) < ENOUGH_WORDS:
                    self._words.update(lost.values())
                self._take(ids.tolist()[known:], stopped)
        except UserError:
            self._catch_up()
            raise
        del self._pending[self.reader.block :]  # there is more only if a line of many blocks was stopped
        self._catch_up()
        if not self._lines:
            self.state.lines = self._arrived

    def partial_line(self) -> Line | None:
        """Return the line that is read in part, if any."""
        return next((line for line in self._lines if 0 < len(line.nats) < len(line.ids)), None)

    def unknown_share(self) -> UnknownShare:
        """Return the share of `<unk>` in what was read."""
        unknown = None if self.vocabulary.unknown is None else self.state.unknown
        lost = None if unknown is None else self.state.lost
        cause = classify(self._words, self.vocabulary).cause if lost else None
        return UnknownShare(self.state.tokens, unknown, lost, cause)

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
        end, state = self.vocabulary.index.get(END), self.state
        return state.tokens > 0 and (state.begun_ids[0] == end if state.begun_ids else state.last != end)

    def _known(self, ids: list[int]) -> int:
        """Return how many of these tokens were read before the session was saved, and give their scores to the line."""
        read, nats = self.state.begun_ids, self.state.begun_nats
        if not read or not ids:
            return 0
        self.state.begun_ids, self.state.begun_nats = [], []
        if ids[: len(read)] != read:
            warnings.warn(
                f"line {self.state.lines + 1} was read in part when the session was saved, and other text comes now; "
                "what was read of it stays read",
                stacklevel=2,
            )
            return 0
        self._lines[-1].ids += read
        self._lines[-1].nats += nats
        return len(read)

    def _take(self, ids: list[int], stopped: Callable[[], bool]) -> None:
        if not self._lines:  # the end of a last line that was reported before its end arrived
            self._lines.append(Line(self._arrived))
        self._lines[-1].ids += ids
        self._pending += ids
        while len(self._pending) >= self.reader.block and not stopped():
            self._read(self.reader.block)

    def _catch_up(self) -> None:
        """Read the tokens that have arrived and report their lines."""
        if self._pending:
            self._read(len(self._pending))
        self._report(len(self._lines))

    def _choose_threads(self) -> None:
        """Choose the number of threads as soon as more text is likely to come; of a slow model, after more text."""
        if self.state.threads is None and self.state.tokens >= self._threads_at:
            if choose_threads(self.reader, np.resize(self._pending, TOKENS), tokens=self.state.tokens):
                self.state.threads = torch.get_num_threads()
            self._threads_at = LONG

    def _read(self, tokens: int) -> None:
        self._choose_threads()
        ids, self._pending = np.array(self._pending[:tokens], np.int64), self._pending[tokens:]
        stream = StreamReading(self.reader, ids, self.state.last, reset=False)
        for block in stream.remaining():
            self._share_out(stream.score(block))
            stream.observe(block)
        self.state.last = int(ids[-1])
        while self._lost and self._lost[0] < self.state.tokens:
            self._lost.popleft()
            self.state.lost = None if self.state.lost is None else self.state.lost + 1
        self._report(len(self._lines) - 1)
        self.on_block()

    def _share_out(self, block: ScoredBlock) -> None:
        """Share the scores of a block among its lines."""
        scores, state = iter((-block.log_prob[0].double()).tolist()), self.state
        for line in self._lines:
            first = len(line.nats)
            new = list(islice(scores, len(line.ids) - first))
            if not new:
                continue
            line.nats += new
            for nats in new:  # one by one, so that the sum does not depend on where blocks end
                state.nats += nats
            if self.vocabulary.unknown is not None:
                unknown = line.ids[first : len(line.nats)].count(self.vocabulary.unknown)
                line.unknown += unknown
                state.unknown += unknown
            state.tokens += len(new)
            line.all_tokens, line.all_nats, line.all_unknown = state.tokens, state.nats, state.unknown
            if len(line.nats) == len(line.ids):
                # A session that is saved here resumes after this line, whatever has arrived.
                state.lines = line.number

    def _report(self, ended: int) -> None:
        """Report the first `ended` lines, as far as they are scored."""
        for _ in range(ended):
            if len(self._lines[0].nats) < len(self._lines[0].ids):
                return
            line = self._lines.popleft()
            if not line.ids:
                line.all_tokens, line.all_nats, line.all_unknown = self._reported
            self._reported = line.all_tokens, line.all_nats, line.all_unknown
            self.on_line(line)


def _encoded(
    vocabulary: Vocabulary, lines: Iterable[str], in_paragraph: bool
) -> Iterator[tuple[np.ndarray, dict[int, str]]]:
    """Yield the ids of lines as they arrive, with the tokens outside the vocabulary by their index (`encode_marked`).

    The split into pieces may depend on all that follows, so each line is split into pieces by itself.
    """
    word = next(filter(str.isalpha, vocabulary.words), None)
    if in_paragraph and word is not None and vocabulary.tokenizer.unit == "word":
        encoded = vocabulary.encode_marked(chain([f"{word}\n"], lines))  # the word stands for what was read before
        next(encoded)
        return encoded
    if isinstance(vocabulary.tokenizer, Pieces):
        return (marked for line in lines for marked in vocabulary.encode_marked([line]))
    return vocabulary.encode_marked(lines)


@checked(save_every=0)
@contextmanager
def session(
    run: Path | str,
    folder: Path | None = None,
    *,
    on_line: Callable[[Line], None],
    reader: Readers | None = None,
    precision: str = "float32",
    resume: bool = False,
    save_every: float = SAVE_EVERY,
    **loading: Any,
) -> Iterator[Session]:
    """Open a session over a run, saved in a folder, if one is given, every `save_every` seconds (0: never) and at the end.

    `on_line` is called with every line once it is scored. With `resume` the session continues from what is saved there, with
    the reader it was saved with. It is also saved if the block ends by a UserError or a BrokenPipeError. `loading` are the
    fields of LoadOptions, such as `device`. Raises UserError, also for a folder that holds a session without `resume`, or none
    with it.
    """
    if folder is None and resume:
        raise UserError("--resume needs a saved session; say which with --session")
    how = precision, LoadOptions.of(**loading)
    if folder is not None:
        check_outside_runs(folder)
    with nullcontext() if folder is None else locked(folder, "reading", "--session"):
        saved = None if folder is None else saved_session(folder, resume)
        if saved is None:
            loaded, opened_reader, layers = open_reader(run, reader or "static", *how)
            opened_reader.start(1)
            state = SessionState(loaded.vocabulary.start)
        else:
            loaded, opened_reader, layers = open_saved(run, saved, reader, *how)
            state = session_state(saved, loaded.vocabulary)
        text = TextConfig() if loaded.config is None else loaded.config.text
        opened = Session(opened_reader, loaded.vocabulary, state, on_line, (text.minimum_count, text.maximum_size))
        if folder is None:
            yield opened
            return
        saver = SessionSaver(opened, folder, reader_identity(loaded, layers, opened_reader), save_every)
        opened.on_block = saver.save_if_due
        with saver.explained_full_disk():
            try:
                yield opened
            except (UserError, BrokenPipeError):
                # What was read is whole: a later part is not text, or nobody reads the output.
                saver.save()
                raise
            saver.save()


class SessionSaver:
    """Saves a session in its folder."""

    def __init__(self, session: Session, folder: Path, identity: Mapping[str, Any], save_every: float) -> None:
        self.session, self.folder, self.identity, self.save_every = session, folder, identity, save_every
        self._saved_tokens, self._saved_at = session.state.tokens, time.monotonic()
        self._saved_lines: int | None = None
        """Whole lines at the last save, if there was one."""

    def save_if_due(self) -> None:
        """Save the session if the last save was `save_every` seconds ago, except within a very long line."""
        if not self.save_every or time.monotonic() - self._saved_at < self.save_every:
            return
        partial = self.session.partial_line()
        if partial is None or len(partial.nats) <= LONGEST_PARTIAL_LINE:
            self.save()

    def save(self) -> None:
        """Save the session if anything was read since; a very long line that is read in part counts as read."""
        state, partial = self.session.state, self.session.partial_line()
        if state.tokens <= self._saved_tokens:
            return
        if partial is not None and len(partial.nats) <= LONGEST_PARTIAL_LINE:
            state = replace(state, begun_ids=partial.ids[: len(partial.nats)], begun_nats=partial.nats)
        elif partial is not None:
            state = replace(state, lines=partial.number)
        save_reading(self.folder, state.tokens, self.session.reader, self.identity, asdict(state))
        self._saved_tokens, self._saved_at = state.tokens, time.monotonic()
        self._saved_lines = state.lines

    @contextmanager
    def explained_full_disk(self) -> Iterator[None]:
        """Raise NoDisk that says from which line to go on, if a disk is full after the session was saved."""
        try:
            yield
        except OSError as error:
            if self._saved_lines is None:
                raise
            remedy = f"go on with --resume from line {self._saved_lines + 1:,} on; the lines before are saved"
            refusal = refused(error, again=remedy)
            if not isinstance(refusal, NoDisk):
                raise
            raise refusal from None
