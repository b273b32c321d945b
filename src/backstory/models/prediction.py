"""A Prediction is a normalised belief over the next token at every position: softmax, mixture of softmaxes, or a blend."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backstory.config.arguments import checked, diagnosed
from backstory.models.devices import compute_dtype
from backstory.models.kernels.linear_log_prob import CHUNK, linear_log_prob
from backstory.models.shape_checks import check_ids


@dataclass(frozen=True)
class Activations:
    """What produced a prediction; regularizers, caches and buffers read it. B batch, T time."""

    embedded: Tensor
    """(B, T, E): the words' vectors after word dropout and noise."""
    layers: tuple[Tensor, ...]
    """The raw (undropped) output (B, T, H_l) of each layer, first to last."""
    last_dropped: Tensor
    """(B, T, H): the last layer's output after its dropout."""
    head_input: Tensor
    """(B, T, D): what the head read: the last layer's output or, of a dual connection, its layer's, after dropout."""
    head_raw: Tensor
    """(B, T, D): the same before that dropout."""
    auxiliary: tuple["Prediction", ...] = ()
    """Of inner levels that are to predict as well, by the same head; in training only."""

    @property
    def last_raw(self) -> Tensor:
        """(B, T, H): the last layer's output before its dropout."""
        return self.layers[-1]

    def select(self, rows: Tensor, times: Tensor) -> "Activations":
        """Only the positions (rows[i], times[i]), as a batch of N rows of one step."""
        at = rows, times
        return Activations(
            self.embedded[at].unsqueeze(1),
            tuple(layer[at].unsqueeze(1) for layer in self.layers),
            self.last_dropped[at].unsqueeze(1),
            self.head_input[at].unsqueeze(1),
            self.head_raw[at].unsqueeze(1),
        )


def _check(prediction: "Prediction", targets: Any = None) -> None:
    whole = prediction.log_probs()
    check_ids("targets", targets, whole.shape[2], whole, tuple(whole.shape[:2]))


def _check_places(prediction: "Prediction", rows: Any = None, times: Any = None) -> None:
    whole = prediction.log_probs()
    for name, places, size in (("rows", rows, len(whole)), ("times", times, whole.shape[1])):
        check_ids(name, places, size, whole, tuple(getattr(rows, "shape", ())))


@dataclass(frozen=True)
class Prediction(ABC):
    """A belief over the next token at each of (B, T) positions, over V types."""

    activations: Activations | None = field(repr=False)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "log_prob" in vars(cls):
            cls.log_prob = diagnosed(_check)(cls.log_prob)
        if "select" in vars(cls):
            cls.select = diagnosed(_check_places)(cls.select)
        if "tempered" in vars(cls):
            cls.tempered = checked(temperature=1e-30)(cls.tempered)

    @abstractmethod
    def log_prob(self, targets: Tensor) -> Tensor:
        """log p of the targets (B, T) -> (B, T). The cheap path: never more than a chunk of logits (2^24) at once."""

    @abstractmethod
    def log_probs(self) -> Tensor:
        """The whole distribution, (B, T, V), in at least float32; its exponentials sum to one."""

    @abstractmethod
    def select(self, rows: Tensor, times: Tensor) -> "Prediction":
        """Only the positions (rows[i], times[i]): a prediction of shape (N, 1)."""

    @checked(temperature=1e-30)
    def tempered(self, temperature: float) -> "Prediction":
        """The final distribution to the power 1 / temperature, normalised again.

        Free for a softmax. Any other kind computes all (B, T, V) log-probabilities, in chunks for `log_prob`.
        """
        return Tempered(self.activations, self, temperature)

    def parts(self) -> dict[str, Any]:
        """What it is made of: of a blend predictions `p` and `q`, `gate_logits` (B, T, 2) and `temperature`, of what was
        tempered `p` and `temperature`; else empty."""
        return {}

    def _selected(self, rows: Tensor, times: Tensor) -> Activations | None:
        return self.activations and self.activations.select(rows, times)


