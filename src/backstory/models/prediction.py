"""Predictions: normalised beliefs over the next token at every position.

A softmax; a mixture of softmaxes (Yang et al. 2018, section 3); a pointer to earlier words (pointer networks, Vinyals et al.
2015); an interpolation of two predictions (span-based neural buffer, eq. 9, and the neural cache); any of them with a
temperature.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from backstory.models.adversarial_shift import shifted, worst_shift
from backstory.models.devices import compute_dtype
from backstory.models.kernels.linear_log_prob import ScoredTargets, linear_log_prob
from backstory.models.positions import all_positions, in_pieces, steps_at
from backstory.models.state import IDS, check_ids
from backstory.utils.arguments import checked, diagnosed

P = TypeVar("P", bound="Prediction")
TABLE = 1 << 22
"""Upper bound of the log-probabilities of whole distributions held at once (16 MiB, and a few copies)."""


@dataclass(frozen=True, eq=False)
class Activations:
    """Activations that produced a prediction; regularizers, caches and buffers read them. B batch, T time."""

    embedded: Tensor
    """(B, T, E): the words' vectors after word dropout and noise."""
    layers: tuple[Tensor, ...]
    """The raw (undropped) output (B, T, H_l) of each layer, first to last."""
    last_dropped: Tensor
    """(B, T, H): the last layer's output after its dropout."""
    head_input: Tensor
    """(B, T, D): the input of the head: the output of the last layer, or of the dual connection, after dropout."""
    head_raw: Tensor
    """(B, T, D): the same before that dropout."""
    inner_predictions: tuple["Prediction", ...] = ()
    """Predictions of inner levels by the same head; in training only."""

    @property
    def last_raw(self) -> Tensor:
        """(B, T, H): the last layer's output before its dropout."""
        return self.layers[-1]

    def select(self, rows: Tensor, times: Tensor) -> "Activations":
        """Return the positions (rows[i], times[i]) alone, as a batch of N texts of one step."""
        return Activations(
            steps_at(self.embedded, rows, times),
            tuple(steps_at(layer, rows, times) for layer in self.layers),
            steps_at(self.last_dropped, rows, times),
            steps_at(self.head_input, rows, times),
            steps_at(self.head_raw, rows, times),
        )


def _check(prediction: "Prediction", targets: Any = None) -> None:
    log_probs = prediction.log_probs()
    check_ids("targets", targets, log_probs.shape[2], log_probs, tuple(log_probs.shape[:2]))


def _refuse_wrong(log_prob: Callable[[Any, Tensor], Tensor]) -> Any:
    """Check the targets after `log_prob` has failed, and before it where their type or shape would give a wrong score.

    Targets (T, B) are as many as (B, T), and torch rounds 1.7 to a word: both would be scored without an error.
    """
    explained = diagnosed(_check)(log_prob)

    @wraps(log_prob)
    def refusing(prediction: "Prediction", targets: Tensor) -> Tensor:
        read = None if prediction.activations is None else prediction.activations.head_input
        if (
            not isinstance(targets, Tensor)
            or targets.dtype not in IDS
            or targets.is_meta
            or (read is not None and targets.shape != read.shape[:2])
        ):
            _check(prediction, targets)
        return explained(prediction, targets)

    return refusing


def _check_positions(prediction: "Prediction", rows: Any = None, times: Any = None) -> None:
    log_probs = prediction.log_probs()
    for name, index, size in (("rows", rows, len(log_probs)), ("times", times, log_probs.shape[1])):
        check_ids(name, index, size, log_probs, tuple(getattr(rows, "shape", ())))


