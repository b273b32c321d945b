"""A language model with dynamic weights (Wolf et al. 2018, eqs. 2 and 3): dynamic evaluation whose gates a meta-learner g sets.

Each weight has gates of its own: theta_t = f theta_{t-1} - i grad + z theta_0, elementwise, as delta <- (1 - r) delta - i
grad with f = 1 - r, z = r (tied). The paper prints + i grad. The gates are those of dynamic evaluation times exp(c), c = 3
tanh(o / 3); the output o of an untrained g is 0.
"""

import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from backstory.config import from_dict, to_dict
from backstory.config.plugin_files import plugin_flags
from backstory.config.readers import DynamicSettings, GateSettings, LearnedSettings, completed
from backstory.models import LanguageModel, Precision
from backstory.models.kernels import compiled
from backstory.models.kernels.compiled import BOUND
from backstory.models.kernels.factored_gradients import AnyGradient
from backstory.readers.dynamic import DynamicEvaluation, RootMeanSquare, displace
from backstory.readers.gradient_statistics import Statistics
from backstory.readers.kind import BuildContext, ReaderKind, saved_in
from backstory.readers.moving_weights import MovingWeights, Piece, Update
from backstory.runs.run import check_tensors, load_weights, saved_dtype
from backstory.runs.run import weights as parameters
from backstory.storage.atomic import sweep_abandoned
from backstory.storage.checkpoint import DamagedCheckpoint, read_checkpoint, write_checkpoint
from backstory.storage.documents import has_fields
from backstory.utils.errors import UserError, pasted

LARGE_GRADIENT = 10.0
"""Unit of a feature: |grad| / (RMS + eps) that counts as large."""
MANY_STEPS = 200.0
"""Unit of a feature: steps of the size eta RMS / (RMS + eps) that make a displacement large."""
TINY = 1e-30
WIDEST = -math.log(TINY)
"""Logs of gradients and displacements lie within plus and minus this."""
FADING = 0.05
"""Weight of a segment's loss in the running mean of the losses."""


