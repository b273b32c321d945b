"""The LSTM core of AWD-LSTM (Merity et al. 2018): stacked layers, weight drop on recurrent weights, locked dropout between."""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from backstory.config import LSTMConfig
from backstory.models.cores.core import Core, CoreOutput
from backstory.models.cores.recurrence import lstm_segment
from backstory.models.dropout import locked_dropout, weight_drop
from backstory.models.precision import compute_dtype


class LSTMState(NamedTuple):
    """Hidden and cell vectors (B, H_l) of each layer."""

    hidden: tuple[Tensor, ...]
    cell: tuple[Tensor, ...]


class LSTMLayer(nn.Module):
    """The raw weights of one layer: gates i, f, g, o; two biases, as cuDNN and the published counts have them."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        bound = units**-0.5
        self.weight_ih = nn.Parameter(torch.empty(4 * units, inputs).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(4 * units, units).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(4 * units).uniform_(-bound, bound))
        self.bias_hh = nn.Parameter(torch.empty(4 * units).uniform_(-bound, bound))

    def forward(self, x: Tensor, h: Tensor, c: Tensor, drop: float) -> tuple[Tensor, Tensor, Tensor]:
        """Read x (B, T, I) from h, c (B, H) with one dropped copy of the recurrent weights for the whole segment."""
        # The mask is applied to the cast weights: half the memory traffic, and the gradient still ends in the raw weights.
        recurrent = weight_drop(self.weight_hh.to(compute_dtype(x)), drop, self.training)
        return lstm_segment(x, h, c, self.weight_ih, recurrent, self.bias_ih, self.bias_hh)


class LSTM(Core):
    """Layers of `hidden` units, the last of `output` units."""

    def __init__(self, config: LSTMConfig, inputs: int, output: int) -> None:
        super().__init__()
        sizes = [inputs, *[config.hidden] * (config.layers - 1), output]
        self.config = config
        self.output_size = output
        self.layers = nn.ModuleList(LSTMLayer(a, b) for a, b in pairwise(sizes))

    def start(self, batch_size: int) -> LSTMState:
        zeros = tuple(layer.weight_hh.new_zeros(batch_size, layer.weight_hh.shape[1]) for layer in self.layers)  # type: ignore[union-attr]
        return LSTMState(zeros, tuple(z.clone() for z in zeros))

    def forward(self, embedded: Tensor, state: LSTMState) -> CoreOutput:
        config, outputs, hidden, cell = self.config, [], [], []
        x = locked_dropout(embedded, config.input_dropout, self.training)
        for layer, h, c in zip(self.layers, state.hidden, state.cell, strict=True):
            if outputs:
                x = locked_dropout(x, config.layer_dropout, self.training)
            x, h, c = layer(x, h, c, config.weight_drop)
            outputs.append(x)
            hidden.append(h)
            cell.append(c)
        dropped = locked_dropout(x, config.output_dropout, self.training)
        return CoreOutput(tuple(outputs), dropped, LSTMState(tuple(hidden), tuple(cell)))
