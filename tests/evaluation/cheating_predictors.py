"""Predictors in plain numpy that report better scores than they earn; the referee must catch each.

All are bigram counters over `TYPES` types that learn as they read, and cheat in one way.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

TYPES, LENGTH = 12, 4096


def text(length: int = LENGTH, seed: int = 0) -> np.ndarray:
    """Ids of a source in which one type in two follows from the one before."""
    random = np.random.default_rng(seed)
    following, ids = random.permutation(TYPES), [0]
    for noise, other in zip(random.random(length - 1), random.integers(0, TYPES, length - 1), strict=True):
        ids.append(int(following[ids[-1]] if noise < 0.5 else other))
    return np.array(ids)


class Bigrams:
    """Honest: bigram counts plus one. It reads one row, or several independent ones."""

    def __init__(self) -> None:
        self.counts = np.ones((1, TYPES, TYPES))

    def predict(self, tokens: np.ndarray) -> np.ndarray:
        self.tokens = np.atleast_2d(tokens)
        if len(self.counts) < len(self.tokens):
            self.counts = np.ones((len(self.tokens), TYPES, TYPES))
        p = self.probabilities(self.tokens)
        return np.log(p[0] if tokens.ndim == 1 else p)

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """Probabilities (rows, T, types) of what follows tokens (rows, T)."""
        counts = self.counts[np.arange(len(tokens))[:, None], tokens]
        return counts / counts.sum(2, keepdims=True)

    def observe(self, targets: np.ndarray) -> None:
        targets = np.atleast_2d(targets)
        np.add.at(self.counts, (np.arange(len(targets))[:, None], self.tokens, targets), 1)


def as_read(make: type) -> Any:
    """The text as a predictor gets it: ids, or a file of as many bytes."""
    return io.BytesIO(bytes(text().astype(np.uint8))) if issubclass(make, Bytes) else text()


def towards(p: np.ndarray, words: np.ndarray, share: float = 0.5) -> np.ndarray:
    """Distributions (rows, T, types) mixed with certainty about words (rows, T); still normalised."""
    return (1 - share) * p + share * np.eye(TYPES)[words]


def next_tokens(tokens: np.ndarray) -> np.ndarray:
    """The token after each one in the block; the last one itself at its end."""
    return np.concatenate([tokens[:, 1:], tokens[:, -1:]], 1)


class Bytes(Bigrams):
    """Honest: uniform over bytes, with its own count of bytes."""

    def predict(self, tokens: np.ndarray) -> np.ndarray:
        return np.full((len(tokens), 256), -np.log(256))

    def observe(self, targets: np.ndarray) -> None: ...


# --- invalid probabilities ---


class HashedCounts(Bigrams):
    """Counts of pairs in a hash table that is too small: collisions are counted for each of the pairs."""

    BUCKETS = 31

    def __init__(self) -> None:
        super().__init__()
        self.table = np.ones(self.BUCKETS)
        self.totals = np.full(TYPES, float(TYPES))

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        buckets = (tokens[..., None] * TYPES + np.arange(TYPES)) * 2654435761 % self.BUCKETS
        return np.minimum(1, self.table[buckets] / self.totals[tokens][..., None])

    def observe(self, targets: np.ndarray) -> None:
        np.add.at(self.table, (self.tokens[0] * TYPES + targets) * 2654435761 % self.BUCKETS, 1)
        np.add.at(self.totals, self.tokens[0], 1)


class InflatesALittle(Bigrams):
    """Every probability a thousandth too large."""

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        return 1.001 * super().probabilities(tokens)


class BestTemperatureOfEachType(Bigrams):
    """Uses, for each type, the temperature that gives it the most probability."""

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        return at_temperatures(super().probabilities(tokens)).max(0)


class GivesSomeTypesNothing(Bigrams):
    """Gives no probability to unseen successors, even if the text contains them."""

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        counts = self.counts[0, tokens] - 0.999999
        counts[counts < 0.5] = 0
        counts[..., 0] += 1e-9
        with np.errstate(divide="ignore"):
            return counts / counts.sum(2, keepdims=True)

    def predict(self, tokens: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return super().predict(tokens)


class NotANumberAtTimes(Bigrams):
    """One type without a number, where the token before it is 3."""

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        p = super().probabilities(tokens)
        p[tokens == 3, 5] = np.nan
        return p


def at_temperatures(p: np.ndarray) -> np.ndarray:
    """Distributions at four temperatures, (4, rows, T, types)."""
    powers = np.stack([p**inverse for inverse in (0.5, 1.0, 2.0, 4.0)])
    return powers / powers.sum(3, keepdims=True)


# --- looking ahead, and aside ---


class CacheLooksOneAhead(Bigrams):
    """A cache of the last words whose window ends one token too late."""

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        p, following = super().probabilities(tokens), next_tokens(tokens)
        for back in range(4):
            shifted = np.roll(following, back, 1)
            shifted[:, :back] = tokens[:, :1]
            p = towards(p, shifted, 0.1)
        return p


class LooksAhead(Bigrams):
    """Leans towards the next token at a random share of the tokens."""

    EVERY: ClassVar[int] = 1

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        p = super().probabilities(tokens)
        stretch, place = np.divmod(np.arange(self.read, self.read + tokens.shape[1]), self.EVERY)
        chosen = np.random.default_rng(1).integers(0, self.EVERY, LENGTH)[stretch] == place
        return np.where(chosen[:, None], towards(p, next_tokens(tokens)), p)

    def observe(self, targets: np.ndarray) -> None:
        super().observe(targets)
        self.read += len(targets)


class LooksAheadAtOneIn20(LooksAhead):
    EVERY = 20


class LooksAheadAtOneIn100(LooksAhead):
    EVERY = 100


class LooksAheadAtOneIn500(LooksAhead):
    EVERY = 500


class BestTemperatureOfEachToken(Bigrams):
    """Uses, at each token, the temperature that is best for the next one."""

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        tables, following = at_temperatures(super().probabilities(tokens)), next_tokens(tokens)
        best = np.take_along_axis(tables, following[None, ..., None], 3).argmax(0)
        return np.take_along_axis(tables, best[None], 0)[0]


class TwoPasses(Bigrams):
    """Reads the block, learns from it, and rewinds: the second pass is scored."""

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        before = self.counts.copy()
        np.add.at(self.counts, (np.arange(len(tokens))[:, None], tokens[:, :-1], tokens[:, 1:]), 1)
        p = super().probabilities(tokens)
        self.counts = before
        return p


class KeepsTheFirstPass(Bigrams):
    """Counts of one instance are there for the next one."""

    KEPT: ClassVar[np.ndarray] = np.zeros((1, TYPES, TYPES))

    def __init__(self) -> None:
        super().__init__()
        self.counts = self.counts + self.KEPT

    def observe(self, targets: np.ndarray) -> None:
        super().observe(targets)
        np.add.at(KeepsTheFirstPass.KEPT[0], (self.tokens[0], targets), 1)


class OnlyTheFirstLooksAhead(LooksAhead):
    """The first instance looks ahead, and all others are honest."""

    MADE: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.first = OnlyTheFirstLooksAhead.MADE == 0
        OnlyTheFirstLooksAhead.MADE += 1

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        return super().probabilities(tokens) if self.first else Bigrams.probabilities(self, tokens)


class DrawsByChance(Bigrams):
    """Adds noise that cannot be reproduced."""

    RANDOM: ClassVar[np.random.Generator] = np.random.default_rng(2)

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        p = super().probabilities(tokens) * np.exp(0.1 * self.RANDOM.normal(size=(*tokens.shape, TYPES)))
        return p / p.sum(2, keepdims=True)


class LearnsFromAllRows(Bigrams):
    """Rows that are read side by side share their counts: each has some of the others' later text."""

    def observe(self, targets: np.ndarray) -> None:
        for counts in self.counts:
            np.add.at(counts, (self.tokens, np.atleast_2d(targets)), 1)


