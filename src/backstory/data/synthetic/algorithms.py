"""Algorithmic tasks as synthetic corpora (Graves, Wayne and Danihelka 2014, section 4), whose answers are known.

A document is a line of tokens. A symbol is a vector of bits, written as such (`01101001`); the answer is in brackets:
- `copy`: `<bos>` s1 .. sn `<answer>` [s1 .. sn] `<eos>`
- `repeat-copy`: `<bos>` s1 .. sn `x3` [s1 .. sn s1 .. sn s1 .. sn `<eos>`], as often as the number says
- `associative-recall`: `<bos>` `<item>` a b c `<item>` d e f .. `<query>` a b c `<answer>` [d e f] `<eos>`: the item after that
- `priority-sort`: `<bos>` `p17` s1 `p3` s2 .. `<answer>` [s1 s2 ..] `<eos>`: the symbols of the highest priorities, highest
  first, and of equal ones the one that came first
Symbols, numbers and lengths are uniformly random.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from backstory.config.schema import AlgorithmConfig
from backstory.config.strict import validate
from backstory.data.synthetic.recall import LARGEST
from backstory.data.tokenizers.built_in import BEGIN, END
from backstory.utils.errors import UserError

FORMAT = 1
"""Version of the rules that make documents."""
AT_ONCE = 1000
"""Documents that are made at once."""
ANSWER, ITEM, QUERY = "<answer>", "<item>", "<query>"
ITEM_SIZE = 3
"""Symbols of an item."""
_END, _BEGIN = range(2)


@dataclass(frozen=True)
class Task:
    """A task: its description and its defaults."""

    description: str
    marks: tuple[str, ...]
    bits: int = 8
    shortest: int = 1
    longest: int = 20


TASKS: dict[str, Task] = {
    "copy": Task("synthetic sequences of random 8-bit symbols to copy; always available", (ANSWER,)),
    "repeat-copy": Task("synthetic sequences to copy a given number of times; always available", (), longest=10),
    "associative-recall": Task(
        "synthetic lists of items: given one, tell the next; always available",
        (ANSWER, ITEM, QUERY),
        6,
        2,
        6,
    ),
    "priority-sort": Task(
        "synthetic symbols to sort by their priorities; always available", (ANSWER,), shortest=20, longest=20
    ),
}
"""Tasks by name."""
OWN = {"repeats": "repeat-copy", "levels": "priority-sort", "sorted_share": "priority-sort"}
"""Settings that only one task has."""


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers in a text of such documents."""

    task: str
    mask: np.ndarray
    """(tokens,) bool: True for tokens that are part of an answer."""
    document: np.ndarray
    """(tokens,) int32: the document of each token."""
    lengths: np.ndarray
    """(documents,) int32: symbols of each sequence, items of each list."""
    bits: int
    symbols: int
    """Id of the symbol whose bits are all 0; the others follow as binary numbers."""