def scored_once(log_prob: Callable[[P, Tensor], Tensor]) -> Callable[[P, Tensor], Tensor]:
    """Decorate a `log_prob`: without gradients, the same targets under the same autocast are not computed again.

    A reader and its metrics request the same scores. With gradients they are always computed. Softmaxes do not need it:
    `linear_log_prob` keeps their scores along with the residuals from which a reader learns without computing the
    logits again.
    """

    @wraps(log_prob)
    def once(prediction: P, targets: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return log_prob(prediction, targets)
        kind = targets.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        return prediction.scored.score(targets, dtype, lambda: (log_prob(prediction, targets), None))

    return once


@dataclass(frozen=True, eq=False)
class Prediction(ABC):
    """A belief over the next token at each of (B, T) positions, over V types."""

    activations: Activations | None = field(repr=False)
    scored: ScoredTargets = field(default_factory=ScoredTargets, init=False, repr=False)
    """The last scores, of softmaxes and of kinds whose `log_prob` is `scored_once`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "log_prob" in vars(cls):
            cls.log_prob = _refuse_wrong(cls.log_prob)
        if "select" in vars(cls):
            cls.select = diagnosed(_check_positions)(cls.select)
        if "tempered" in vars(cls):
            cls.tempered = checked(temperature=1e-30)(cls.tempered)

    @abstractmethod
    def log_prob(self, targets: Tensor) -> Tensor:
        """log p of the targets (B, T) -> (B, T). The cheap path: never more than a chunk of logits (2^24) at once."""

    @abstractmethod
    def log_probs(self) -> Tensor:
        """Return the whole distribution, (B, T, V), in at least float32; its exponentials sum to one."""

    @abstractmethod
    def select(self, rows: Tensor, times: Tensor) -> "Prediction":
        """Return the positions (rows[i], times[i]) alone: a prediction of shape (N, 1)."""

    def tables(self, rows: Tensor, times: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield some of the positions (rows[i], times[i]) at a time, in order, and the log-probabilities of all words there.

        A table is (n, V), of at most 2^22 elements or of one row, computed under the caller's autocast.
        """

        def table_of(piece: slice) -> tuple[Tensor]:
            return (self.select(rows[piece], times[piece]).log_probs()[:, 0],)

        for piece, (table,) in in_pieces(len(rows), TABLE, table_of):
            yield rows[piece], times[piece], table

    @checked(temperature=1e-30)
    def tempered(self, temperature: float) -> "Prediction":
        """Return the final distribution to the power 1 / temperature, normalised again.

        Free for a softmax. Any other kind computes all (B, T, V) log-probabilities, in chunks for `log_prob`.
        """
        return Tempered(self.activations, self, temperature)

    def parts(self) -> dict[str, Any]:
        """Return the parts of a compound prediction, and an empty dictionary for the others.

        An interpolation has `p`, `q`, `gate_logits` (B, T, 2) and `temperature`, a tempered prediction `p` and `temperature`.
        """
        return {}

    def output_information(self) -> list[tuple[Tensor, Tensor]]:
        """Return the expected Fisher information of each output weight of a softmax, summed over all positions.

        Each comes after its parameter, of the same shape. The other kinds of prediction return nothing.
        """
        return []

    def _selected(self, rows: Tensor, times: Tensor) -> Activations | None:
        """Return the activations at the positions (rows[i], times[i]) alone, if it has any; for `select`."""
        return self.activations and self.activations.select(rows, times)


@dataclass(frozen=True, eq=False)
class Softmax(Prediction):
    """softmax(hidden weight^T + bias)."""

    hidden: Tensor
    """(B, T, D)"""
    weight: Tensor
    """(V, D)"""
    bias: Tensor | None
    """(V,)"""

    def log_prob(self, targets: Tensor) -> Tensor:
        log_prob = _linear_log_prob(self, self.hidden, targets.flatten())
        return log_prob.view(targets.shape)

    def shifted_log_prob(self, targets: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """Return log p of the targets, and the same with their logits shifted (`worst_shift`): each (B, T).

        The second is no distribution.
        """
        log_prob = self.log_prob(targets)
        return log_prob, shifted(log_prob, worst_shift(self.hidden, self.weight, targets, epsilon))

    def log_probs(self) -> Tensor:
        return _wide_log_softmax(_logits(self.hidden, self.weight, self.bias))

    def output_information(self) -> list[tuple[Tensor, Tensor]]:
        """(p - p^2)^T h^2 of the weight (V, D), and p - p^2 of the bias (V,)."""
        p = self.log_probs().flatten(0, 1).exp()
        h = self.hidden.flatten(0, 1).to(p.dtype)
        variance = p - p * p
        of_weight = (self.weight, variance.t() @ (h * h))
        return [of_weight] if self.bias is None else [of_weight, (self.bias, variance.sum(0))]

    def select(self, rows: Tensor, times: Tensor) -> "Softmax":
        return replace(self, activations=self._selected(rows, times), hidden=steps_at(self.hidden, rows, times))

    def tempered(self, temperature: float) -> "Softmax":
        bias = None if self.bias is None else self.bias / temperature
        return replace(self, hidden=self.hidden / temperature, bias=bias)


@dataclass(frozen=True, eq=False)
class MixtureOfSoftmaxes(Prediction):
    """sum_k prior_k softmax(latent_k weight^T + bias) (Yang et al. 2018), summed in log space."""

    latents: Tensor
    """(B, T, K, D)"""
    log_prior: Tensor
    """(B, T, K), normalised over the K experts"""
    weight: Tensor
    """(V, D)"""
    bias: Tensor | None
    """(V,)"""

    def log_prob(self, targets: Tensor) -> Tensor:
        return torch.logsumexp(self.log_prior + self._expert_log_prob(targets), 2)

    def shifted_log_prob(self, targets: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """Return log p of the targets, and the same with their logits shifted (`worst_shift`) in every expert: each (B, T)."""
        experts = self._expert_log_prob(targets)
        shift = worst_shift(self.latents, self.weight, targets[..., None], epsilon)
        log_prob = torch.logsumexp(self.log_prior + experts, 2)
        return log_prob, torch.logsumexp(self.log_prior + shifted(experts, shift), 2)

    def _expert_log_prob(self, targets: Tensor) -> Tensor:
        """Return log p of the targets (B, T) under each expert, (B, T, K)."""
        experts = self.log_prior.shape[2]
        repeated = targets.flatten().repeat_interleave(experts)
        log_prob = _linear_log_prob(self, self.latents, repeated)
        return log_prob.view(*targets.shape, experts)

    def log_probs(self) -> Tensor:
        total: Tensor | None = None
        for k in range(self.log_prior.shape[2]):
            expert = _wide_log_softmax(_logits(self.latents[:, :, k], self.weight, self.bias))
            expert = expert + self.log_prior[:, :, k, None]
            total = expert if total is None else torch.logaddexp(total, expert)
        assert total is not None
        return total

    def select(self, rows: Tensor, times: Tensor) -> "MixtureOfSoftmaxes":
        latents, prior = (steps_at(x, rows, times) for x in (self.latents, self.log_prior))
        return replace(self, activations=self._selected(rows, times), latents=latents, log_prior=prior)


@dataclass(frozen=True, eq=False)
class Pointer(Prediction):
    """Attention weights of earlier positions, summed by the word at each; log 0 for every other word."""

    weights: Tensor
    """(B, T, N): they sum to one, or all are 0 if there is nothing to point to."""
    words: Tensor
    """(B, T, N) int64: the word at each position."""
    types: int
    """V"""

    def log_prob(self, targets: Tensor) -> Tensor:
        return _log((self.weights * (self.words == targets[..., None])).sum(2))

    def log_probs(self) -> Tensor:
        batch, time, _ = self.words.shape
        index = torch.arange(batch * time, device=self.words.device).view(batch, time, 1) * self.types + self.words
        return _log(_scatter_sum(index.flatten(), self.weights.flatten(), batch * time * self.types)).view(
            batch, time, -1
        )

    def select(self, rows: Tensor, times: Tensor) -> "Pointer":
        weights, words = (steps_at(x, rows, times) for x in (self.weights, self.words))
        return replace(self, activations=self._selected(rows, times), weights=weights, words=words)

    def confidence(self) -> Tensor:
        """Return (B, T): the largest weight of a position."""
        return self.weights.amax(2)


@dataclass(frozen=True, eq=False)
class Interpolation(Prediction):
    """(1 - lambda) p + lambda q with (lambda, 1 - lambda) = softmax(gate_logits / temperature); interpolations nest."""

    p: Prediction
    q: Prediction
    gate_logits: Tensor
    """(B, T, 2); the first is q's, as in the span buffer's policy. Minus infinity turns a part off exactly."""
    temperature: float = 1.0
    attention: Tensor | None = None
    """(B, T, N): the attention of q, if it attends to the spans of a buffer (`SpanBuffer.covered`); for pictures."""

    def log_gates(self) -> tuple[Tensor, Tensor]:
        """Return log lambda and log (1 - lambda), each (B, T)."""
        log_q, log_p = _wide_log_softmax(self.gate_logits / self.temperature).unbind(2)
        return log_q, log_p

    def log_prob(self, targets: Tensor) -> Tensor:
        log_q, log_p = self.log_gates()
        return torch.logaddexp(log_p + self.p.log_prob(targets), log_q + self.q.log_prob(targets))

    def log_probs(self) -> Tensor:
        log_q, log_p = self.log_gates()
        return torch.logaddexp(log_p[..., None] + self.p.log_probs(), log_q[..., None] + self.q.log_probs())

    def select(self, rows: Tensor, times: Tensor) -> "Interpolation":
        p, q = self.p.select(rows, times), self.q.select(rows, times)
        gates = steps_at(self.gate_logits, rows, times)
        attention = None if self.attention is None else steps_at(self.attention, rows, times)
        return replace(self, activations=self._selected(rows, times), p=p, q=q, gate_logits=gates, attention=attention)

    def parts(self) -> dict[str, Any]:
        return {"p": self.p, "q": self.q, "gate_logits": self.gate_logits, "temperature": self.temperature}


@dataclass(frozen=True, eq=False)
class Tempered(Prediction):
    """Another prediction to the power 1 / temperature, normalised again."""

    inner: Prediction
    temperature: float

    @scored_once
    def log_prob(self, targets: Tensor) -> Tensor:
        if self.temperature == 1:
            return self.inner.log_prob(targets)
        if isinstance(self.inner, Softmax):
            return self.inner.tempered(self.temperature).log_prob(targets)
        pieces = [
            torch.log_softmax(table / self.temperature, 1).gather(1, targets[r, t][:, None])
            for r, t, table in self.inner.tables(*all_positions(targets))
        ]
        return torch.cat(pieces).view(targets.shape)

    def log_probs(self) -> Tensor:
        if isinstance(self.inner, Softmax):  # the same products as in `log_prob`, with the same rounding in bfloat16
            return self.inner.tempered(self.temperature).log_probs()
        return torch.log_softmax(self.inner.log_probs() / self.temperature, -1)

    def select(self, rows: Tensor, times: Tensor) -> "Tempered":
        return replace(self, activations=self._selected(rows, times), inner=self.inner.select(rows, times))

    def parts(self) -> dict[str, Any]:
        return {"p": self.inner, "temperature": self.temperature}


def _linear_log_prob(prediction: Softmax | MixtureOfSoftmaxes, vectors: Tensor, targets: Tensor) -> Tensor:
    """Return log p of targets (N,) for vectors (..., D); computed once for the same targets."""
    learning = vectors.requires_grad  # a view that is made without gradients does not say so
    flat, weight, bias = vectors.flatten(0, -2), prediction.weight, prediction.bias
    return linear_log_prob(flat, weight, bias, targets, scored=prediction.scored, learning=learning)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    dtype = compute_dtype(hidden)
    return F.linear(hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))


def _wide_log_softmax(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _log(mass: Tensor) -> Tensor:
    """log, without a gradient where the mass is 0 or too small to have an inverse."""
    tiny = mass < torch.finfo(mass.dtype).tiny
    return mass.masked_fill(tiny, 1.0).log().masked_fill(tiny, -torch.inf)


def _scatter_sum(index: Tensor, values: Tensor, size: int) -> Tensor:
    """Sum values (K,) at an index (K,) of a table (size,); the same bits every time."""
    table = values.new_zeros(size)
    if table.is_cuda:  # scatter_add adds in any order there; index_put sorts first
        return table.index_put((index,), values, accumulate=True)
    return table.scatter_add(0, index, values)
