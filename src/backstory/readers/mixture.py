"""A mixture of readers whose weights are learned while reading, by Bayes' rule with a fixed share (Herbster and Warmuth 1998).

    P_t(w) = sum_k v_k P_k(w),    u_k ~ v_k P_k(w_t)^rate,    v_k' = (1 - share) u_k + share / K

The weights v at a position follow from the words before it, so that each word is scored with weights that have not seen it.
With `weights=gate` they follow from how sure each reader is (`gate.py`). With `domain=logistic` this sum is one factor of a
weighted product (`logistic.py`).
"""

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from backstory.config.readers import MixtureSettings
from backstory.config.strict import conforming
from backstory.models import Interpolation, LanguageModel, Prediction, clone
from backstory.models.positions import steps_at
from backstory.readers.base import Block, Reader, joint_block, joint_capabilities
from backstory.readers.gate import GateInputs, gate_inputs, log_fixed_weights
from backstory.readers.kind import ReaderKind
from backstory.readers.logistic import Factors, Mixed, TablePrediction, Weigh, mix
from backstory.readers.mixture_weights import BlockWeights, Weighing, to_tensor
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError

SHARES = (1e-5, 1e-4, 5e-4, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
RATES = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Shares and rates that are tried."""
PRODUCT = {"share": (0.02, 0.1), "rate": (0.1, 0.25, 1.0), "step": (1e-3, 2e-3, 5e-3, 1e-2)}
"""Values that are tried with `domain=logistic`, where each takes whole distributions."""
GATE_RATES, GATED_STEPS = (0.03, 0.1, 0.3, 1.0), (3e-5, 1e-4, 3e-4, 1e-3)
"""Rates of a gate, and steps of a product with a gated sum, that are tried."""


@dataclass(frozen=True, eq=False)
class WeightedMixture(Prediction):
    """sum_k v_k p_k of K predictions."""

    experts: tuple[Prediction, ...]
    log_weights: Tensor
    """(B, T, K): log v, normalised; minus infinity turns one off exactly."""
    inner: Prediction
    """Prediction of the first reader itself."""

    def log_prob(self, targets: Tensor) -> Tensor:
        return torch.logsumexp(self.log_weights + torch.stack([e.log_prob(targets) for e in self.experts], 2), 2)

    def log_probs(self) -> Tensor:
        total = self.log_weights[..., 0, None] + self.experts[0].log_probs()
        for k, expert in enumerate(self.experts[1:], 1):
            total = torch.logaddexp(total, self.log_weights[..., k, None] + expert.log_probs())
        return total

    def select(self, rows: Tensor, times: Tensor) -> "WeightedMixture":
        experts = tuple(expert.select(rows, times) for expert in self.experts)
        weights, inner = steps_at(self.log_weights, rows, times), self.inner.select(rows, times)
        return WeightedMixture(self._selected(rows, times), experts, weights, inner)

    def parts(self) -> dict[str, Any]:
        """Return the first reader's prediction, `p`, the `experts`, and their `log_weights`."""
        return {"p": self.inner, "experts": self.experts, "log_weights": self.log_weights}


class MixtureReader(Reader):
    """Readers of one model or vocabulary, weighed by how well each has predicted so far.

    A reader that interpolates, as a cache does, counts as two: the reader inside it, and its own prediction.
    """

    inner: Reader
    adapts = True

    @checked()
    def __init__(self, inner: Reader, settings: MixtureSettings, *others: Reader) -> None:
        """Blend the experts of `inner` with `others`, if any, over the same vocabulary.

        Raises UserError for settings out of range, and where there is nothing to blend.
        """
        self.readers = (inner, *others)
        self.inner, self.settings = inner, conforming(settings, "the mixture")
        self.names = [name for reader in self.readers for name in _names(reader)]
        if len(self.names) < 2:
            raise UserError("the reader mixture has nothing to blend; put readers before it: cache+ngram+mixture")
        if len({reader.model.vocabulary_size for reader in self.readers}) > 1:
            raise UserError("readers of different vocabularies cannot be blended")
        self.name = "+".join([reader.name for reader in self.readers] + ["mixture"])
        self.model, self.precision = inner.model, inner.precision
        self.block = joint_block(self.readers)
        self.capabilities = joint_capabilities(self.readers)
        self._sizes = [len(_names(reader)) for reader in self.readers]
        self._weighing = Weighing.of([self.settings])
        self._weights = self._weighing.start(0, len(self.names))
        self._exponents: Tensor | None = None
        self._pending: _Pending | None = None

    def models(self) -> list[LanguageModel]:
        return [model for reader in self.readers for model in reader.models()]

    def start(self, batch_size: int) -> None:
        for reader in self.readers:
            reader.start(batch_size)
        self._weights = self._weighing.start(batch_size, len(self.names))
        self._exponents = self._pending = None

    def predict(self, tokens: Tensor) -> WeightedMixture | TablePrediction:
        predictions = [reader.predict(tokens) for reader in self.readers]
        experts, shares = experts_of(self.readers, predictions, tokens)
        on = taking_part(shares)
        # The last position's target is unknown, but nothing depends on it here.
        following = torch.cat([tokens[:, 1:], tokens[:, :1]], 1)
        single = tokens.shape[1] == 1
        scores = np.zeros((len(tokens), 1, len(experts))) if single else self.scores_of(experts, following)
        if self.settings.domain == "linear":
            inputs = self.inputs(experts, shares)
            weights, _ = self._weighing.along(scores, on, inputs, self._weights)
            self._pending = _Pending(following, experts, on, scores, inputs)
            log_weights = to_tensor(_log(weights), tokens.device)
            return WeightedMixture(predictions[0].activations, experts, log_weights, predictions[0])
        weights = BlockWeights(self._weighing, scores, on, self.log_shares(shares), self._weights)
        factors = Factors(experts, shares, self.settings.lengths, self.settings.context)
        mixed = self._mix(factors, weights.follow, following)
        self._pending = _Pending(following, experts, on, scores, weights.inputs(), factors, mixed)
        return TablePrediction(predictions[0].activations, mixed.table, predictions[0])

    def _mix(self, factors: Factors, weigh: Weigh, targets: Tensor) -> Mixed:
        with self.precision.context(targets.device):
            return mix(factors, weigh, targets, self._exponents, self.settings.step)

    def observe(self, targets: Tensor) -> None:
        if self._pending is not None:
            self._learn(self._pending, targets)
            self._pending = None
        for reader in self.readers:
            reader.observe(targets)

    def _learn(self, block: "_Pending", targets: Tensor) -> None:
        """Update the weights over a block with targets (B, T). Targets known from its own tokens are not scored again."""
        known = torch.equal(block.following[:, :-1], targets[:, :-1])
        if known and targets.shape[1] > 1:
            rows = torch.arange(len(targets), device=targets.device)
            last = [expert.select(rows, torch.full_like(rows, targets.shape[1] - 1)) for expert in block.experts]
            scores = np.concatenate([block.scores[:, :-1], self.scores_of(last, targets[:, -1:])], 1)
        else:
            scores = self.scores_of(block.experts, targets)
        along, self._weights = self._weighing.along(scores, block.on, block.inputs, self._weights)
        if block.factors is not None and block.mixed is not None:
            mixed = block.mixed
            if not known:
                weights = to_tensor(along, targets.device)
                mixed = self._mix(block.factors, lambda steps, _: weights[:, steps], targets)
            self._exponents = mixed.relearned(targets[:, -1], self.settings.step)

    def scores_of(self, experts: Sequence[Prediction], targets: Tensor) -> np.ndarray:
        """Return the log-probabilities of targets (B, T) under each expert, (B, T, K) float64."""
        with torch.no_grad(), self.precision.context(targets.device):
            return torch.stack([expert.log_prob(targets) for expert in experts], 2).double().cpu().numpy()

    def inputs(self, experts: Sequence[Prediction], shares: Tensor) -> GateInputs | None:
        """Return what the weights follow from besides scores: None without a gate."""
        if not self._weighing.by_gate:
            return None
        with self.precision.context(shares.device):
            return gate_inputs(experts, shares, self._sizes)

    def log_shares(self, shares: Tensor) -> np.ndarray | None:
        """Return the logs (B, T, K) of the fixed weights that a gate starts from; None without a gate."""
        return log_fixed_weights(shares, self._sizes) if self._weighing.by_gate else None

    def snapshot(self) -> Any:
        linear = [reader.snapshot() for reader in self.readers], torch.from_numpy(self._weights.copy())
        return linear if self.settings.domain == "linear" else (*linear, clone(self._exponents))

    def restore(self, snapshot: Any) -> None:
        for reader, of_reader in zip(self.readers, snapshot[0], strict=True):
            reader.restore(of_reader)
        self._weights, self._pending = snapshot[1].cpu().numpy().copy(), None
        self._exponents = clone(snapshot[2]) if self.settings.domain == "logistic" else None

    def fork(self) -> Self:
        other = copy.copy(self)
        other.readers, other._pending = tuple(reader.fork() for reader in self.readers), None
        other.inner = other.readers[0]
        return other

    def facts(self) -> dict[str, Any]:
        """Return the weights or the gate's A at the end of the text, the mean of the rows; with logistic the exponents too."""
        state = self._weights if len(self._weights) else self._weighing.start(1, len(self.names))
        if self._weighing.by_gate:
            facts = {"experts": self.names, "gate": state[:, 0].mean(0).round(4).tolist()}
        else:
            facts = {"experts": self.names, "weights": state.mean(0).round(6).tolist()}
        if self._exponents is not None:
            facts["exponents"] = [[round(a, 4) for a in each] for each in self._exponents.mean(0).tolist()]
        return facts


@dataclass(frozen=True)
class _Pending:
    """A block that was predicted and not yet observed."""

    following: Tensor
    """(B, T): the target of each position but the last, as the block's own tokens say."""
    experts: tuple[Prediction, ...]
    on: np.ndarray
    """(B, T, K) bool: which experts take part."""
    scores: np.ndarray
    """(B, T, K): their log-probabilities of `following`; zeros in a block of one position."""
    inputs: GateInputs | None
    factors: Factors | None = None
    """With `domain=logistic`, what was mixed, and `mixed`."""
    mixed: Mixed | None = None


def _names(reader: Reader) -> list[str]:
    """Return the names of the experts that a reader is made of, the innermost first."""
    if not reader.interpolates or reader.inner is None:
        return [reader.name]
    return [*_names(reader.inner), reader.name.rpartition("+")[2]]


def experts_of(
    readers: Sequence[Reader], predictions: Sequence[Prediction], tokens: Tensor
) -> tuple[tuple[Prediction, ...], Tensor]:
    """Return the predictions that readers are made of, and the share of each in its own reader's prediction, (B, T, K).

    The share is that of the interpolation with the reader below alone, and 1 for the innermost; 0: it takes no part.
    """
    experts: list[Prediction] = []
    shares: list[Tensor] = []
    for reader, prediction in zip(readers, predictions, strict=True):
        own, parts, reached = [], [], torch.ones_like(tokens, dtype=torch.float32)
        while reader.interpolates and reader.inner is not None:
            assert isinstance(prediction, Interpolation), f"the reader {reader.name} says that it interpolates"
            log_q, log_p = prediction.log_gates()
            own.append(prediction.q)
            parts.append(reached * log_q.exp())
            reached = reached * (log_p > -torch.inf)
            reader, prediction = reader.inner, prediction.p
        experts += [prediction, *reversed(own)]
        shares += [reached, *reversed(parts)]
    return tuple(experts), torch.stack(shares, 2)


def taking_part(shares: Tensor) -> np.ndarray:
    """Return whether each expert takes part at a position, (B, T, K) bool."""
    return (shares > 0).cpu().numpy()


def _log(weights: np.ndarray) -> np.ndarray:
    return np.log(weights, out=np.full_like(weights, -np.inf), where=weights > 0)


class MixtureScorer:
    """Scores all settings from one reading with the reader inside."""

    def __init__(self, inner: Reader, values: Mapping[str, Sequence[Any]], tokens: int) -> None:
        """Raises UserError for settings out of range, and where there is nothing to blend."""
        values = {**_tried(values), **values}
        points = (dict(zip(values, point, strict=True)) for point in itertools.product(*values.values()))
        self.points = [conforming(MixtureSettings(**point), "the grid") for point in points]
        if len({replace(point, share=1.0, rate=1.0, gate_rate=1.0, step=1.0) for point in self.points}) > 1:
            raise UserError(
                "a grid of the reader mixture has one of weights, domain, context and lengths; tune each alone"
            )
        self.reader, self.tokens = MixtureReader(inner, self.points[0]), tokens
        self._weighing, self._step = Weighing.of(self.points), np.array([[point.step] for point in self.points])
        self._weights = self._weighing.start(len(self.points), len(self.reader.names))
        self._exponents: Tensor | None = None
        self._nats = np.zeros(len(self.points))

    def update(self, block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        experts, shares = experts_of(self.reader.readers, [prediction], block.tokens)
        scores, on = self.reader.scores_of(experts, block.targets), taking_part(shares)
        shape = (len(self.points), *scores.shape[1:])
        scores, on = np.broadcast_to(scores, shape), np.broadcast_to(on, shape)
        if self.points[0].domain == "linear":
            inputs = self.reader.inputs(experts, shares)
            inputs = None if inputs is None else inputs.rows(len(self.points))
            along, self._weights = self._weighing.along(scores, on, inputs, self._weights)
            self._nats -= np.logaddexp.reduce(_log(along) + scores, 2).sum(1)
            return
        device, targets = block.tokens.device, block.targets.expand(len(self.points), -1)
        weights = BlockWeights(self._weighing, scores, on, self.reader.log_shares(shares), self._weights)
        factors = Factors(experts, shares, self.points[0].lengths, self.points[0].context)
        with self.reader.precision.context(device):
            mixed = mix(factors, weights.follow, targets, self._exponents, to_tensor(self._step, device))
        self._weights, self._exponents = weights.state, mixed.weights
        self._nats -= mixed.table.gather(2, targets[..., None]).double().sum((1, 2)).cpu().numpy()

    def scores(self) -> list[tuple[MixtureSettings, float]]:
        return list(zip(self.points, (self._nats / self.tokens).tolist(), strict=True))


def _tried(values: Mapping[str, Sequence[Any]]) -> Mapping[str, Sequence[Any]]:
    """Return the values that are tried for the weights and the domain of a grid."""
    logistic = "logistic" in values.get("domain", ())
    if "gate" in values.get("weights", ()):
        return {"gate_rate": GATE_RATES} | ({"step": GATED_STEPS} if logistic else {})
    return PRODUCT if logistic else {"share": SHARES, "rate": RATES}


KIND = ReaderKind(
    "mixture",
    "the readers inside it (cache+ngram+mixture) with weights that are learned while reading, in place of fixed ones",
    lambda context, settings: MixtureReader(context.wrapped(), settings),
    MixtureSettings,
    wraps=True,
    identity=("weights", "domain", "context", "lengths"),
    grid_scorer=lambda context, values, tokens: MixtureScorer(context.wrapped(), values, tokens),
)
