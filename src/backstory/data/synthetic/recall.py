"""The corpus `recall`: synthetic documents in which things come back much later, with the exact cost of every token.

A document has a hidden cast of C of E entities, and values for N names. Up to its `<eos>` it is a stream of events:
- with probability m, a mention of one of the cast, uniformly. To a reader who has seen K of them it is a new one with
  probability (C - K) / C, uniform over the E - K others, and an old one with K / C, uniform over the K;
- with probability f, a fact about one of the names, uniformly: first NAME `is` VALUE, with one of V values, and every later
  time NAME `?` VALUE;
- otherwise a filler word that depends on the filler word before it, by a first-order chain that all documents share.
So -log p(token | all before) has a closed form. All documents have the same length, and their ends cost nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from backstory.config.schema import RecallConfig, TextConfig
from backstory.config.strict import validate
from backstory.data.tokenizers.built_in import END, UNKNOWN
from backstory.utils.errors import UserError, off

FORMAT = 1
"""Version of the rules that make documents."""
KINDS = ("document end", "filler word", "new entity", "old entity", "name", "is or ?", "stated value", "queried value")
"""Kinds of tokens."""
BRANCHES, LIKELY = 8, 0.95
"""Number of likely successors of a filler word, and the probability that they share."""
BLOCK = 1 << 20
"""Tokens made at once, about; part of the definition, since it orders the random numbers."""
LARGEST = 1 << 30
"""Largest number of tokens of a split; more are refused."""

_END, _FILLER, _NEW, _OLD, _NAME, _MARK, _STATED, _QUERIED = range(len(KINDS))
_IS, _ASKS, _WORDS = 2, 3, 4
"""Ids: `<eos>` is 0, `<unk>` 1; then the marks of facts, and from here on the words, entities, names and values."""


def check_text(config: TextConfig) -> None:
    """Raise UserError for settings that would cut a synthetic text into other tokens."""
    cuts = {
        off("text.lowercase"): config.lowercase,
        "text.minimum_count to 1": config.minimum_count > 1,
        "text.maximum_size to null": config.maximum_size is not None,
    }
    if cut := next((setting for setting, made in cuts.items() if made), None):
        raise UserError(f"the vocabulary of the corpus {config.corpus} is fixed; set {cut}")
    if config.tokenizer not in ("auto", "words"):
        raise UserError(f"the corpus {config.corpus} is made of words; set text.tokenizer to auto")


@dataclass(frozen=True, eq=False)
class Truth:
    """Exact cost of every token of a text whose source is known."""

    kinds: tuple[str, ...]
    """Kinds of tokens."""
    kind: np.ndarray
    """(tokens,) uint8: index into `kinds` of each token."""
    exact: np.ndarray
    """(tokens,) float64: -log p(token | all before it), in nats; its mean is the entropy, a lower bound for every reader."""
    distance: np.ndarray
    """(tokens,) int32: tokens since the thing that comes back was last seen; 0 for tokens that do not come back."""
    forgotten: dict[str, float]
    """Nats above `exact` by kind, for a reader that knows the statistics but remembers nothing of a document."""


@dataclass(frozen=True)
class Recall:
    """Generator of documents and of their exact costs. Raises UserError for settings that exclude each other."""

    settings: RecallConfig

    def __post_init__(self) -> None:
        s = self.settings
        validate(s, "settings", "text.recall")
        if s.cast > s.entities:
            raise UserError(
                f"a cast of {s.cast:,} cannot be drawn from {s.entities:,} entities; lower text.recall.cast or raise "
                "text.recall.entities"
            )
        if 1 - s.mentions - s.facts <= 0:
            raise UserError(
                f"text.recall.mentions {s.mentions:g} and text.recall.facts {s.facts:g} leave no room for filler words; "
                "lower one, so that their sum is below 1"
            )
        if max(s.documents, s.held_out) * s.length > LARGEST:
            raise UserError(f"recall would hold more than {LARGEST:,} tokens; lower text.recall.documents or .length")

    @property
    def provenance(self) -> str:
        """Return a sentence that says where the text comes from."""
        s = self.settings
        facts = f", {s.facts:g} facts" if s.facts else ""
        renewed = ", other documents to train on in every epoch" if s.new_each_epoch else ""
        return (
            f"synthetic documents of {s.length:,} tokens: {s.cast:,} of {s.entities:,} entities each, {s.mentions:g} mentions"
            f"{facts} a token, seed {s.seed}{renewed}"
        )

    def words(self) -> list[str]:
        """Return all words, by id; `<unk>` never occurs."""
        s = self.settings
        groups = (("w", s.words), ("e", s.entities), ("n", s.names), ("v", s.values))
        return [END, UNKNOWN, "is", "?", *(f"{letter}{i}" for letter, count in groups for i in range(count))]

    def documents(self, split: str) -> int:
        """Return the number of documents of a split."""
        return self.settings.documents if split == "train" else self.settings.held_out

    def size(self, split: str) -> int:
        """Return the number of tokens of a split."""
        return self.documents(split) * self.settings.length

    def starts(self, ids: np.ndarray) -> np.ndarray:
        """Return where documents begin in a text (tokens,)."""
        return np.arange(0, len(ids), self.settings.length)

    @cached_property
    def chain(self) -> np.ndarray:
        """Return the probability of a filler word (column) after another (row), (words, words)."""
        s, rng = self.settings, np.random.default_rng(self.settings.seed)
        table, branches = np.full((s.words, s.words), (1 - LIKELY) / s.words), min(BRANCHES, s.words)
        for row in table:
            row[rng.choice(s.words, branches, replace=False)] += LIKELY * rng.dirichlet(np.ones(branches))
        return table / table.sum(1, keepdims=True)

    @property
    def _starts(self) -> tuple[int, int, int]:
        """Return the ids of the first entity, name and value."""
        s = self.settings
        return _WORDS + s.words, _WORDS + s.words + s.entities, _WORDS + s.words + s.entities + s.names

    # Making documents.

    def draw(self, split: str, epoch: int = 1) -> Iterator[np.ndarray]:
        """Yield the ids (int32) of a split's documents, some documents at a time; every epoch has its own."""
        rng = np.random.default_rng([self.settings.seed, ("train", "valid", "test").index(split) + 1, epoch])
        count, length = self.documents(split), self.settings.length
        at_once = max(1, BLOCK // length)
        for first in range(0, count, at_once):
            yield self._draw(min(at_once, count - first), rng).ravel()

    def epoch(self, number: int, tokens: int) -> np.ndarray:
        """Return the ids (tokens,) of an epoch, of as many documents as the split has."""
        return np.concatenate([*self.draw("train", number)])

    def _draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return documents (count, length)."""
        s, room = self.settings, self.settings.length - 1
        event = rng.random((count, room))
        mention, fact = event < s.mentions, (event >= s.mentions) & (event < s.mentions + s.facts)
        filler = ~(mention | fact)
        first = np.where(fact, 3, 1)  # the position of each event's first token, which may be beyond the end
        first = np.cumsum(first, 1) - first
        out = np.zeros((count, room + 2), np.int32)
        rows = np.arange(count)[:, None]

        cast = np.stack([rng.choice(s.entities, s.cast, replace=False) for _ in range(count)])
        # Uniform over the cast: which one a new one is was decided with the cast.
        tokens = self._starts[0] + cast[rows, rng.integers(s.cast, size=(count, room))]
        fillers = self._fillers(count, int(filler.sum(1).max()), rng)
        tokens[filler] = (_WORDS + fillers)[np.arange(fillers.shape[1]) < filler.sum(1)[:, None]]
        np.put_along_axis(out, np.minimum(first, room), tokens, 1)
        document, number = np.nonzero(fact & (first < room))
        self._put_facts(out, document, first[document, number], rng)
        out[:, room:] = 0
        return out[:, : room + 1]

    def _put_facts(self, out: np.ndarray, document: np.ndarray, start: np.ndarray, rng: np.random.Generator) -> None:
        """Write facts into documents (count, length), in the order of their documents and start positions (facts,)."""
        s, (_, first_name, first_value) = self.settings, self._starts
        name, values = rng.integers(s.names, size=len(start)), rng.integers(s.values, size=(len(out), s.names))
        is_first = np.zeros(len(start), bool)
        is_first[np.unique(document * s.names + name, return_index=True)[1]] = True
        out[document, start] = first_name + name
        out[document, start + 1] = np.where(is_first, _IS, _ASKS)
        out[document, start + 2] = first_value + values[document, name]

    def _fillers(self, count: int, most: int, rng: np.random.Generator) -> np.ndarray:
        """Return walks (count, most) along the chain, each from its first word."""
        words = self.settings.words
        sums = np.cumsum(self.chain, 1)
        # One sorted list for all rows: row i from i to i + 1.
        ladder = (sums / sums[:, -1:] + np.arange(words)[:, None]).ravel()
        out, at = np.empty((most, count), np.int32), np.zeros(count, np.int64)
        for step, uniform in enumerate(rng.random((most, count))):
            at = np.minimum(np.searchsorted(ladder, at + uniform, "right") - at * words, words - 1)
            out[step] = at
        return out.T

    # Exact costs.

    def truth(self, ids: np.ndarray) -> Truth:
        """Return the exact cost of every token of whole documents, given by their ids (tokens,)."""
        s, ids = self.settings, ids.astype(np.int64)
        document = np.arange(len(ids)) // s.length
        entities, names, values = self._starts
        kind = np.searchsorted([0, _IS, _WORDS, entities, names, values], ids, "right") - 1
        kind = np.array([_END, _MARK, _FILLER, _NEW, _NAME, _STATED], np.uint8)[kind]
        exact, distance = np.zeros(len(ids)), np.zeros(len(ids), np.int32)

        at = np.flatnonzero(kind == _FILLER)
        words = ids[at] - _WORDS
        before = np.where(np.diff(document[at], prepend=-1) > 0, 0, np.roll(words, 1))
        exact[at] = -np.log((1 - s.mentions - s.facts) * self.chain[before, words])

        at = np.flatnonzero(kind == _NEW)
        distance[at] = _since(at, document[at] * s.entities + ids[at] - entities)
        kind[at] = np.where(distance[at] > 0, _OLD, _NEW)
        new = at[distance[at] == 0]
        seen = np.arange(len(new)) - np.searchsorted(document[new], document[new])  # in the same document
        exact[at] = np.log(s.cast) - np.log(s.mentions) if s.mentions else 0.0
        exact[new] -= np.log((s.cast - seen) / (s.entities - seen))

        at = np.flatnonzero(kind == _NAME)
        exact[at] = np.log(s.names) - np.log(s.facts) if s.facts else 0.0
        at = np.flatnonzero(kind == _STATED)
        distance[at] = _since(at, document[at] * s.names + ids[at - 2] - names)
        kind[at] = np.where(distance[at] > 0, _QUERIED, _STATED)
        exact[at[distance[at] == 0]] = np.log(s.values)
        forgotten = {KINDS[_OLD]: float(np.log(s.entities / s.cast)), KINDS[_QUERIED]: float(np.log(s.values))}
        return Truth(KINDS, kind, exact, distance, forgotten)


def _since(positions: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return the distance of each position (n,) from the last one with the same key; 0 for the first with its key."""
    order = np.argsort(keys, kind="stable")
    again = np.diff(keys[order], prepend=-1) == 0
    since = np.zeros(len(positions), np.int64)
    since[order] = np.where(again, np.diff(positions[order], prepend=0), 0)
    return since
