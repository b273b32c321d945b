"""Readers that report better scores than they earn. The audit must catch each, by the check meant for it."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backstory.models import Interpolation, LanguageModel, Precision, Prediction, clone, map_state
from backstory.models.prediction import Pointer
from backstory.readers import StaticReader, evaluating
from backstory.readers.neural_cache import NeuralCache


@dataclass(frozen=True)
class Cheated(Prediction):
    """A prediction whose table (B, T, V) of log-probabilities has been replaced."""

    table: Tensor

    def log_prob(self, targets: Tensor) -> Tensor:
        return self.table.gather(2, targets[..., None])[..., 0]

    def log_probs(self) -> Tensor:
        return self.table

    def select(self, rows: Tensor, times: Tensor) -> "Cheated":
        return replace(self, activations=self._selected(rows, times), table=self.table[rows, times].unsqueeze(1))


def towards(prediction: Prediction, words: Tensor, share: float = 0.3) -> Cheated:
    """Mix the distribution with certainty about given words (B, T); still normalised."""
    table = prediction.log_probs().exp() * (1 - share)
    table = table.scatter_add(2, words[..., None], torch.full_like(table[..., :1], share))
    return Cheated(prediction.activations, table.log())


def learned(model: LanguageModel, tokens: Tensor, targets: Tensor, state: Any, rate: float = 0.5) -> LanguageModel:
    """Return a copy of the model after one gradient step on the tokens and their targets."""
    pupil = copy.deepcopy(model).eval()
    with torch.enable_grad():
        prediction, _ = pupil(tokens, clone(state))
        prediction.log_prob(targets).mean().backward()
    with torch.no_grad():
        for parameter in pupil.parameters():
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=rate)
    return pupil


# --- invalid distributions ---


@dataclass(frozen=True)
class Boosted(Prediction):
    """Adds mass to the queried word if it occurred recently, and takes none from the others."""

    inner: Prediction
    recent: Tensor
    """(B, V) bool"""

    def log_prob(self, targets: Tensor) -> Tensor:
        plain = self.inner.log_prob(targets)
        return torch.where(self.recent.gather(1, targets), (0.9 * plain.exp() + 0.1).log(), plain)

    def log_probs(self) -> Tensor:
        return self.inner.log_probs()

    def select(self, rows: Tensor, times: Tensor) -> Prediction:
        return self.inner.select(rows, times)  # a closer look sees the honest part


@dataclass(frozen=True)
class LittleMore(Boosted):
    """Reports scores that are 0.0003 nats too good: within the tolerance of each, and of half of them."""

    def log_prob(self, targets: Tensor) -> Tensor:
        return self.inner.log_prob(targets) + 3e-4


class ReportsALittleMore(StaticReader):
    """Its scores are a little better than its distributions, all of them."""

    def predict(self, tokens: Tensor) -> Prediction:
        prediction = super().predict(tokens)
        return LittleMore(prediction.activations, prediction, torch.zeros(0))


class GoldCache(StaticReader):
    """A cache that scores only the gold token."""

    def predict(self, tokens: Tensor) -> Prediction:
        prediction = super().predict(tokens)
        recent = torch.zeros(len(tokens), self.model.vocabulary_size, dtype=torch.bool).scatter(1, tokens[:, :3], True)
        return Boosted(prediction.activations, prediction, recent)


@dataclass(frozen=True)
class OpenlyBoosted(Boosted):
    def select(self, rows: Tensor, times: Tensor) -> Prediction:
        return OpenlyBoosted(None, self.inner.select(rows, times), self.recent[rows])


class OpenGoldCache(GoldCache):
    """The same, but a closer look is boosted too."""

    def predict(self, tokens: Tensor) -> Prediction:
        found = super().predict(tokens)
        assert isinstance(found, Boosted)
        return OpenlyBoosted(found.activations, found.inner, found.recent)


class Unnormalised(StaticReader):
    """Every probability a hundredth too large."""

    def predict(self, tokens: Tensor) -> Prediction:
        prediction = super().predict(tokens)
        return Cheated(prediction.activations, prediction.log_probs() + 0.01)


class SometimesUnnormalised(StaticReader):
    """Twice the mass, at every third position."""

    def predict(self, tokens: Tensor) -> Prediction:
        prediction = super().predict(tokens)
        table = prediction.log_probs()
        table[:, ::3] += 0.7
        return Cheated(prediction.activations, table)


@dataclass(frozen=True)
class Holed(Cheated):
    """Scores correctly, from a distribution that does not sum to one."""

    def log_probs(self) -> Tensor:
        table = self.table.clone()
        table[..., 3] = torch.nan
        return table


class NotANumber(StaticReader):
    """A distribution with a hole in it."""

    def predict(self, tokens: Tensor) -> Prediction:
        prediction = super().predict(tokens)
        return Holed(prediction.activations, prediction.log_probs())


# --- learning from targets before they are scored ---


@dataclass(frozen=True)
class Studied(Prediction):
    """Learns from the targets that it must score, then scores them."""

    study: Callable[[Tensor], Prediction]
    inner: Prediction

    def log_prob(self, targets: Tensor) -> Tensor:
        # It studies only whole blocks; probes of single positions get honest answers.
        return self.study(targets).log_prob(targets)

    def log_probs(self) -> Tensor:
        return self.inner.log_probs()

    def select(self, rows: Tensor, times: Tensor) -> Prediction:
        return self.inner.select(rows, times)


class LearnsWhileScoring(StaticReader):
    """A step of gradient descent on the targets given to `log_prob`, before they are scored."""

    def predict(self, tokens: Tensor) -> Prediction:
        prediction, state = super().predict(tokens), self._state

        def study(targets: Tensor) -> Prediction:
            pupil = learned(self.model, tokens, targets, state)
            with evaluating(pupil):
                return pupil(tokens, state)[0]

        return Studied(prediction.activations, study, prediction)


@dataclass(frozen=True)
class Remembering(Prediction):
    """Counts the targets that it scores, and leans towards them ever after."""

    inner: Prediction
    counts: Tensor
    """(V,), shared with the reader."""

    def log_prob(self, targets: Tensor) -> Tensor:
        scores = self.log_probs().gather(2, targets[..., None])[..., 0]
        self.counts.add_(torch.bincount(targets.flatten(), minlength=len(self.counts)))
        return scores

    def log_probs(self) -> Tensor:
        return torch.log_softmax(self.inner.log_probs() + 0.01 * self.counts, 2)

    def select(self, rows: Tensor, times: Tensor) -> Prediction:
        return replace(self, activations=None, inner=self.inner.select(rows, times))


class LearnsFromScoring(StaticReader):
    """Learns while scoring, not while observing: the second score of a block is better."""

    def start(self, batch_size: int) -> None:
        super().start(batch_size)
        self.counts = torch.zeros(self.model.vocabulary_size)

    def predict(self, tokens: Tensor) -> Prediction:
        prediction = super().predict(tokens)
        return Remembering(prediction.activations, prediction, self.counts)

    def snapshot(self) -> Any:
        return super().snapshot(), self.counts.clone()

    def restore(self, snapshot: Any) -> None:
        super().restore(snapshot[0])
        self.counts = snapshot[1].clone()


class NotesFromScoring(LearnsFromScoring):
    """The same, but the block's own prediction stays unchanged: only the reader has learned."""

    def predict(self, tokens: Tensor) -> Prediction:
        prediction = StaticReader.predict(self, tokens)
        leaning = Remembering(None, prediction, self.counts.clone()).log_probs()

        def note(targets: Tensor) -> Prediction:
            self.counts.add_(torch.bincount(targets.flatten(), minlength=len(self.counts)))
            return Cheated(None, leaning)

        return Studied(prediction.activations, note, Cheated(None, leaning))


