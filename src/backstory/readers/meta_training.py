"""Trains the meta-learner: its updates are unrolled over many segments, and the adjoint of the displacement runs back.

L_meta of Wolf et al. 2018 (section 3, appendix B) is the sum of the losses of all segments; here it is the mean of the last
K. With the features of g detached the adjoint is elementwise, A_{t-1} = (1 - r_t) A_t + grad_t / K, where grad_t is the
gradient that the update itself used: no second backward pass through the language model, and any subset of the weights has an
exact gradient of its own. So only every n-th weight is followed, times n, another subset in every stream: unbiased over them,
and small. The updates of the last K are looked back on with the gates that g sets now.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backstory.config import to_dict
from backstory.config.readers import DynamicSettings, GateSettings, MetaTraining
from backstory.models import LanguageModel, Precision
from backstory.models.eager_optimizer import eager
from backstory.models.kernels.factored_gradients import AnyGradient, whole
from backstory.readers.dynamic import DynamicEvaluation, RootMeanSquare
from backstory.readers.gradient_statistics import Statistics
from backstory.readers.learned import LARGE_GRADIENT, GateNetwork, Learned, LearnedReader, logs_of
from backstory.readers.moving_weights import MovingWeights
from backstory.utils.errors import NonFiniteError, UserError


class UpdateRecord(NamedTuple):
    """An update of the n weights that are followed."""

    grad: Tensor
    """grad_t (n,)"""
    delta: Tensor
    """delta_{t-1} (n,)"""
    loss: Tensor
    """Loss of the segment as g reads it."""
    nats: float
    """Its mean loss."""


@dataclass
class Unrolled:
    """Record of updates, for the n weights that are followed."""

    indices: Tensor
    """(n,): the weights."""
    parts: list[tuple[int, slice, Tensor]]
    """For each tensor of the model: its number, which of the n lie in it, and where in it."""
    steps: int
    """K: the last updates that are stored."""
    updates: deque[UpdateRecord] = field(default_factory=deque)


def follow(weights: MovingWeights, offset: int, every: int, steps: int) -> Unrolled:
    """Follow every `every`-th weight from an offset on, for `steps` updates."""
    indices, parts = torch.arange(offset, len(weights), every, device=weights.delta.device), []
    for tensor, region in enumerate(weights.regions):
        first, last = (max(0, -(-(edge - offset) // every)) for edge in (region.start, region.stop))
        if first < last:
            parts.append((tensor, slice(first, last), indices[first:last] - region.start))
    return Unrolled(indices, parts, steps)


class Recording(LearnedReader):
    """A learned reader that records each update for `backward`."""

    unrolled: Unrolled

    @torch.no_grad()
    def learn(self, loss: Tensor, gradients: list[AnyGradient]) -> None:
        unrolled, delta = self.unrolled, self.weights.delta
        grad = delta.new_zeros(len(unrolled.indices))
        for tensor, part, inside in unrolled.parts:
            if (gradient := whole(gradients[tensor])) is not None:
                grad[part] = gradient.reshape(-1)[inside].to(delta.dtype)
        before = delta[unrolled.indices]
        super().learn(loss, gradients)
        unrolled.updates.append(UpdateRecord(grad, before, self.gated.loss, loss.item()))
        if len(unrolled.updates) > unrolled.steps:
            unrolled.updates.popleft()


def backward(reader: LearnedReader, unrolled: Unrolled, scale: float) -> None:
    """Add the gradient of the mean of the unrolled losses to the meta-learner's parameters."""
    gated, steps = reader.gated, len(unrolled.updates)
    rate, decay = gated.base.rate[unrolled.indices], gated.base.decay[unrolled.indices]
    static = None if gated.static is None else gated.static[unrolled.indices]
    adjoint = torch.zeros_like(rate)
    for back, update in enumerate(reversed(unrolled.updates)):
        grad, delta = update.grad, update.delta
        features = gated.features(grad, delta, unrolled.indices)
        with torch.enable_grad():
            parts = [gated.network(features[:, part], update.loss, i) for i, part, _ in unrolled.parts]
            c = torch.cat(parts, 1)
        gates = c.detach().exp()
        pull = decay * gates[1]
        # The derivative of min(1, r) is 0 at its bound.
        pulled = delta if static is None else delta + static
        d_c = [-adjoint * grad * rate * gates[0], torch.where(pull < 1, -adjoint * pulled * pull, 0.0)]
        if static is not None:
            flush = decay * gates[2]
            d_c.append(torch.where(flush < 1, adjoint * static * flush, 0.0))
        if back:  # no loss depends on the last update
            c.backward(torch.stack(d_c) * scale)
        adjoint = (1 - pull.clamp(max=1.0)) * adjoint + grad / steps


