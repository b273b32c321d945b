"""The LSTM core of AWD-LSTM (Merity et al. 2018): stacked layers, weight drop on the recurrent weights, locked dropout between.

A stack of any recurrent layers is here too, as the Mogrifier is one.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from backstory.config import LSTMConfig, MogrifierConfig
from backstory.models.contract import ParamGroup
from backstory.models.cores.core import Core, CoreOutput
from backstory.models.devices import compute_dtype
from backstory.models.dropout import locked_dropout, recurrent_mask, weight_drop
from backstory.models.kernels.lstm_segment import lstm_segment


class LSTMState(NamedTuple):
    """Hidden and cell vectors (B, H_l) of each layer."""

    hidden: tuple[Tensor, ...]
    cell: tuple[Tensor, ...]


class RecurrentLayer(nn.Module):
    """A layer: forward(x (B, T, I), h, c (B, H)) -> outputs (B, T, H), h, c; `weight_hh` is (4H, H)."""

    weight_hh: nn.Parameter


class RecurrentStack(Core):
    """Recurrent layers on each other, with locked dropout before the first, between them and after the last."""

    def __init__(self, config: LSTMConfig | MogrifierConfig, layers: Sequence[RecurrentLayer]) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(layers)
        self.output_size = layers[-1].weight_hh.shape[1]

    def param_groups(self) -> list[ParamGroup]:
        matrices, config = self.matrices, self.config
        return [
            ParamGroup(matrices("weight_ih"), config.input_l2),
            ParamGroup(matrices("weight_hh"), config.recurrent_l2),
        ]

    def start(self, batch_size: int) -> LSTMState:
        weights = [cast(RecurrentLayer, layer).weight_hh for layer in self.layers]
        zeros = tuple(w.new_zeros(batch_size, w.shape[1]) for w in weights)
        return LSTMState(zeros, tuple(z.clone() for z in zeros))

    def forward(self, embedded: Tensor, state: LSTMState, tokens: Tensor | None = None) -> CoreOutput:
        config, outputs, hidden, cell = self.config, [], [], []
        x = locked_dropout(embedded, config.input_dropout, self.training)
        for layer, h, c in zip(self.layers, state.hidden, state.cell, strict=True):
            if outputs:
                x = locked_dropout(x, config.layer_dropout, self.training)
            x, h, c = layer(x, h, c)
            outputs.append(x)
            hidden.append(h)
            cell.append(c)
        dropped = locked_dropout(x, config.output_dropout, self.training)
        return CoreOutput(tuple(outputs), dropped, LSTMState(tuple(hidden), tuple(cell)))


class LSTMLayer(RecurrentLayer):
    """Raw weights of one layer: gates i, f, g, o; two biases, as cuDNN and the published counts have them, or one."""

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
        # The mask multiplies the cast weights: half the memory traffic, and the gradient still ends in the raw weights.
        weight_hh = weight_drop(self.weight_hh.to(compute_dtype(x)), self.weight_drop, self.training)
        mask = recurrent_mask(h.shape, self.state_dropout, weight_hh, self.training)
        return lstm_segment(x, h, c, self.weight_ih, weight_hh, self.bias_ih, self.bias_hh, mask)


class LSTM(RecurrentStack):
    """Layers of `hidden` units, the last of `output` units if given."""

    def __init__(self, config: LSTMConfig, inputs: int, output: int | None = None) -> None:
        sizes = [inputs, *[config.hidden] * (config.layers - 1), output or config.hidden]
        super().__init__(config, [LSTMLayer(a, b, config) for a, b in pairwise(sizes)])
