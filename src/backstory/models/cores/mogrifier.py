"""The Mogrifier LSTM core (Melis, Kocisky and Blunsom 2020): before every cell, input and state gate each other in rounds.

e^i = 2 sigmoid(Q^i h^{i-1} + b^i) e^{i-2} in odd rounds, h^i = 2 sigmoid(R^i e^{i-1} + b^i) h^{i-2} in even ones, from
e^{-1} = e_t and h^0 = h_{t-1}; what comes out of the last ones enters the cell of an LSTM.
"""

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from backstory.config import MogrifierConfig
from backstory.models.contract import ParamGroup
from backstory.models.cores.lstm import RecurrentLayer, RecurrentStack
from backstory.models.devices import compute_dtype
from backstory.models.dropout import recurrent_mask
from backstory.models.kernels.lstm_segment import lstm_segment
from backstory.models.kernels.mogrifier_segment import Round, mogrifier_segment


class RoundWeights(nn.Module):
    """The raw weights of a round that gates n units by m others: Q_l (n, k) and Q_r (k, m), or Q_l (n, m) alone; b (n,)."""

    right: nn.Parameter | None

    def __init__(self, gating: int, gated: int, rank: int | None) -> None:
        super().__init__()
        inner, outer = (rank or gating) ** -0.5, gating**-0.5
        self.left = nn.Parameter(torch.empty(gated, rank or gating).uniform_(-inner, inner))
        right = nn.Parameter(torch.empty(rank, gating).uniform_(-outer, outer)) if rank else None
        self.register_parameter("right", right)
        self.bias = nn.Parameter(torch.zeros(gated))


class MogrifierLayer(RecurrentLayer):
    """The raw weights of one layer: an LSTM's with one bias per gate, and its rounds'."""

    def __init__(self, inputs: int, units: int, config: MogrifierConfig) -> None:
        super().__init__()
        bound = units**-0.5
        self.state_dropout, self.round_dropout = config.state_dropout, config.round_dropout
        self.weight_ih = nn.Parameter(torch.empty(4 * units, inputs).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(4 * units, units).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(4 * units).uniform_(-bound, bound))
        sizes = (units, inputs)
        # Not a list of modules: those are the layers of a model, for whoever lets its last ones move.
        self.rounds = nn.ModuleDict(
            {str(i): RoundWeights(sizes[(i + 1) % 2], sizes[i % 2], config.rank) for i in range(1, config.rounds + 1)}
        )

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Read x (B, T, I) from h, c (B, H), with the same masks at all steps of the segment."""
        like = x.new_empty(0, dtype=compute_dtype(x))
        mask = recurrent_mask(h.shape, self.state_dropout, like, self.training)
        if not self.rounds:
            return lstm_segment(x, h, c, self.weight_ih, self.weight_hh, self.bias, None, mask)
        rounds = [self._round(cast(RoundWeights, weights), len(h), like) for weights in self.rounds.values()]
        return mogrifier_segment(x, h, c, self.weight_ih, self.weight_hh, self.bias, rounds, mask)

    def _round(self, weights: RoundWeights, rows: int, like: Tensor) -> Round:
        mask = recurrent_mask((rows, weights.left.shape[1]), self.round_dropout, like, self.training)
        return Round(weights.left, weights.right, weights.bias, mask)


class Mogrifier(RecurrentStack):
    """Layers of `hidden` units, the last of `output` units where that is given."""

    def __init__(self, config: MogrifierConfig, inputs: int, output: int | None = None) -> None:
        sizes = [inputs, *[config.hidden] * (config.layers - 1), output or config.hidden]
        super().__init__(config, [MogrifierLayer(a, b, config) for a, b in pairwise(sizes)])
        self.round_l2 = config.round_l2

    def param_groups(self) -> list[ParamGroup]:
        return [*super().param_groups(), ParamGroup(self.matrices("rounds"), self.round_l2)]
