"""Text to explain: the words of a passage, the run with its text, and the readers that are compared on it."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from backstory.config.explanation_options import ExplanationOptions
from backstory.data import Boundaries, Vocabulary, word_parts
from backstory.data.tokenizers.built_in import END
from backstory.data.tokenizers.pieces import Pieces
from backstory.evaluation.opening import EvalSetup, open_evaluation, open_reader
from backstory.readers import Reader
from backstory.readers.registry import READERS, ConfiguredLayer, names_readers
from backstory.results.explanation_record import ExplanationFigures
from backstory.results.passage import Layer, Word
from backstory.runs.run import Run, is_elsewhere
from backstory.storage.atomic import within
from backstory.storage.provenance import check_place
from backstory.utils.errors import UserError, nearest
from backstory.utils.small_file import resolved

MARK = "¶"
"""Sign for the token at the end of a line or paragraph."""
BLANK = "␣"
"""Sign for a word or a token of white space alone."""
LONGEST = 32
"""Characters of a word made of smaller tokens at most: not every script puts spaces between words."""
DIGITS = 8
"""Hexadecimal digits in a folder's name that distinguish texts and runs of the same name."""
SHORT = 40
"""Maximum length of the text's or run's name there."""


@dataclass(frozen=True)
class OpenedReader:
    """A reader with its run, under its name in results."""

    name: str
    run: Run
    reader: Reader
    layers: tuple[ConfiguredLayer, ...]


@dataclass(frozen=True)
class ExplainedText:
    """An open run with the text to explain, a split or a user's own text."""

    run: Path | Run
    """The run, or its name."""
    setup: EvalSetup
    options: ExplanationOptions

    @staticmethod
    def open(
        run: Path | str | Run, reader: str, options: ExplanationOptions, text: Path | BinaryIO | None
    ) -> "ExplainedText":
        """Open a run with a split (else test) or a user's own text that reaches to token `at`. Raises UserError."""
        if text is not None and options.split is not None:
            raise UserError("--text and --split exclude each other; give one of them")
        setup = open_evaluation(run, options, reader=reader, split=options.split or "test", text=text)
        source = ExplainedText(run if isinstance(run, Run) else Path(run), setup, options)
        if options.at >= len(setup.split.ids):
            raise UserError(
                f"--at {options.at} is beyond the {source.name} text, which has {len(setup.split.ids):,} tokens"
            )
        return source

    def open_other(self, against: str) -> OpenedReader:
        """Open another reader of the same run, or the same reader of another run.

        Raises UserError unless they can be compared. A user's own text is not read again: it may be a pipe, and its ids are
        those of the vocabulary that both runs have.
        """
        setup, reading, name = self.setup, self.setup.options, other_name(against)
        if names_readers(against):
            return OpenedReader(name, *open_reader(self.run, against, reading.precision, reading.load_options()))
        folder = Path(against)
        if not folder.is_dir() and not is_elsewhere(against):
            raise UserError(
                f"'{against}' is neither a reader{nearest(against, READERS)} nor a run folder; "
                f"`backstory ls readers` lists the readers"
            )
        theirs = None
        if self.own_text:
            run, other, layers = open_reader(folder, reading.reader, reading.precision, reading.load_options())
        else:
            theirs = open_evaluation(folder, reading, allow_unknown=True)
            run, other, layers = theirs.run, theirs.reader, theirs.layers
        if run.vocabulary.words != setup.dataset.vocabulary.words:
            raise UserError(
                f"{folder} has another vocabulary than {setup.run.name}, so their surprisals do not compare; "
                "evaluate both, and compare their bits per byte"
            )
        if theirs and not np.array_equal(theirs.split.ids, setup.split.ids):
            raise UserError(
                f"{folder} reads another text as its {setup.split.name} split than {setup.run.name}; give --text"
            )
        return OpenedReader(name, run, other, layers)

    def destination(self, folder: str, kind: str) -> Path | None:
        """Return the folder of a result of this kind: `--out`, or else a folder in the run.

        None for an external model without `--out`. Raises UserError if it cannot be written.
        """
        results = self.setup.run.results
        path = self.options.out or (None if results is None else within(results, folder))
        if path is not None:
            check_place(path, kind)
        return path

    @property
    def own_text(self) -> bool:
        """True for a user's own text, in place of a split."""
        return self.setup.options.text is not None

    @property
    def name(self) -> str:
        """Name of the text in results."""
        return self.setup.dataset.corpus if self.own_text else self.setup.split.name

    @property
    def title(self) -> str:
        """Name of the text for a person: `stdlib (test)`."""
        return self.name if self.own_text else f"{self.setup.dataset.corpus} ({self.name})"

    def title_from(self, at: int) -> str:
        """Return the title of a passage: `stdlib (test), from word 5,000`."""
        return f"{self.title}, from {self.setup.dataset.vocabulary.tokenizer.unit} {at:,}" if at else self.title

    @property
    def folder_part(self) -> str:
        """Name of the text in folders: a split, or a user's own text with some digits of its fingerprint."""
        dataset = self.setup.dataset
        return f"{dataset.corpus[:SHORT]}-{dataset.fingerprint[:DIGITS]}" if self.own_text else self.name


def first_token_read(options: ExplanationOptions) -> int:
    """Return where reading starts: `context` tokens before the passage, or else at the start of the text."""
    return 0 if options.context is None else max(0, options.at - options.context)


def other_name(against: str) -> str:
    """Return the name in results of a reader, or of another run (its folder's name)."""
    return against if names_readers(against) else resolved(against).name


def other_folder_part(against: str) -> str:
    """Return the part of a result folder's name for a reader or another run; it distinguishes runs of the same name."""
    if names_readers(against):
        return against
    folder = resolved(against)
    return f"{folder.name[:SHORT]}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:DIGITS]}"


