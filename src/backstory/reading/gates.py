"""The meta-learner's network g (eq. 2 of the dynamical language model): gates of eq. 3 for every weight, from what moved it.

theta_t = f theta_{t-1} - i grad + z theta_0, elementwise, as delta <- (1 - r) delta - i grad with f = 1 - r, z = r (tied).
The gates are those of dynamic evaluation times exp(c), c = 3 tanh(o / 3); the output o of an untrained g is 0.
"""

import torch
from torch import Tensor, nn

from backstory.config.readers import GateSettings
from backstory.reading.dynamic import RootMeanSquare, displace
from backstory.reading.weights import MovingWeights, Piece

BOUND = 3.0
"""Features lie within plus and minus this, and so does log of what a gate is multiplied by."""
TINY = 1e-30
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

    def forward(self, features: Tensor, loss: Tensor, tensor: int) -> Tensor:
        """c, by which log gates change: rows i, r and, untied, z."""
        bias = self.bias[tensor if self.settings.per_tensor else 0] + self.loss * loss
        hidden = torch.addmm(bias[:, None], self.weight, features).relu_()
        o = torch.addmm(self.output_bias[:, None], self.output, hidden)
        return BOUND * torch.tanh(o / BOUND)


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

    def __call__(self, grad: Tensor, delta: Tensor, place: slice | Tensor) -> Tensor:
        """Of the weights at `place`, with their gradient and displacement (n,)."""
        found = grad.new_empty(6, len(grad))
        logs_of(grad, self.gradient_scale[place], found[0]).sub_(self.mean).div_(self.deviation)
        torch.sign(grad, out=found[1])
        logs_of(delta, self.displacement_scale[place], found[2])
        torch.sign(delta, out=found[3])
        found[3].mul_(found[1])
        found[4:] = self.still[:, place]
        return found.clamp_(-BOUND, BOUND)


def logs_of(values: Tensor, scale: Tensor, out: Tensor | None = None) -> Tensor:
    """log |values scale|, elementwise (n,)."""
    return torch.mul(values, scale, out=out).abs_().clamp_(min=TINY).log_()


def standardised(values: Tensor) -> Tensor:
    """log of values (N,), of mean 0 and deviation 1."""
    logs = values.clamp(min=TINY).log_()
    return logs.sub_(logs.mean()).div_(logs.std().clamp_(min=1e-6))


class Gated:
    """Dynamic evaluation's update with its gates multiplied by what g says."""

    def __init__(self, base: RootMeanSquare, network: GateNetwork, features: Features, weights: MovingWeights) -> None:
        self.base, self.network, self.features = base, network, features
        self.static = None if network.settings.tied else torch.cat([p.flatten() for p in weights.static])
        self.loss = torch.zeros((), device=weights.delta.device)
        """Of the segment, relative to the running mean, within [-2, 1]."""

    def __call__(self, piece: Piece) -> None:
        place, grad, delta = piece.place, piece.grad, piece.delta
        c = self.network(self.features(grad, delta, place), self.loss, piece.tensor).exp()
        decay = (self.base.decay[place] * c[1]).clamp_(max=1.0)
        displace(delta, grad * c[0], decay, self.base.rate[place])
        if self.static is not None:
            back = (self.base.decay[place] * c[2]).clamp_(max=1.0)
            delta.add_((back - decay) * self.static[place])