def train_gates(
    model: LanguageModel,
    statistics: Statistics,
    ids: np.ndarray,
    first: int,
    base: DynamicSettings,
    gates: GateSettings,
    training: MetaTraining,
    *,
    precision: Precision | None = None,
    progress: Callable[[int, int], None] | None = None,
    report: Callable[[int, float], None] | None = None,
) -> Learned:
    """Train a meta-learner on streams out of a text (N,), around a dynamic evaluation with tuned settings.

    `report` is called with the tokens read and the mean nats of the last unrolling. Raises UserError and NonFiniteError.
    """
    length = _stream_length(len(ids), base, training)
    random = np.random.default_rng(training.seed)
    learned = _untrained(SpreadReader(model, base, statistics, precision), ids, first, gates, training)
    reader = Recording(model, learned, statistics, precision)
    parameters = list(learned.network.parameters())
    piece = base.segment * training.every
    pieces = training.streams * (length // piece)
    optimizer = eager(torch.optim.Adam)(parameters, lr=training.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, pieces)
    done = 0
    for _ in range(training.streams):
        begin = int(random.integers(0, len(ids) - length, endpoint=True))
        offset = int(random.integers(0, training.sample))
        reader.unrolled = follow(reader.weights, offset, training.sample, training.steps)
        reader.start(1)
        for start in range(begin, begin + length - piece + 1, piece):
            read_segments(reader, ids, first, start, training.every)
            optimizer.zero_grad()
            backward(reader, reader.unrolled, training.sample)
            norm = torch.nn.utils.clip_grad_norm_(parameters, training.clip)
            if not torch.isfinite(norm):
                raise NonFiniteError(
                    "the meta-learner's gradient is not a number; lower its learning rate or base rate"
                )
            optimizer.step()
            schedule.step()
            done += 1
            learned.record["tokens"] += piece
            if report is not None:
                latest = list(reader.unrolled.updates)[-training.every :]
                report(learned.record["tokens"], sum(update.nats for update in latest) / training.every)
            if progress is not None:
                progress(done, pieces)
    learned.network.requires_grad_(False)
    return learned


def _stream_length(tokens: int, base: DynamicSettings, training: MetaTraining) -> int:
    """Return the tokens of a stream out of a text of so many. Raises UserError if no meta-learner can be trained on it."""
    if base.rule != "rms" or base.clip:
        unusable = f"the rule {base.rule}" if base.rule != "rms" else "clipped gradients"
        raise UserError(f"a meta-learner needs dynamic evaluation with the rule rms and no clip, not {unusable}")
    length = min(training.stream, tokens - 1)
    if length < base.segment * training.every:
        raise UserError(
            f"a stream of {length:,} tokens is shorter than {training.every} segments of {base.segment}, after which the "
            "meta-learner is updated; use a longer text, a smaller --skip or --training.every, or shorter segments"
        )
    return length


def _untrained(
    measuring: "SpreadReader", ids: np.ndarray, first: int, gates: GateSettings, training: MetaTraining
) -> Learned:
    """Return a meta-learner with random weights, after measuring the spread of the gradients at the beginning of the text.

    The reader that measures should be freed then: weights that move take several times the memory of the model.
    """
    with torch.random.fork_rng(devices=[]):  # the random numbers of the caller go on as they would have
        torch.default_generator.manual_seed(training.seed)
        network = GateNetwork(gates, len(measuring.weights.names)).to(measuring.weights.delta.device)
    return Learned(
        network, measuring.settings, measure_spread(measuring, ids, first), to_dict(training) | {"tokens": 0}
    )


def read_segments(reader: DynamicEvaluation, ids: np.ndarray, first: int, start: int, segments: int) -> None:
    """Read so many segments of the text from token `start` on."""
    size, device = reader.settings.segment, reader.weights.delta.device
    for at in range(start, start + segments * size, size):
        before = [first] if at == 0 else ids[at - 1 : at]
        piece = torch.from_numpy(np.concatenate([before, ids[at : at + size]]).astype(np.int64)).to(device)[None]
        reader.predict(piece[:, :-1])
        reader.observe(piece[:, 1:])


class SpreadReader(DynamicEvaluation):
    """Dynamic evaluation that measures the logs of its gradients."""

    def start(self, batch_size: int) -> None:
        super().start(batch_size)
        self.moments: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def learn(self, loss: Tensor, gradients: list[AnyGradient]) -> None:
        assert isinstance(self.rule, RootMeanSquare)
        rate, pieces = self.rule.rate, []
        for region, gradient in zip(self.weights.regions, map(whole, gradients), strict=True):
            if gradient is None:
                continue
            flat = gradient.flatten()
            logs = logs_of(flat.to(rate.dtype), rate[region] / (LARGE_GRADIENT * self.settings.rate))
            # Weights that the segment does not touch, such as vectors of absent words, are left out.
            pieces.append(logs[flat != 0])
        variance, mean = torch.var_mean(torch.cat(pieces))
        self.moments.append((mean, variance))
        super().learn(loss, gradients)


def measure_spread(reader: SpreadReader, ids: np.ndarray, first: int, segments: int = 20) -> tuple[float, float]:
    """Return the mean and deviation, over the first segments of the text, of log |grad| in the unit of its feature."""
    reader.start(1)
    read_segments(reader, ids, first, 0, min(segments, len(ids) // reader.settings.segment))
    means, variances = (torch.stack(values) for values in zip(*reader.moments, strict=True))
    return means.mean().item(), max((variances.mean() + means.var(correction=0)).sqrt().item(), 1e-3)