@dataclass(frozen=True)
class Algorithm:
    """Generator of the documents of a task. Raises UserError for settings that exclude each other."""

    name: str
    settings: AlgorithmConfig
    only: tuple[int, ...] = ()
    """Lengths of the documents in turn, instead of those of the settings; empty for random lengths."""

    def __post_init__(self) -> None:
        s = self.settings
        validate(s, "settings", "text.algorithm")
        least = 2 if self.name == "associative-recall" else 1
        for length in (self.shortest, *self.only):
            if length < least:
                what = "items" if least == 2 else "symbols"
                raise UserError(f"{self.name} needs lengths of {least} or more {what}, not {length}; give longer ones")
        if self.longest < self.shortest:
            raise UserError(
                f"text.algorithm.longest is {self.longest}, and text.algorithm.shortest {self.shortest}; lower the second"
            )
        if self.name == "associative-recall" and max(self.longest, *self.only, 0) > 2 ** (ITEM_SIZE * self.bits):
            raise UserError(
                f"there are not {max(self.longest, *self.only, 0):,} different items of {self.bits} bits; "
                "raise text.algorithm.bits"
            )
        if not self.only and max(self.size("train"), self.size("test")) > LARGEST:
            raise UserError(
                f"{self.name} could hold more than {LARGEST:,} tokens; lower text.algorithm.documents or .longest"
            )

    def of_lengths(self, split: str, lengths: tuple[int, ...]) -> "Algorithm":
        """Return a generator of documents of these lengths in turn, for one split. Raises UserError if they are too long."""
        generator = replace(self, only=lengths)
        if generator.size(split) > LARGEST:
            raise UserError(
                f"the {split} split of {self.name} could hold more than {LARGEST:,} tokens at these lengths; give shorter "
                "--lengths"
            )
        return generator

    @property
    def bits(self) -> int:
        """Return the number of bits of a symbol."""
        return self.settings.bits or TASKS[self.name].bits

    @property
    def shortest(self) -> int:
        """Return the smallest length of a sequence or list."""
        return self.settings.shortest or min(
            TASKS[self.name].shortest, self.settings.longest or TASKS[self.name].shortest
        )

    @property
    def longest(self) -> int:
        """Return the largest length of a sequence or list."""
        return self.settings.longest or max(TASKS[self.name].longest, self.shortest)

    @property
    def provenance(self) -> str:
        """Return a sentence that says where the text comes from."""
        lengths = f"{self.shortest} to {self.longest}" if self.shortest < self.longest else str(self.shortest)
        if self.only:
            lengths = " and ".join(map(str, self.only))
        what = f"items of {ITEM_SIZE} symbols" if self.name == "associative-recall" else "symbols"
        renewed = ", other documents to train on in every epoch" if self.settings.new_each_epoch else ""
        return f"synthetic documents of {self.name}: {lengths} {what} of {self.bits} bits, seed {self.settings.seed}{renewed}"

    def words(self) -> list[str]:
        """Return all words, by id."""
        s, symbols = self.settings, (f"{i:0{self.bits}b}" for i in range(2**self.bits))
        return [END, BEGIN, *TASKS[self.name].marks, *(self._letter + str(i) for i in self._numbers(s)), *symbols]

    def documents(self, split: str) -> int:
        """Return the number of documents of a split: with chosen lengths as many of each, and at least one."""
        count = self.settings.documents if split == "train" else self.settings.held_out
        return count if not self.only else len(self.only) * math.ceil(count / len(self.only))

    def size(self, split: str) -> int:
        """Return the largest number of tokens that a split may have."""
        return self.documents(split) * self._most()

    def starts(self, ids: np.ndarray) -> np.ndarray:
        """Return where documents begin in a text (tokens,)."""
        return np.flatnonzero(ids == _BEGIN)

    # Making documents.

    def draw(self, split: str, epoch: int = 1) -> Iterator[np.ndarray]:
        """Yield the ids (int32) of a split's documents, some documents at a time; every epoch has its own."""
        rng, count = self._random(split, epoch), self.documents(split)
        for first in range(0, count, AT_ONCE):
            yield np.concatenate([self._document(i, rng) for i in range(first, min(count, first + AT_ONCE))])

    def epoch(self, number: int, tokens: int) -> np.ndarray:
        """Return the ids (tokens,) of an epoch; the last document may be cut off."""
        documents: list[np.ndarray] = []
        rng, left = self._random("train", number), tokens
        while left > 0:
            documents.append(self._document(len(documents), rng)[:left])
            left -= len(documents[-1])
        return np.concatenate([np.empty(0, np.int32), *documents])

    def _random(self, split: str, epoch: int) -> np.random.Generator:
        number = ("train", "valid", "test").index(split) + 1
        return np.random.default_rng([self.settings.seed, number, epoch, *self.only])

    def _document(self, number: int, rng: np.random.Generator) -> np.ndarray:
        length = self.only[number % len(self.only)] if self.only else int(rng.integers(self.shortest, self.longest + 1))
        symbols = self._symbols + rng.integers(2**self.bits, size=length)
        answer = self._mark(ANSWER)
        if self.name == "copy":
            parts = [symbols, [answer], symbols]
        elif self.name == "repeat-copy":
            times = int(rng.integers(self.settings.repeats))
            parts = [symbols, [self._first_number + times], *[symbols] * (times + 1)]
        elif self.name == "associative-recall":
            codes = rng.choice(2 ** (ITEM_SIZE * self.bits), length, replace=False)
            shifts = self.bits * np.arange(ITEM_SIZE - 1, -1, -1)
            items = self._symbols + (codes[:, None] >> shifts) % 2**self.bits
            query = int(rng.integers(length - 1))
            listed = np.column_stack([np.full(length, self._mark(ITEM)), items]).ravel()
            parts = [listed, [self._mark(QUERY)], items[query], [answer], items[query + 1]]
        else:
            levels = rng.integers(self.settings.levels, size=length)
            highest = np.argsort(-levels, kind="stable")[: self._answer_size(length)]
            parts = [np.column_stack([self._first_number + levels, symbols]).ravel(), [answer], symbols[highest]]
        return np.concatenate([[_BEGIN], *parts, [_END]]).astype(np.int32)

    def _answer_size(self, length: int) -> int:
        """Return how many symbols of a list are to be sorted."""
        return max(1, math.ceil(self.settings.sorted_share * length - 1e-9))

    def _most(self) -> int:
        """Return the largest number of tokens of a document."""
        n = max(self.only, default=self.longest)
        inside = {
            "copy": 2 * n,
            "repeat-copy": n * (1 + self.settings.repeats),
            "associative-recall": (ITEM_SIZE + 1) * (n + 1) + ITEM_SIZE,
            "priority-sort": 2 * n + self._answer_size(n),
        }
        return inside[self.name] + 3

    # Ids: the end, the beginning, the marks, the numbers, the symbols.

    @property
    def _letter(self) -> str:
        return "x" if self.name == "repeat-copy" else "p"

    def _numbers(self, settings: AlgorithmConfig) -> range:
        if self.name == "repeat-copy":
            return range(1, settings.repeats + 1)
        return range(settings.levels if self.name == "priority-sort" else 0)

    def _mark(self, mark: str) -> int:
        marks = TASKS[self.name].marks
        return 2 + marks.index(mark) if mark in marks else -1

    @property
    def _first_number(self) -> int:
        return 2 + len(TASKS[self.name].marks)

    @property
    def _symbols(self) -> int:
        return self._first_number + len(self._numbers(self.settings))

    # Answers.

    def answer_mask(self, ids: np.ndarray) -> np.ndarray:
        """Return which tokens of a text (tokens,) that begins with a document are part of an answer, bool."""
        start, mark = self._since(ids == _BEGIN), self._since(self._answers_follow(ids))
        mark = np.concatenate([[-1], mark[:-1]])  # the mark itself is no answer
        return (mark > start) & ((ids != _END) | (self.name == "repeat-copy"))

    def answers(self, ids: np.ndarray) -> Answers:
        """Return the answers in a text (tokens,) of whole documents."""
        begin, mark = self.starts(ids), np.flatnonzero(self._answers_follow(ids))
        document = np.cumsum(ids == _BEGIN, dtype=np.int32) - 1
        lengths = mark - begin - 1
        if self.name == "associative-recall":
            lengths = lengths // (ITEM_SIZE + 1) - 1
        elif self.name == "priority-sort":
            lengths = lengths // 2
        return Answers(self.name, self.answer_mask(ids), document, lengths.astype(np.int32), self.bits, self._symbols)

    def _answers_follow(self, ids: np.ndarray) -> np.ndarray:
        """Return which tokens are the mark before an answer, bool."""
        if self.name == "repeat-copy":
            return (ids >= self._first_number) & (ids < self._symbols)
        return ids == self._mark(ANSWER)

    @staticmethod
    def _since(mask: np.ndarray) -> np.ndarray:
        """Return the last position up to each (tokens,) where the mask is True; -1 before the first."""
        return np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))
