"""The meta-learner's network g (eq. 2 of the dynamical language model): gates of eq. 3 for every weight, from what moved it.

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

    def forward(self, features: Tensor, loss: Tensor, tensor: int, room: "Room | None" = None) -> Tensor:
        """c, by which log gates change: rows i, r and, untied, z. With `room`, without a graph, it is written there."""
        hidden, c = (None, None) if room is None else (room.hidden, room.c)
        bias = self.bias[tensor if self.settings.per_tensor else 0] + self.loss * loss
        hidden = torch.addmm(bias[:, None], self.weight, features, out=hidden).relu_()
        o = torch.addmm(self.output_bias[:, None], self.output, hidden, out=c)
        # 3 tanh(o / 3); PyTorch's sigmoid takes a tenth of its tanh's time on a CPU, and 0 stays exactly 0.
        share = torch.sigmoid(o.mul_(2 / BOUND), out=c)
        return torch.mul(share, 2 * BOUND, out=c).sub_(BOUND)


class Room(NamedTuple):
    """Memory that is written anew for every n weights: fresh memory would have to be mapped, which takes longer than g."""

    features: Tensor
    """(6, n)"""
    hidden: Tensor
    """(hidden, n)"""
    c: Tensor
    """(2 or 3, n)"""


class Features:
    """What g reads of n weights: (6, n), each within [-3, 3].

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
        """Of the weights at `place`, with their gradient and displacement (n,)."""
        found = grad.new_empty(6, len(grad)) if out is None else out
        within = self.mean - BOUND * self.deviation, self.mean + BOUND * self.deviation
        logs_of(grad, self.gradient_scale[place], found[0], within).sub_(self.mean).div_(self.deviation)
        torch.sign(grad, out=found[1])
        logs_of(delta, self.displacement_scale[place], found[2], (-BOUND, BOUND))
        torch.sign(delta, out=found[3])
        found[3].mul_(found[1])
        found[4:] = self.still[:, place]
        return found


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


class Gated:
    """Dynamic evaluation's update with its gates multiplied by what g says."""

    def __init__(self, base: RootMeanSquare, network: GateNetwork, features: Features, weights: MovingWeights) -> None:
        self.base, self.network, self.features = base, network, features
        self.static = None if network.settings.tied else torch.cat([p.flatten() for p in weights.static])
        self.loss = weights.delta.new_zeros(())
        """Of the segment, relative to the running mean, within [-2, 1]."""
        self._rows = 6, network.settings.hidden, len(network.output)
        self.room = self.loss.new_empty(weights.largest * sum(self._rows))
        """What every piece is worked out in."""

    def __call__(self, piece: Piece) -> None:
        place, grad, delta = piece.place, piece.grad, piece.delta
        room = self._room_of(len(grad))
        self.features(grad, delta, place, room.features)
        gates = self.network(room.features, self.loss, piece.tensor, room).exp_()
        decay = gates[1].mul_(self.base.decay[place]).clamp_(max=1.0)
        displace(delta, gates[0].mul_(grad), decay, self.base.rate[place])
        if self.static is not None:
            back = gates[2].mul_(self.base.decay[place]).clamp_(max=1.0)
            delta.add_(back.sub_(decay).mul_(self.static[place]))

    def _room_of(self, count: int) -> Room:
        """The beginning of the room, cut for so many weights."""
        parts = self.room[: count * sum(self._rows)].split([count * rows for rows in self._rows])
        return Room(*(part.view(rows, count) for part, rows in zip(parts, self._rows, strict=True)))