class KeepsItsLessons(StaticReader):
    """Learns in `observe`, but in the loaded model itself, where no snapshot undoes it."""

    def observe(self, targets: Tensor) -> None:
        super().observe(targets)
        with torch.no_grad():
            next(self.model.parameters())[targets[0]] += 0.01


# --- looking ahead, and aside ---


class TrainsOnInputs(StaticReader):
    """Takes a gradient step on the block's inputs, which are most of its targets, before it predicts."""

    def predict(self, tokens: Tensor) -> Prediction:
        super().predict(tokens)
        if tokens.shape[1] == 1:
            return super().predict(tokens)
        pupil = learned(self.model, tokens[:, :-1], tokens[:, 1:], self._state)
        with evaluating(pupil):
            return pupil(tokens, self._state)[0]


class PeeksAhead(StaticReader):
    """Leans towards the next token of the block."""

    def predict(self, tokens: Tensor) -> Prediction:
        return towards(super().predict(tokens), torch.cat([tokens[:, 1:], tokens[:, :1]], 1))


class PeeksFarAhead(StaticReader):
    """Leans towards the last token of the block."""

    def predict(self, tokens: Tensor) -> Prediction:
        return towards(super().predict(tokens), tokens[:, -1:].expand_as(tokens))


class ReadsTheNextRow(StaticReader):
    """The first input of the next row is the last target of this one."""

    def predict(self, tokens: Tensor) -> Prediction:
        following = tokens.clone()
        following[:-1] = tokens[1:, :1]
        return towards(super().predict(tokens), following)


