"""The corpus `recall`: synthetic documents in which things come back long after, with the exact cost of every token.

A document has a hidden cast of C of E entities, and values for N names. Up to its `<eos>` it is a stream of events:
- with probability m one of the cast is mentioned, each as likely. To a reader who has seen K of them it is a new one with
  probability (C - K) / C, any of the E - K others as likely, and an old one with K / C, any of the K as likely;
- with probability f a fact is told, of any of the names: NAME `is` VALUE, any of V values as likely, and each time after that
  NAME `?` VALUE;
- otherwise a filler word follows by the one before it, a chain of first order that all documents share.
So -log p(token | all before) has a closed form. Documents are as long as each other, and their ends cost nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from backstory.config.errors import UserError, off
from backstory.config.schema import RecallConfig, TextConfig
from backstory.config.strict import validate
from backstory.data.tokenizers.built_in import END, UNKNOWN

FORMAT = 1
"""Raised when documents are drawn in another way."""
KINDS = ("document end", "filler word", "new entity", "old entity", "name", "is or ?", "stated value", "queried value")
"""What a token can be."""
BRANCHES, LIKELY = 8, 0.95
"""The likely successors of a filler word, and how much probability they share."""
BLOCK = 1 << 20
"""About how many tokens are drawn at once; part of the definition, since it orders the random numbers."""
LARGEST = 1 << 30
"""Tokens of a split; more are refused."""

_END, _FILLER, _NEW, _OLD, _NAME, _MARK, _TOLD, _ASKED = range(len(KINDS))
_IS, _ASKS, _WORDS = 2, 3, 4
"""Ids: `<eos>` is 0, `<unk>` 1; then the marks of facts, and from here on the words, entities, names and values."""


def check_text(config: TextConfig) -> None:
    """Raise UserError where the text is to be cut into other tokens than those it is drawn in."""
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
    """What is known of every token of a text whose source is known."""

    kinds: tuple[str, ...]
    """What a token can be."""
    kind: np.ndarray
    """(tokens,) uint8: which of these each token is."""
    exact: np.ndarray
    """(tokens,) float64: -log p(token | all before it), nats; its mean is the entropy that no reader gets below."""
    distance: np.ndarray
    """(tokens,) int32: tokens since what comes back here was last seen; 0 where nothing comes back."""
    forgotten: dict[str, float]
    """Of each kind that comes back, nats above `exact` that a reader pays who knows the statistics but forgets documents."""


@dataclass(frozen=True)
class Recall:
    """Draws documents, and knows what they cost. Raises UserError for settings that do not go together."""

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
        """Where the text comes from."""
        s = self.settings
        facts = f", {s.facts:g} facts" if s.facts else ""
        fresh = ", other documents to train on in every epoch" if s.new_each_epoch else ""
        return (
            f"synthetic documents of {s.length:,} tokens: {s.cast:,} of {s.entities:,} entities each, {s.mentions:g} mentions"
            f"{facts} a token, seed {s.seed}{fresh}"
        )

    def words(self) -> list[str]:
        """All there are, by id; `<unk>` never occurs."""
        s = self.settings
        groups = (("w", s.words), ("e", s.entities), ("n", s.names), ("v", s.values))
        return [END, UNKNOWN, "is", "?", *(f"{letter}{i}" for letter, count in groups for i in range(count))]

    def documents(self, split: str) -> int:
        """How many a split has."""
        return self.settings.documents if split == "train" else self.settings.held_out

    def size(self, split: str) -> int:
        """How many tokens a split has."""
        return self.documents(split) * self.settings.length

    def starts(self, ids: np.ndarray) -> np.ndarray:
        """The places where documents begin in a text (tokens,)."""
        return np.arange(0, len(ids), self.settings.length)

    @cached_property
    def chain(self) -> np.ndarray:
        """(words, words): the probability of a filler word (column) after another (row)."""
        s, rng = self.settings, np.random.default_rng(self.settings.seed)
        table, branches = np.full((s.words, s.words), (1 - LIKELY) / s.words), min(BRANCHES, s.words)
        for row in table:
            row[rng.choice(s.words, branches, replace=False)] += LIKELY * rng.dirichlet(np.ones(branches))
        return table / table.sum(1, keepdims=True)

    @property
    def _starts(self) -> tuple[int, int, int]:
        """The ids of the first entity, name and value."""
        s = self.settings
        return _WORDS + s.words, _WORDS + s.words + s.entities, _WORDS + s.words + s.entities + s.names

    # Drawing.

    def draw(self, split: str, epoch: int = 1) -> Iterator[np.ndarray]:
        """The ids (int32) of a split's documents, some documents at a time; of each epoch its own."""
        rng = np.random.default_rng([self.settings.seed, ("train", "valid", "test").index(split) + 1, epoch])
        count, length = self.documents(split), self.settings.length
        at_once = max(1, BLOCK // length)
        for first in range(0, count, at_once):
            yield self._draw(min(at_once, count - first), rng).ravel()

    def epoch(self, number: int, tokens: int) -> np.ndarray:
        """The ids (tokens,) of an epoch of its own: of as many documents, and so as many."""
        return np.concatenate([*self.draw("train", number)])

    def _draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """So many documents, (count, length)."""
        s, room = self.settings, self.settings.length - 1
        chosen = rng.random((count, room))
        mention, fact = chosen < s.mentions, (chosen >= s.mentions) & (chosen < s.mentions + s.facts)
        filler = ~(mention | fact)
        first = np.where(fact, 3, 1)  # the place of each event's first token, beyond the end where there is no room
        first = np.cumsum(first, 1) - first
        out = np.zeros((count, room + 2), np.int32)
        rows = np.arange(count)[:, None]

        cast = np.stack([rng.choice(s.entities, s.cast, replace=False) for _ in range(count)])
        # Each of the cast as likely: of those not yet seen, which one it is was drawn with the cast.
        tokens = self._starts[0] + cast[rows, rng.integers(s.cast, size=(count, room))]
        fillers = self._fillers(count, int(filler.sum(1).max()), rng)
        tokens[filler] = (_WORDS + fillers)[np.arange(fillers.shape[1]) < filler.sum(1)[:, None]]
        np.put_along_axis(out, np.minimum(first, room), tokens, 1)
        document, event = np.nonzero(fact & (first < room))
        self._put_facts(out, document, first[document, event], rng)
        out[:, room:] = 0
        return out[:, : room + 1]

    def _put_facts(self, out: np.ndarray, document: np.ndarray, place: np.ndarray, rng: np.random.Generator) -> None:
        """Write facts, given in order as their documents and first places (facts,), into documents (count, length)."""
        s, (_, first_name, first_value) = self.settings, self._starts
        name, values = rng.integers(s.names, size=len(place)), rng.integers(s.values, size=(len(out), s.names))
        told = np.zeros(len(place), bool)
        told[np.unique(document * s.names + name, return_index=True)[1]] = True
        out[document, place] = first_name + name
        out[document, place + 1] = np.where(told, _IS, _ASKS)
        out[document, place + 2] = first_value + values[document, name]

    def _fillers(self, count: int, most: int, rng: np.random.Generator) -> np.ndarray:
        """Walks (count, most) along the chain, each from its first word on."""
        words = self.settings.words
        sums = np.cumsum(self.chain, 1)
        # One sorted list for all rows: from the row's number on, up to the next one's.
        ladder = (sums / sums[:, -1:] + np.arange(words)[:, None]).ravel()
        out, at = np.empty((most, count), np.int32), np.zeros(count, np.int64)
        for step, drawn in enumerate(rng.random((most, count))):
            at = np.minimum(np.searchsorted(ladder, at + drawn, "right") - at * words, words - 1)
            out[step] = at
        return out.T

    # What it costs.

    def truth(self, ids: np.ndarray) -> Truth:
        """What is known of every token of documents that were drawn, given by their ids (tokens,)."""
        s, ids = self.settings, ids.astype(np.int64)
        document = np.arange(len(ids)) // s.length
        entities, names, values = self._starts
        kind = np.searchsorted([0, _IS, _WORDS, entities, names, values], ids, "right") - 1
        kind = np.array([_END, _MARK, _FILLER, _NEW, _NAME, _TOLD], np.uint8)[kind]
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
        at = np.flatnonzero(kind == _TOLD)
        distance[at] = _since(at, document[at] * s.names + ids[at - 2] - names)
        kind[at] = np.where(distance[at] > 0, _ASKED, _TOLD)
        exact[at[distance[at] == 0]] = np.log(s.values)
        forgotten = {KINDS[_OLD]: float(np.log(s.entities / s.cast)), KINDS[_ASKED]: float(np.log(s.values))}
        return Truth(KINDS, kind, exact, distance, forgotten)


def _since(places: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """How far each place (n,) is behind the last one before it with the same key; 0 where it is the first."""
    order = np.argsort(keys, kind="stable")
    again = np.diff(keys[order], prepend=-1) == 0
    since = np.zeros(len(places), np.int64)
    since[order] = np.where(again, np.diff(places[order], prepend=0), 0)
    return since