class LearnsInPairs(Bigrams):
    """Every two rows have one table of counts."""

    def predict(self, tokens: np.ndarray) -> np.ndarray:
        self.counts[1::2] = self.counts[::2]
        return super().predict(tokens)

    def observe(self, targets: np.ndarray) -> None:
        super().observe(targets)
        self.counts[::2] = self.counts[1::2] = self.counts[::2] + self.counts[1::2]


class ReadsTheNextRow(Bigrams):
    """A row's last target is the first input of the next row."""

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        below = np.concatenate([tokens[1:, :1], tokens[-1:, :1]])
        return towards(super().probabilities(tokens), np.broadcast_to(below, tokens.shape), 0.2)


# --- scores taken too late, or misreported ---


class ScoresAfterTheUpdate(Bigrams):
    """Rewrites its returned table once the targets are known, for a program that scores it then."""

    def predict(self, tokens: np.ndarray) -> np.ndarray:
        self.table = super().predict(tokens)
        return self.table

    def observe(self, targets: np.ndarray) -> None:
        super().observe(targets)
        self.table[:] = np.log(self.probabilities(self.tokens)[0])


def score_after_the_update() -> dict[str, float]:
    """The nats per token of a bigram counter that is scored by its own program, after each update."""
    ids, predictor, nats = text(), Bigrams(), 0.0
    for token, target in zip(np.concatenate([[0], ids]), ids, strict=False):
        predictor.predict(np.array([token]))
        predictor.observe(np.array([target]))
        nats -= predictor.predict(np.array([token]))[0, target]
    return {"nats_per_token": nats / len(ids)}