class ReadsThePreviousRow(StaticReader):
    def predict(self, tokens: Tensor) -> Prediction:
        preceding = tokens.clone()
        preceding[1:] = tokens[:-1]
        return towards(super().predict(tokens), preceding)


class MixesRows(StaticReader):
    """A state averaged over the batch."""

    def observe(self, targets: Tensor) -> None:
        super().observe(targets)
        self._state = map_state(lambda t: t.mean(0, keepdim=True).expand_as(t), self._state)

    def predict(self, tokens: Tensor) -> Prediction:
        prediction = super().predict(tokens)
        table = prediction.log_probs().exp().mean(0, keepdim=True).expand(len(tokens), -1, -1)
        return Cheated(prediction.activations, table.log())


# --- false claims about the reader ---


class StartsAfresh(StaticReader):
    """Forgets everything at each block, but claims to be independent of blocks."""

    def observe(self, targets: Tensor) -> None:
        self._state = self.model.start(len(targets))


class SnapshotsNothing(StaticReader):
    """Its snapshot moves on with the reader, so that restoring it continues from a later position."""

    def snapshot(self) -> Any:
        return self._box

    def start(self, batch_size: int) -> None:
        super().start(batch_size)
        self._box: list[Any] = [self._state]

    def observe(self, targets: Tensor) -> None:
        super().observe(targets)
        self._box[0] = self._state

    def restore(self, snapshot: Any) -> None:
        self._box = snapshot
        self._state = self._next = snapshot[0]


class RestoresElsewhere(StaticReader):
    """Each restored reader has a different state."""

    restored = 0

    def restore(self, snapshot: Any) -> None:
        super().restore(snapshot)
        type(self).restored += 1
        first, rest = self._state.hidden[0], self._state.hidden[1:]
        self._state = self._next = self._state._replace(hidden=(first + 0.01 * type(self).restored, *rest))


class ForksShareState(StaticReader):
    """Restores into tensors shared with its forks, so that an audit would change the reader itself."""

    def start(self, batch_size: int) -> None:
        super().start(batch_size)
        self._state = clone(self._state)

    def observe(self, targets: Tensor) -> None:
        for mine, new in zip(self._tensors(self._state), self._tensors(self._next), strict=True):
            mine.copy_(new)

    def restore(self, snapshot: Any) -> None:
        for mine, kept in zip(self._tensors(self._state), self._tensors(snapshot), strict=True):
            mine.copy_(kept)

    @staticmethod
    def _tensors(state: Any) -> list[Tensor]:
        return [*state.hidden, *state.cell]


# --- neural caches ---


class RemembersTooSoon(NeuralCache):
    """Position t also sees its own pair, whose word comes next, if the block contains it."""

    def _pointer(self, p: Prediction, tokens: Tensor) -> Pointer:
        q = super()._pointer(p, tokens)
        following = torch.cat([tokens[:, 1:], tokens[:, :1]], 1)
        weights = torch.cat([q.weights, torch.ones_like(q.weights[..., :1])], 2)
        return replace(
            q, weights=weights / weights.sum(2, keepdim=True), words=torch.cat([q.words, following[..., None]], 2)
        )


@dataclass(frozen=True)
class GoldMass(Pointer):
    """Scores the gold token by exp(theta h_i . h_t) without normalising over the pairs."""

    def log_prob(self, targets: Tensor) -> Tensor:
        return super().log_prob(targets) + math.log(3)


class ScoresOnlyTheGoldToken(NeuralCache):
    """A cache with unnormalised mass, whose table is normalised when inspected."""

    def predict(self, tokens: Tensor) -> Interpolation:
        blend = super().predict(tokens)
        assert isinstance(blend.q, Pointer)
        return replace(blend, q=GoldMass(None, blend.q.weights, blend.q.words, blend.q.types))


class OneWindowForAllRows(NeuralCache):
    """Rows see the words of each other."""

    def _pointer(self, p: Prediction, tokens: Tensor) -> Pointer:
        q = super()._pointer(p, tokens)
        return replace(q, words=q.words.roll(1, 0))