# --- passages ---


@dataclass(frozen=True)
class Span:
    """Word of a text: tokens from `start` up to `end`."""

    word: Word
    start: int
    end: int


@dataclass(frozen=True)
class PassageTask:
    """Input of an explanation: a reader, the tokens to read, and the words among them that are shown."""

    reader: Reader
    vocabulary: Vocabulary
    ids: np.ndarray
    """(N,) tokens of the context and of the passage after it."""
    start: int
    """Position in `ids` at which the passage begins."""
    spans: Sequence[Span]
    """Words of the passage; their positions count from `start`."""
    top: int
    """The most candidates of a word."""
    against: Reader | None = None
    """Another reader over the same vocabulary."""
    against_name: str = ""
    chosen: int | None = None
    """Number of the word that is shown first; None leaves it to the explanation."""
    boundaries: Boundaries | None = None
    """Tokens that begin words; None where a word is a token, or its score the plain sum over its tokens."""

    @property
    def starts(self) -> np.ndarray:
        """Return the first token of each word of the passage (words,)."""
        return np.array([span.start for span in self.spans])

    @property
    def tokens(self) -> int:
        """Number of tokens of the passage."""
        return len(self.ids) - self.start

    @cached_property
    def uncertain(self) -> np.ndarray:
        """Return where a word's score depends on the probability that a word begins (tokens + 1,), bool."""
        if self.boundaries is None:
            return np.zeros(self.tokens + 1, bool)
        return self.boundaries.uncertain(np.asarray(self.ids), self.start + self.starts)[self.start :]


@dataclass(frozen=True)
class Explanation:
    """Figures of an explanation, layers of its passage, and a note on them."""

    figures: dict[str, Any]
    """The fields of `ExplanationFigures` that are measured."""
    layers: tuple[Layer, ...]
    note: str = ""
    words: tuple[Word, ...] = ()
    """Words that the layers describe, if words before the passage are shown too."""
    chosen: int | None = None
    """Number of the word that is shown first."""
    record: type[ExplanationFigures] = ExplanationFigures
    """Record of the kind of explanation."""


def text_of(vocabulary: Vocabulary, token: int) -> str:
    """Return the text that a token stands for: a line break for `<eos>`, ` the` for the piece `Ġthe`."""
    text, tokenizer = vocabulary.words[token], vocabulary.tokenizer
    if text == END:
        return "\n"
    return tokenizer.shown(text) if isinstance(tokenizer, Pieces) else text


def shown(vocabulary: Vocabulary, token: int) -> str:
    """Return a token as it is shown: line ends, white space in a piece, and white space alone are visible signs."""
    text = text_of(vocabulary, token)
    if text == "\n":
        return MARK
    if isinstance(vocabulary.tokenizer, Pieces):
        return text.replace("\n", MARK).replace(" ", BLANK)
    return BLANK if text.isspace() else text


def words_of(vocabulary: Vocabulary, ids: np.ndarray, most: int) -> list[Span]:
    """Return the first `most` words of the ids (N,): a token each, or, of smaller units, a word as `word_parts` numbers them.

    Every token belongs to a word, and the words follow each other without a gap.
    """
    spans = _tokens(vocabulary, ids[:most]) if vocabulary.tokenizer.unit == "word" else _folded(vocabulary, ids)
    return list(islice(spans, most))


def led_by(vocabulary: Vocabulary, before: np.ndarray, first: int, passage: Sequence[Span]) -> list[Span]:
    """Return the words of the ids (N,) `before` a passage, and then those of the passage; its first id is `first`.

    Positions count from the start of the passage, so they are negative before it.
    """
    lead = [
        Span(span.word, span.start - len(before), span.end - len(before))
        for span in words_of(vocabulary, before, len(before))
    ]
    if not lead:
        return list(passage)
    if vocabulary.tokenizer.unit != "word":
        if lead[-1].word.text != BLANK:
            return [*lead, *passage]
        # This white space was cut off from the word after it.
        cut, word = lead.pop().word.before, passage[0].word
        return [*lead, replace(passage[0], word=Word(word.text, cut + word.before)), *passage[1:]]
    # Word tokens hold no white space: the white space before the passage's first word depends on the word before it.
    _, span = _tokens(vocabulary, np.array([before[-1], first]))
    return [*lead, replace(passage[0], word=span.word), *passage[1:]]


def _tokens(vocabulary: Vocabulary, ids: np.ndarray) -> Iterator[Span]:
    tokens = vocabulary.tokens(ids)
    text, end = vocabulary.tokenizer.join(tokens), 0
    for i, token in enumerate(tokens):
        if token == END:  # in the text it is white space, which comes before the next word
            yield Span(Word(MARK), i, i + 1)
            continue
        start = text.index(token, end)
        yield Span(Word(token, text[end:start]), i, i + 1)
        end = start + len(token)


def _folded(vocabulary: Vocabulary, ids: np.ndarray) -> Iterator[Span]:
    text, start, end, last = "", 0, 0, None
    for piece, tokens, number in word_parts(vocabulary, ids.tolist()):
        # `word_parts` counts a line end as a word; here it is white space before the next word.
        word = len(text.strip())
        if word and (number != last or word >= LONGEST):
            yield Span(_word(text), start, end)
            text, start = "", end
        text, end, last = text + piece, end + tokens, number
    if end:
        yield Span(_word(text), start, end)


def _word(text: str) -> Word:
    """Return a word without the white space around it; for white space alone, a sign."""
    inside = text.strip()
    return Word(inside or BLANK, text[: len(text) - len(text.lstrip())])