@dataclass(frozen=True)
class Cheat:
    """A predictor, how it is read, and the condition that must fail."""

    make: type
    condition: str
    how: str
    """The cheat in a few words."""
    share: float = 1.0
    """Share of the tokens at which it cheats."""
    claim: Callable[[], Mapping[str, float]] = dict
    options: dict[str, Any] = field(default_factory=dict)


CHEATS: dict[str, Cheat] = {
    "hashed counts": Cheat(HashedCounts, "distribution", "counts in a hash table with collisions"),
    "inflation": Cheat(InflatesALittle, "distribution", "every probability 0.1% too large"),
    "temperature of each type": Cheat(BestTemperatureOfEachType, "distribution", "the best of four for each type"),
    "no full support": Cheat(GivesSomeTypesNothing, "distribution", "nothing for types that were not seen"),
    "not a number": Cheat(NotANumberAtTimes, "distribution", "one type without a number, after one token in 12"),
    "cache one token ahead": Cheat(CacheLooksOneAhead, "causal", "a cache that holds the next token"),
    "temperature of each token": Cheat(BestTemperatureOfEachToken, "causal", "the best of four for the next token"),
    "two passes": Cheat(TwoPasses, "causal", "reads each block twice, and rewinds the first pass"),
    "ahead at 1 in 20": Cheat(LooksAheadAtOneIn20, "causal", "the next token, at 1 token in 20", 1 / 20),
    "ahead at 1 in 100": Cheat(LooksAheadAtOneIn100, "causal", "the next token, at 1 token in 100", 1 / 100),
    "ahead at 1 in 500": Cheat(LooksAheadAtOneIn500, "causal", "the next token, at 1 token in 500", 1 / 500),
    "ahead at 1 in 500, every token": Cheat(
        LooksAheadAtOneIn500, "causal", "the same with --every-token", 1 / 500, options={"every_token": True}
    ),
    "rows share counts": Cheat(LearnsFromAllRows, "causal", "4 rows that learn together", options={"batch_size": 4}),
    "pairs of rows": Cheat(LearnsInPairs, "causal", "4 rows, two and two learn together", options={"batch_size": 4}),
    "next row": Cheat(ReadsTheNextRow, "causal", "4 rows, each sees the next one", options={"batch_size": 4}),
    "first pass kept": Cheat(KeepsTheFirstPass, "one_pass", "a later instance has what an earlier one read"),
    "only the first cheats": Cheat(OnlyTheFirstLooksAhead, "one_pass", "the first instance looks ahead, no other"),
    "chance": Cheat(DrawsByChance, "one_pass", "noise that is not repeated"),
    "table after the update": Cheat(
        ScoresAfterTheUpdate, "scored_before_update", "the returned table improves when targets are observed"
    ),
    "claim after the update": Cheat(
        Bigrams, "as_reported", "its own score is read after the update", claim=score_after_the_update
    ),
    "wrong byte count": Cheat(
        Bytes, "as_reported", "3% more bytes than the text has", claim=lambda: {"bytes": round(1.03 * LENGTH)}
    ),
}
"""In the order of their conditions."""


def forget() -> None:
    """Reset the state that classes keep from earlier audits."""
    KeepsTheFirstPass.KEPT = np.zeros((1, TYPES, TYPES))
    OnlyTheFirstLooksAhead.MADE = 0