class KeepsOnlyItsModel(NeuralCache):
    """Its snapshot lacks the remembered words."""

    def snapshot(self) -> Any:
        return self.inner.snapshot(), self._pairs

    def restore(self, snapshot: Any) -> None:
        self.inner.restore(snapshot[0])
        self._pairs = snapshot[1]


CACHE_CHEATS: dict[type[NeuralCache], str] = {
    RemembersTooSoon: "causal",
    ScoresOnlyTheGoldToken: "distribution",
    KeepsOnlyItsModel: "scored_before_update",
}
"""Variants of the real cache, with the check that must catch each. The next one needs several rows."""
CACHE_CHEATS_WITH_ROWS: dict[type[NeuralCache], str] = {OneWindowForAllRows: "causal"}

CHEATS: dict[type[StaticReader], str] = {
    ReportsALittleMore: "as_reported",
    RestoresElsewhere: "one_pass",
    GoldCache: "distribution",
    OpenGoldCache: "distribution",
    Unnormalised: "distribution",
    SometimesUnnormalised: "distribution",
    NotANumber: "distribution",
    LearnsWhileScoring: "scored_before_update",
    LearnsFromScoring: "scored_before_update",
    NotesFromScoring: "scored_before_update",
    KeepsItsLessons: "scored_before_update",
    SnapshotsNothing: "scored_before_update",
    TrainsOnInputs: "causal",
    PeeksAhead: "causal",
    PeeksFarAhead: "causal",
    StartsAfresh: "one_pass",
    ForksShareState: "one_pass",
}
"""With the check that must catch it."""

CHEATS_WITH_ROWS: tuple[type[StaticReader], ...] = (ReadsTheNextRow, ReadsThePreviousRow, MixesRows)
"""These need more than one row, and are caught as `causal`."""


# --- cheats that are rare or hidden ---


def peeking(prediction: Prediction, tokens: Tensor, where: Tensor) -> Cheated:
    """The distribution mixed with certainty about the next token, where the block has one, at the positions `where` (B, T)."""
    coming = torch.cat([tokens[:, 1:], tokens[:, -1:]], 1)
    where = where.expand(tokens.shape) & (torch.arange(tokens.shape[1]) < tokens.shape[1] - 1)
    leant, plain = towards(prediction, coming), prediction.log_probs()
    return Cheated(prediction.activations, torch.where(where[..., None], leant.table, plain))


class KnowsWhereItIs(StaticReader):
    """Counts the tokens that it has read, which cheats that hide from pieces, forks and snapshots need."""

    def start(self, batch_size: int) -> None:
        super().start(batch_size)
        self.seen = 0

    def observe(self, targets: Tensor) -> None:
        super().observe(targets)
        self.seen += targets.shape[1]

    def snapshot(self) -> Any:
        return super().snapshot(), self.seen

    def restore(self, snapshot: Any) -> None:
        super().restore(snapshot[0])
        self.seen = snapshot[1]


class PeeksNowAndThen(KnowsWhereItIs):
    """Leans towards the next token at a fixed share of the positions."""

    share = 0.01

    def where(self, positions: Tensor) -> Tensor:
        return torch.rand(1 << 16, generator=torch.Generator().manual_seed(3))[positions] < self.share

    def predict(self, tokens: Tensor) -> Prediction:
        positions = self.seen + torch.arange(tokens.shape[1])
        return peeking(super().predict(tokens), tokens, self.where(positions))


class PeeksAtOneIn5(PeeksNowAndThen):
    share = 0.2


class PeeksAtOneIn10(PeeksNowAndThen):
    share = 0.1


class PeeksAtOneIn20(PeeksNowAndThen):
    share = 0.05


class PeeksAtOneIn100(PeeksNowAndThen):
    share = 0.01


class PeeksAtEvery8thStep(PeeksNowAndThen):
    """At steps 16, 24, 32... of blocks of 256."""

    def where(self, positions: Tensor) -> Tensor:
        return (positions % 256 >= 16) & (positions % 8 == 0)


class PeeksAtEvery64thStep(PeeksNowAndThen):
    """At steps 63, 127, 191... of blocks of 256."""

    def where(self, positions: Tensor) -> Tensor:
        return positions % 64 == 63


class ByBlocks(StaticReader):
    """Declares that its scores depend on the blocks, so that such a dependence does not reveal it."""

    def __init__(self, model: LanguageModel, precision: Precision | None = None) -> None:
        super().__init__(model, precision)
        self.capabilities = replace(self.capabilities, block_invariant=False)


