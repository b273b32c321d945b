"""Network g of the meta-learner (eq. 2 of the dynamical language model): gates of eq. 3 for every weight, from what moved it.

theta_t = f theta_{t-1} - i grad + z theta_0, elementwise, as delta <- (1 - r) delta - i grad with f = 1 - r, z = r (tied).
The gates are those of dynamic evaluation times exp(c), c = 3 tanh(o / 3); the output o of an untrained g is 0.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from backstory.config.readers import GateSettings
from backstory.readers.dynamic import RootMeanSquare, displace
from backstory.readers.moving_weights import MovingWeights, Piece

BOUND = 3.0
"""Features lie within plus and minus this, and so does log of what a gate is multiplied by."""
TINY = 1e-30
WIDEST = -math.log(TINY)
"""Logs of gradients and displacements lie within plus and minus this."""
FADING = 0.05
"""The share that a segment's loss has of their running mean."""


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
        bias = self.bias[tensor if self.settings.per_tensor else 0] + self.loss * loss
        hidden = torch.addmm(bias[:, None], self.weight, features, out=hidden).relu_()
        o = torch.addmm(self.output_bias[:, None], self.output, hidden, out=c)
        # 3 tanh(o / 3); PyTorch's sigmoid takes a tenth of its tanh's time on a CPU, and 0 stays exactly 0.
        share = torch.sigmoid(o.mul_(2 / BOUND), out=c)
        return torch.mul(share, 2 * BOUND, out=c).sub_(BOUND)


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

    def __init__(self, base: RootMeanSquare, rms: Tensor, fisher: Tensor | None, spread: tuple[float, float]) -> None:
        """`spread`: mean and standard deviation of the first feature, before it is standardised."""
        self.mean, self.deviation = spread
        self.gradient_scale = base.rate / (10 * base.settings.rate)
        self.displacement_scale = 1 / (200 * base.rate * rms).clamp_(min=TINY)
        self.still = torch.stack([standardised(rms), torch.zeros_like(rms) if fisher is None else standardised(fisher)])
        self.still.clamp_(-BOUND, BOUND)

    def __call__(self, grad: Tensor, delta: Tensor, place: slice | Tensor, out: Tensor | None = None) -> Tensor:
        """Return the features (6, n) of the weights at `place`, with their gradient and displacement (n,)."""
        values = grad.new_empty(6, len(grad)) if out is None else out
        within = self.mean - BOUND * self.deviation, self.mean + BOUND * self.deviation
        logs_of(grad, self.gradient_scale[place], values[0], within).sub_(self.mean).div_(self.deviation)
        torch.sign(grad, out=values[1])
        logs_of(delta, self.displacement_scale[place], values[2], (-BOUND, BOUND))
        torch.sign(delta, out=values[3])
        values[3].mul_(values[1])
        values[4:] = self.still[:, place]
        return values


def logs_of(
    values: Tensor, scale: Tensor, out: Tensor | None = None, within: tuple[float, float] = (-WIDEST, WIDEST)
) -> Tensor:
    """log |values scale| between two bounds, elementwise (n,)."""
    # Bounded before the logarithm is taken, which is one pass for both bounds and keeps 0 out of it.
    low, high = (math.exp(max(-WIDEST, min(bound, WIDEST))) for bound in within)
    return torch.mul(values, scale, out=out).abs_().clamp_(low, high).log_()


def standardised(values: Tensor) -> Tensor:
    """log of values (N,), of mean 0 and deviation 1."""
    logs = values.clamp(min=TINY).log_()
    return logs.sub_(logs.mean()).div_(logs.std().clamp_(min=1e-6))


class GatedUpdate:
    """Update of dynamic evaluation with its gates multiplied by the output of g."""

    def __init__(self, base: RootMeanSquare, network: GateNetwork, features: Features, weights: MovingWeights) -> None:
        self.base, self.network, self.features = base, network, features
        self.static = None if network.settings.tied else torch.cat([p.flatten() for p in weights.static])
        self.loss = weights.delta.new_zeros(())
        """Loss of the segment, relative to the running mean, within [-2, 1]."""
        self._rows = 6, network.settings.hidden, len(network.output)
        self.memory = self.loss.new_empty(weights.largest * sum(self._rows))
        """Memory in which every piece is computed."""

    def __call__(self, piece: Piece) -> None:
        place, grad, delta = piece.place, piece.grad, piece.delta
        workspace = self._workspace(len(grad))
        self.features(grad, delta, place, workspace.features)
        gates = self.network(workspace.features, self.loss, piece.tensor, workspace).exp_()
        decay = gates[1].mul_(self.base.decay[place]).clamp_(max=1.0)
        displace(delta, gates[0].mul_(grad), decay, self.base.rate[place])
        if self.static is not None:
            back = gates[2].mul_(self.base.decay[place]).clamp_(max=1.0)
            delta.add_(back.sub_(decay).mul_(self.static[place]))

    def _workspace(self, count: int) -> Workspace:
        """Return a workspace for so many weights."""
        parts = self.memory[: count * sum(self._rows)].split([count * rows for rows in self._rows])
        return Workspace(*(part.view(rows, count) for part, rows in zip(parts, self._rows, strict=True)))