class GateNetwork(nn.Module):
    """One network for all weights: features (6, n) of n weights and the segment's loss to c (2 or 3, n)."""

    def __init__(self, settings: GateSettings, tensors: int) -> None:
        """`tensors`: how many parameters of the model move."""
        super().__init__()
        self.settings = settings
        bound = 7**-0.5
        self.weight = nn.Parameter(torch.empty(settings.hidden, 6).uniform_(-bound, bound))
        self.loss = nn.Parameter(torch.empty(settings.hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(tensors if settings.per_tensor else 1, settings.hidden))
        nn.init.uniform_(self.bias[:1], -bound, bound)
        with torch.no_grad():
            self.bias[1:] = self.bias[:1]
        self.output = nn.Parameter(torch.zeros(2 if settings.tied else 3, settings.hidden))
        self.output_bias = nn.Parameter(torch.zeros(2 if settings.tied else 3))

    def forward(self, features: Tensor, loss: Tensor, tensor: int, workspace: "Workspace | None" = None) -> Tensor:
        """c, by which log gates change: rows i, r and, untied, z. With `workspace`, without a graph, it is written there."""
        hidden, c = (None, None) if workspace is None else (workspace.hidden, workspace.c)
        bias = self.hidden_bias(tensor, loss)
        hidden = torch.addmm(bias[:, None], self.weight, features, out=hidden).relu_()
        o = torch.addmm(self.output_bias[:, None], self.output, hidden, out=c)
        # 3 tanh(o / 3); PyTorch's sigmoid takes a tenth of its tanh's time on a CPU, and 0 stays exactly 0.
        share = torch.sigmoid(o.mul_(2 / BOUND), out=c)
        return torch.mul(share, 2 * BOUND, out=c).sub_(BOUND)

    def hidden_bias(self, tensor: int, loss: Tensor) -> Tensor:
        """(hidden,): biases of the hidden units for the weights of a tensor and the segment's loss."""
        return self.bias[tensor if self.settings.per_tensor else 0] + self.loss * loss


class Workspace(NamedTuple):
    """Memory that is written anew for every n weights: fresh memory would have to be mapped, which takes longer than g."""

    features: Tensor
    """(6, n)"""
    hidden: Tensor
    """(hidden, n)"""
    c: Tensor
    """(2 or 3, n)"""


class Features:
    """Features of n weights for g: (6, n), each within [-3, 3].

    log of |grad| in units of 10 (RMS + eps); sign of grad; log of |delta| in units of 200 steps; sign of grad delta;
    log RMS; log of the root of the Fisher information. The first and the last two are standardised over all weights.
    """

    def __init__(self, base: RootMeanSquare, fisher: Tensor | None, spread: tuple[float, float]) -> None:
        """`spread`: mean and standard deviation of the first feature, before it is standardised."""
        self.base, rms = base, base.rms
        self.mean, self.deviation = spread
        self.constant = torch.stack(
            [standardised(rms), torch.zeros_like(rms) if fisher is None else standardised(fisher)]
        )
        self.constant.clamp_(-BOUND, BOUND)

    @cached_property
    def gradient_scale(self) -> Tensor:
        """(N,)"""
        return self.base.rate / (LARGE_GRADIENT * self.base.settings.rate)

    @cached_property
    def displacement_scale(self) -> Tensor:
        """(N,)"""
        return 1 / (MANY_STEPS * self.base.rate * self.base.rms).clamp_(min=TINY)

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of the log of the gradient before it is standardised."""
        return self.mean - BOUND * self.deviation, self.mean + BOUND * self.deviation

    def __call__(self, grad: Tensor, delta: Tensor, region: slice | Tensor, out: Tensor | None = None) -> Tensor:
        """Return the features (6, n) of the weights at `region`, with their gradient and displacement (n,)."""
        values = grad.new_empty(6, len(grad)) if out is None else out
        logs_of(grad, self.gradient_scale[region], values[0], self.bounds).sub_(self.mean).div_(self.deviation)
        torch.sign(grad, out=values[1])
        logs_of(delta, self.displacement_scale[region], values[2], (-BOUND, BOUND))
        torch.sign(delta, out=values[3])
        values[3].mul_(values[1])
        values[4:] = self.constant[:, region]
        return values


def logs_of(
    values: Tensor, scale: Tensor, out: Tensor | None = None, within: tuple[float, float] = (-WIDEST, WIDEST)
) -> Tensor:
    """Return log |values scale| between two bounds, elementwise (n,)."""
    # Bounded before the logarithm is taken, which is one pass for both bounds and keeps 0 out of it.
    return torch.mul(values, scale, out=out).abs_().clamp_(*exponentials(within)).log_()


def exponentials(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return exp of two bounds of a logarithm, as positive floats."""
    low, high = (math.exp(max(-WIDEST, min(bound, WIDEST))) for bound in bounds)
    return low, high


def standardised(values: Tensor) -> Tensor:
    """Return log of values (N,), of mean 0 and deviation 1."""
    logs = values.clamp(min=TINY).log_()
    return logs.sub_(logs.mean()).div_(logs.std().clamp_(min=1e-6))


class GatedUpdate(Update):
    """Update of dynamic evaluation with its gates multiplied by the output of g."""

    def __init__(self, base: RootMeanSquare, network: GateNetwork, features: Features, weights: MovingWeights) -> None:
        self.base, self.network, self.features = base, network, features
        self.static = None if network.settings.tied else torch.cat([p.flatten() for p in weights.static])
        self.loss = weights.delta.new_zeros(())
        """Loss of the segment, relative to the running mean, within [-2, 1]."""
        self._largest, self._rows = weights.largest, (6, network.settings.hidden, len(network.output))

    @cached_property
    def memory(self) -> Tensor:
        """Memory in which every piece is computed."""
        return self.loss.new_empty(self._largest * sum(self._rows))

    def __call__(self, piece: Piece, grad: Tensor) -> None:
        region, delta = piece.region, piece.delta
        workspace = self._workspace(len(grad))
        self.features(grad, delta, region, workspace.features)
        gates = self.network(workspace.features, self.loss, piece.tensor, workspace).exp_()
        decay = gates[1].mul_(self.base.decay[region]).clamp_(max=1.0)
        displace(delta, gates[0].mul_(grad), decay, self.base.rate[region])
        if self.static is not None:
            back = gates[2].mul_(self.base.decay[region]).clamp_(max=1.0)
            delta.add_(back.sub_(decay).mul_(self.static[region]))

    def at_once(self, piece: Piece, grad: AnyGradient) -> bool:
        tensor, region, delta, static, moved = piece
        network, features, step = self.network, self.features, self.base.step
        if not isinstance(grad, Tensor) or not compiled.takes(grad, features.constant, delta, static, moved):
            return False
        log_rms, log_fisher = features.constant[:, region]
        weights = compiled.GatedWeights(grad, self.base.rms[region], log_rms, log_fisher, static, delta, moved)
        layers = network.weight, network.hidden_bias(tensor, self.loss), network.output, network.output_bias
        low, high = (LARGE_GRADIENT * bound for bound in exponentials(features.bounds))
        scales = (
            low,
            high,
            features.mean + math.log(LARGE_GRADIENT),
            features.deviation,
            MANY_STEPS * features.base.step.rate,
        )
        compiled.gated_displace(weights, layers, compiled.FeatureScales(*scales), step)
        return True

    def _workspace(self, count: int) -> Workspace:
        """Return a workspace for so many weights."""
        parts = self.memory[: count * sum(self._rows)].split([count * rows for rows in self._rows])
        return Workspace(*(part.view(rows, count) for part, rows in zip(parts, self._rows, strict=True)))


NAME = "gates"


@dataclass(frozen=True)
class Learned:
    """A trained meta-learner: the network, and the dynamic evaluation that its gates multiply."""

    network: GateNetwork
    base: DynamicSettings
    spread: tuple[float, float]
    """Mean and deviation of the log gradient, by which that feature is standardised."""
    record: dict[str, Any]
    """Record of its training."""


class LearnedReader(DynamicEvaluation):
    """Dynamic evaluation with gates set by the meta-learner."""

    name = "learned"

    def __init__(
        self,
        model: LanguageModel,
        learned: Learned,
        statistics: Statistics,
        precision: Precision | None = None,
        scales: LearnedSettings | None = None,
    ) -> None:
        """Raises UserError where the statistics are not of these weights."""
        super().__init__(model, learned.base, statistics, precision)
        assert isinstance(self.rule, RootMeanSquare)
        if learned.network.settings.per_tensor and len(learned.network.bias) != len(self.weights.names):
            raise UserError("the meta-learner was trained for other weights of the model; train it again")
        self.learned, self.scales, base = learned, scales or LearnedSettings(), self.rule
        learned.network.to(self.weights.delta.device, self.weights.delta.dtype)
        fisher = statistics.fisher(self.weights) if learned.network.settings.fisher else None
        features = Features(base, fisher, learned.spread)
        scaled = replace(
            learned.base,
            rate=learned.base.rate * self.scales.rate,
            decay=learned.base.decay * self.scales.decay,
        )
        self.rule = RootMeanSquare(scaled, base.rms, self.weights.regions)
        self.gated = GatedUpdate(self.rule, learned.network, features, self.weights)
        self._mean: Tensor | None = None
        """Running mean of the segments' losses."""

    def facts(self) -> dict[str, Any]:
        parts = [*vars(self.gated).values(), *vars(self.gated.features).values()]
        tensors = [part for part in parts if isinstance(part, Tensor)]
        facts = super().facts()
        size = facts["bytes"] + sum(tensor.nbytes for tensor in tensors)
        return facts | {"bytes": size, "base": to_dict(self.learned.base), "trained": self.learned.record}

    def prepared(self) -> list[str]:
        return [*super().prepared(), learned_name(self.scales.network)]

    def start(self, batch_size: int) -> None:
        super().start(batch_size)
        self._mean = None

    @torch.no_grad()
    def learn(self, loss: Tensor, gradients: list[AnyGradient]) -> None:
        self.gated.loss = self.relative(loss.to(self.weights.delta.dtype))
        self.weights.update(gradients, self.gated)

    def relative(self, loss: Tensor) -> Tensor:
        """Return the loss minus the running mean of earlier segments' losses, clamped to [-2, 1]; then update the mean."""
        mean = loss if self._mean is None else self._mean
        self._mean = mean + FADING * (loss - mean)
        return (loss - mean).clamp(-2.0, 1.0)

    def snapshot(self) -> dict[str, Any]:
        return super().snapshot() | {"mean": None if self._mean is None else self._mean.clone()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        if snapshot["mean"] is not None and snapshot["mean"].dim():
            raise ValueError("the mean of the losses is not one number")
        super().restore(snapshot)
        self._mean = None if snapshot["mean"] is None else snapshot["mean"].clone()

    def fork(self) -> Self:
        assert self.statistics is not None
        other = type(self)(self.model, self.learned, self.statistics, self.precision, self.scales)
        other.restore(self.snapshot())
        return other


def learned_name(name: str) -> str:
    """Return the folder of a meta-learner. Raises UserError for a name that is not allowed."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", name):
        raise UserError(f"a meta-learner's name is made of letters, digits and hyphens, not '{name}'")
    return f"{NAME}-{name}"


def save_learned(folder: Path, name: str, weights: str, learned: Learned) -> Path:
    """Write a meta-learner for a model with this hash of its weights into a folder of readers' files. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "weights": weights,
        "base": to_dict(learned.base),
        "gates": to_dict(learned.network.settings),
        "spread": list(learned.spread),
        "how": learned.record,
    }
    sweep_abandoned(folder / learned_name(name))
    return write_checkpoint(folder, learned_name(name), {NAME: parameters(learned.network)}, {NAME: document})


def load_learned(folder: Path, name: str, weights: str, run: Path | str) -> Learned:
    """Load a meta-learner from a folder of readers' files.

    Raises UserError if there is none of this name, or it is for other `weights` (their hash).
    """
    corpus = " --corpus NAME" if str(run).startswith("hf:") else ""
    path = folder / learned_name(name)
    again = f"train it with `backstory reader train {pasted(run)}{corpus}{plugin_flags()}`"
    if not path.exists():
        names = sorted(p.name.removeprefix(f"{NAME}-") for p in folder.glob(f"{NAME}-*"))
        known = f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}" if names else again
        raise UserError(f"{run} has no meta-learner called '{name}'; {known}")
    try:
        checkpoint = read_checkpoint(path)
    except DamagedCheckpoint as error:
        raise error.as_user_error(again) from None
    document: Any = checkpoint.documents.get(NAME)
    tensors = checkpoint.tensors.get(NAME)
    hints = {
        "weights": str,
        "base": dict[str, Any],
        "gates": dict[str, Any],
        "spread": list[float],
        "how": dict[str, Any],
    }
    if tensors is None or not has_fields(document, hints) or len(document["spread"]) != 2:
        raise UserError(f"{path} holds no meta-learner of this version; {again}")
    if document["weights"] != weights:
        raise UserError(f"{path} was trained for other weights than {run} has now; {again}")
    try:
        base = from_dict(DynamicSettings, completed(DynamicSettings, document["base"]), str(path))
        gates = from_dict(GateSettings, document["gates"], str(path))
        if base.rule != "rms" or document["spread"][1] <= 0:
            raise ValueError("no meta-learner was ever trained so")
        size = [*tensors["bias"].shape, 1][0] if "bias" in tensors else 1
        network = GateNetwork(gates, size).to(saved_dtype(tensors))
        check_tensors(tensors, parameters(network), "gates")
    except (UserError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}; {again}") from None
    load_weights(network, tensors)
    network.requires_grad_(False)
    return Learned(network, base, (document["spread"][0], document["spread"][1]), document["how"])


def _build(context: BuildContext, settings: LearnedSettings) -> LearnedReader:
    run = context.run
    run.check_as_trained("meta-learners are")
    if run.in_memory and not (saved_in(run) / learned_name(settings.network)).exists():
        raise UserError(
            f"{run.name} is in memory, and a meta-learner can only be trained for a saved run; use another reader, such as "
            "--reader dynamic:rule=sgd,rate=0.0001"
        )
    learned = load_learned(saved_in(run), settings.network, run.weights_hash, run.argument)
    statistics = context.statistics(learned.base.moving)
    return LearnedReader(run.model, learned, statistics, context.precision, settings)


def _needs(settings: LearnedSettings) -> dict[str, str]:
    network = settings.network
    return {learned_name(network): "train" if network == LearnedSettings().network else f"train --name {network}"}


KIND = ReaderKind(
    "learned",
    "a language model with dynamic weights: dynamic evaluation with gates that a meta-learner sets",
    _build,
    LearnedSettings,
    adapts_weights=True,
    needs=_needs,
    identity=("network",),
    steps=lambda settings: {"rate": 1.4, **({"decay": 1.8} if settings.decay else {})},
)