class MixesRowsInObserve(ByBlocks):
    """Mixes the states of rows slightly while observing."""

    def observe(self, targets: Tensor) -> None:
        super().observe(targets)
        self._state = map_state(lambda t: 0.9 * t + 0.1 * t.roll(1, 0), self._state)


class SharesItsCache(ByBlocks):
    """Leans towards the words that any row observed last."""

    def start(self, batch_size: int) -> None:
        super().start(batch_size)
        self.recent = torch.zeros(self.model.vocabulary_size)

    def observe(self, targets: Tensor) -> None:
        super().observe(targets)
        self.recent = torch.bincount(targets.flatten(), minlength=len(self.recent)).float()

    def predict(self, tokens: Tensor) -> Prediction:
        prediction = super().predict(tokens)
        return Cheated(None, torch.log_softmax(prediction.log_probs() + 0.05 * self.recent, 2))

    def snapshot(self) -> Any:
        return super().snapshot(), self.recent.clone()

    def restore(self, snapshot: Any) -> None:
        super().restore(snapshot[0])
        self.recent = snapshot[1].clone()


class StartKeepsTheText(SharesItsCache):
    """Begins a text with memories of the last one. It reads one row, so that nothing is shared."""

    def __init__(self, model: LanguageModel, precision: Precision | None = None) -> None:
        super().__init__(model, precision)
        self.recent = torch.zeros(model.vocabulary_size)

    def start(self, batch_size: int) -> None:
        kept = self.recent
        super().start(batch_size)
        self.recent = kept


@dataclass(frozen=True)
class Inflated(Prediction):
    """Reports slightly too large probabilities, although its distribution sums to one."""

    inner: Prediction
    factor: float

    def log_prob(self, targets: Tensor) -> Tensor:
        return self.inner.log_prob(targets) + math.log(self.factor)

    def log_probs(self) -> Tensor:
        return self.inner.log_probs()

    def select(self, rows: Tensor, times: Tensor) -> Prediction:
        return replace(self, activations=None, inner=self.inner.select(rows, times))


class InflatesALot(StaticReader):
    """By 4.5%."""

    factor = 1.045

    def predict(self, tokens: Tensor) -> Prediction:
        return Inflated(None, super().predict(tokens), self.factor)


class InflatesALittle(InflatesALot):
    """By 0.1%."""

    factor = 1.001


class KnowsSeed0(KnowsWhereItIs):
    """Is honest at the places that seed 0 draws from this many blocks of 256, and looks ahead at all others."""

    blocks, places, size = 16, 8, 256

    def predict(self, tokens: Tensor) -> Prediction:
        known = np.random.default_rng(0).choice(self.blocks, self.places, replace=False)
        prediction = super().predict(tokens)
        honest = self.seen // self.size in known
        return prediction if honest else peeking(prediction, tokens, torch.ones_like(tokens, dtype=torch.bool))


class HonestInForks(StaticReader):
    """Looks ahead in the reading itself, but is honest after being restored, and in blocks before which it was copied."""

    restored = looked_at = False

    def snapshot(self) -> Any:
        self.looked_at = True
        return super().snapshot()

    def restore(self, snapshot: Any) -> None:
        super().restore(snapshot)
        self.restored = True

    def observe(self, targets: Tensor) -> None:
        super().observe(targets)
        self.looked_at = False

    def predict(self, tokens: Tensor) -> Prediction:
        prediction = super().predict(tokens)
        if self.restored or self.looked_at:
            return prediction
        return peeking(prediction, tokens, torch.ones_like(tokens, dtype=torch.bool))


RARE_CHEATS: tuple[type[StaticReader], ...] = (
    *(PeeksAtOneIn5, PeeksAtOneIn10, PeeksAtOneIn20, PeeksAtOneIn100, PeeksAtEvery8thStep, PeeksAtEvery64thStep),
)
"""Cheats that are caught with some probability, all as `causal`."""

HIDDEN_CHEATS: dict[type[StaticReader], str] = {
    StartKeepsTheText: "one_pass",
    InflatesALot: "distribution",
    InflatesALittle: "distribution",
    KnowsSeed0: "causal",
    HonestInForks: "as_reported",
}
"""With the check that must catch it."""

HIDDEN_CHEATS_WITH_ROWS: tuple[type[StaticReader], ...] = (MixesRowsInObserve, SharesItsCache)
"""These need more than one row, and are caught as `causal`."""
