"""The LSTM core of AWD-LSTM (Merity et al. 2018): stacked layers, weight drop on recurrent weights, locked dropout between."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from backstory.config import LSTMConfig
from backstory.models.cores.recurrence import lstm_segment
from backstory.models.cores.stacked import Recurrent, Stacked
from backstory.models.dropout import row_mask, weight_drop
from backstory.models.precision import compute_dtype


class LSTMLayer(Recurrent):
    """The raw weights of one layer: gates i, f, g, o; two biases, as cuDNN and the published counts have them, or one."""

    bias_hh: nn.Parameter | None

    def __init__(self, inputs: int, units: int, config: LSTMConfig) -> None:
        super().__init__()
        bound = units**-0.5
        self.weight_drop, self.state_dropout = config.weight_drop, config.state_dropout
        self.weight_ih = nn.Parameter(torch.empty(4 * units, inputs).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(4 * units, units).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(4 * units).uniform_(-bound, bound))
        second = nn.Parameter(torch.empty(4 * units).uniform_(-bound, bound)) if config.biases == 2 else None
        self.register_parameter("bias_hh", second)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Read x (B, T, I) from h, c (B, H) with one dropped copy of the recurrent weights for the whole segment."""
        # The mask is applied to the cast weights: half the memory traffic, and the gradient still ends in the raw weights.
        recurrent = weight_drop(self.weight_hh.to(compute_dtype(x)), self.weight_drop, self.training)
        mask = row_mask(h.shape, self.state_dropout, recurrent, self.training)
        return lstm_segment(x, h, c, self.weight_ih, recurrent, self.bias_ih, self.bias_hh, mask)


class LSTM(Stacked):
    """Layers of `hidden` units, the last of `output` units where that is given."""

    def __init__(self, config: LSTMConfig, inputs: int, output: int | None = None) -> None:
        sizes = [inputs, *[config.hidden] * (config.layers - 1), output or config.hidden]
        super().__init__(config, [LSTMLayer(a, b, config) for a, b in pairwise(sizes)])