@dataclass(frozen=True)
class Softmax(Prediction):
    """softmax(hidden weight^T + bias)."""

    hidden: Tensor
    """(B, T, D)"""
    weight: Tensor
    """(V, D)"""
    bias: Tensor | None
    """(V,)"""

    def log_prob(self, targets: Tensor) -> Tensor:
        return linear_log_prob(self.hidden.flatten(0, 1), self.weight, self.bias, targets.flatten()).view(targets.shape)

    def shifted_log_prob(self, targets: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """log p of the targets (B, T), and that with their logits shifted (`worst_shift`), no distribution: each (B, T)."""
        log_prob = self.log_prob(targets)
        return log_prob, shifted(log_prob, worst_shift(self.hidden, self.weight, targets, epsilon))

    def log_probs(self) -> Tensor:
        return _wide_log_softmax(_logits(self.hidden, self.weight, self.bias))

    def select(self, rows: Tensor, times: Tensor) -> "Softmax":
        return replace(self, activations=self._selected(rows, times), hidden=self.hidden[rows, times].unsqueeze(1))

    def tempered(self, temperature: float) -> "Softmax":
        bias = None if self.bias is None else self.bias / temperature
        return replace(self, hidden=self.hidden / temperature, bias=bias)


@dataclass(frozen=True)
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
        return torch.logsumexp(self.log_prior + self._each_log_prob(targets), 2)

    def shifted_log_prob(self, targets: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """log p of the targets (B, T), and that with their logits shifted (`worst_shift`) in every expert: each (B, T)."""
        each = self._each_log_prob(targets)
        shift = worst_shift(self.latents, self.weight, targets[..., None], epsilon)
        log_prob = torch.logsumexp(self.log_prior + each, 2)
        return log_prob, torch.logsumexp(self.log_prior + shifted(each, shift), 2)

    def _each_log_prob(self, targets: Tensor) -> Tensor:
        """log p of the targets (B, T) under each expert, (B, T, K)."""
        experts = self.log_prior.shape[2]
        repeated = targets.flatten().repeat_interleave(experts)
        each = linear_log_prob(self.latents.flatten(0, 2), self.weight, self.bias, repeated)
        return each.view(*targets.shape, experts)

    def log_probs(self) -> Tensor:
        total: Tensor | None = None
        for k in range(self.log_prior.shape[2]):
            expert = _wide_log_softmax(_logits(self.latents[:, :, k], self.weight, self.bias))
            expert = expert + self.log_prior[:, :, k, None]
            total = expert if total is None else torch.logaddexp(total, expert)
        assert total is not None
        return total

    def select(self, rows: Tensor, times: Tensor) -> "MixtureOfSoftmaxes":
        latents, prior = self.latents[rows, times].unsqueeze(1), self.log_prior[rows, times].unsqueeze(1)
        return replace(self, activations=self._selected(rows, times), latents=latents, log_prior=prior)


@dataclass(frozen=True)
class Blend(Prediction):
    """(1 - lambda) p + lambda q with (lambda, 1 - lambda) = softmax(gate_logits / temperature); blends nest."""

    p: Prediction
    q: Prediction
    gate_logits: Tensor
    """(B, T, 2); the first is q's, as in the span buffer's policy. Minus infinity shuts a part off exactly."""
    temperature: float = 1.0
    attention: Tensor | None = None
    """(B, T, N): what q attended to, where it is one of a buffer's spans (`SpanBuffer.covered`); for looking at."""

    def log_gates(self) -> tuple[Tensor, Tensor]:
        """log lambda and log (1 - lambda), each (B, T)."""
        log_q, log_p = _wide_log_softmax(self.gate_logits / self.temperature).unbind(2)
        return log_q, log_p

    def log_prob(self, targets: Tensor) -> Tensor:
        log_q, log_p = self.log_gates()
        return torch.logaddexp(log_p + self.p.log_prob(targets), log_q + self.q.log_prob(targets))

    def log_probs(self) -> Tensor:
        log_q, log_p = self.log_gates()
        return torch.logaddexp(log_p[..., None] + self.p.log_probs(), log_q[..., None] + self.q.log_probs())

    def select(self, rows: Tensor, times: Tensor) -> "Blend":
        p, q = self.p.select(rows, times), self.q.select(rows, times)
        gates = self.gate_logits[rows, times].unsqueeze(1)
        attention = None if self.attention is None else self.attention[rows, times].unsqueeze(1)
        return replace(self, activations=self._selected(rows, times), p=p, q=q, gate_logits=gates, attention=attention)

    def parts(self) -> dict[str, Any]:
        return {"p": self.p, "q": self.q, "gate_logits": self.gate_logits, "temperature": self.temperature}


@dataclass(frozen=True)
class Tempered(Prediction):
    """Another prediction to the power 1 / temperature, normalised again."""

    inner: Prediction
    temperature: float

    def log_prob(self, targets: Tensor) -> Tensor:
        if self.temperature == 1:
            return self.inner.log_prob(targets)
        if isinstance(self.inner, Softmax):
            return self.inner.tempered(self.temperature).log_prob(targets)
        rows, times = (index.flatten() for index in torch.where(torch.ones_like(targets, dtype=torch.bool)))
        size = max(1, CHUNK // max(1, self.inner.select(rows[:1], times[:1]).log_probs().shape[-1]))
        pieces = [
            Tempered(None, self.inner.select(r, t), self.temperature)
            .log_probs()
            .squeeze(1)
            .gather(1, targets[r, t][:, None])
            for r, t in zip(rows.split(size), times.split(size), strict=True)
        ]
        return torch.cat(pieces).view(targets.shape)

    def log_probs(self) -> Tensor:
        if isinstance(self.inner, Softmax):  # the same products as those of `log_prob`, rounded alike in bfloat16
            return self.inner.tempered(self.temperature).log_probs()
        return torch.log_softmax(self.inner.log_probs() / self.temperature, -1)

    def select(self, rows: Tensor, times: Tensor) -> "Tempered":
        return replace(self, activations=self._selected(rows, times), inner=self.inner.select(rows, times))

    def parts(self) -> dict[str, Any]:
        return {"p": self.inner, "temperature": self.temperature}


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    dtype = compute_dtype(hidden)
    return F.linear(hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))


def _wide_log_softmax(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))


@dataclass(frozen=True)
class Pointer(Prediction):
    """The weights of earlier places, summed by the word of each; log 0 for every other word."""

    weights: Tensor
    """(B, T, N): they add up to one; or all are 0 where there is no place to point to."""
    words: Tensor
    """(B, T, N) int64: the word of each place."""
    types: int
    """V"""

    def log_prob(self, targets: Tensor) -> Tensor:
        return _log((self.weights * (self.words == targets[..., None])).sum(2))

    def log_probs(self) -> Tensor:
        rows, steps, _ = self.words.shape
        place = torch.arange(rows * steps, device=self.words.device).view(rows, steps, 1) * self.types + self.words
        return _log(_sums(place.flatten(), self.weights.flatten(), rows * steps * self.types)).view(rows, steps, -1)

    def select(self, rows: Tensor, times: Tensor) -> "Pointer":
        chosen = {name: getattr(self, name)[rows, times].unsqueeze(1) for name in ("weights", "words")}
        return replace(self, activations=self._selected(rows, times), **chosen)

    def confidence(self) -> Tensor:
        """(B, T): the weight of the likeliest place."""
        return self.weights.amax(2)


def _log(mass: Tensor) -> Tensor:
    """log, with no gradient where there is no mass, or less than what has an inverse."""
    none = mass < torch.finfo(mass.dtype).tiny
    return mass.masked_fill(none, 1.0).log().masked_fill(none, -torch.inf)


def _sums(places: Tensor, values: Tensor, size: int) -> Tensor:
    """Values (K,) added up at places (K,) of a table (size,); the same bits come out each time."""
    table = values.new_zeros(size)
    if table.is_cuda:  # scatter_add adds in any order there; this one sorts first
        return table.index_put((places,), values, accumulate=True)
    return table.scatter_add(0, places, values)


LARGEST = 80.0
"""The most nats that a logit is shifted by; the exponential of more overflows float32."""


@torch.no_grad()
def worst_shift(hidden: Tensor, weight: Tensor, targets: Tensor, epsilon: float) -> Tensor:
    """What the target's logit w_y h loses to the worst change of w_y inside a ball of radius epsilon |w_y|.

    hidden (..., D), weight (V, D), targets (...) or what broadcasts to it -> (...), in at least float32, without a
    gradient: epsilon |w_y| |h| where w_y h > 0, elsewhere 0. Every position has its own, also where a target repeats.
    """
    wide, rows = torch.promote_types(hidden.dtype, torch.float32), weight[targets]
    of_rows, of_hidden = (torch.linalg.vector_norm(vectors, dim=-1, dtype=wide) for vectors in (rows, hidden))
    acute = (hidden * rows).sum(-1) > 0
    return torch.where(acute, (epsilon * of_rows * of_hidden).clamp(max=LARGEST), 0.0)


def shifted(log_prob: Tensor, shift: Tensor) -> Tensor:
    """log p of the targets once their logits are lower by `shift` (at most LARGEST); same shapes.

    With p = e^z / (e^z + R) of the logit z and the other words' R, e^(z - s) / (e^(z - s) + R) = p / (p + (1 - p) e^s):
    no logit is needed again, and the gradient goes through log p.
    """
    return log_prob - torch.log1p(-torch.expm1(log_prob) * torch.expm1(shift))
