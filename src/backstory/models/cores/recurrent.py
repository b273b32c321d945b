"""Stacks of recurrent layers: the LSTM core of AWD-LSTM and the Mogrifier LSTM.

AWD-LSTM (Merity et al. 2018) has weight drop on the recurrent weights, and locked dropout between the layers. The regularized
LSTM of Zaremba et al. (2014) has only dropout between the layers, drawn for each token. In the Mogrifier (Melis, Kocisky and
Blunsom 2020; as Oliva and Lago-Fernandez 2021 write it, eqs. 19 to 21), input and state gate each other in rounds before every
cell: e^i = 2 sigmoid(Q^i h^{i-1} + b^i) e^{i-2} in odd rounds, h^i = 2 sigmoid(R^i e^{i-1} + b^i) h^{i-2} in even ones, from
e^{-1} = e_t and h^0 = h_{t-1}. The results of the last two rounds enter the cell of an LSTM.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from backstory.config import LSTMConfig, MogrifierConfig
from backstory.config.cores import Initialisation
from backstory.models.contract import Core, CoreOutput, ParamGroup
from backstory.models.cores.initialisation import gate_weights, glorot, uniform
from backstory.models.devices import compute_dtype
from backstory.models.dropout import locked_dropout, recurrent_mask, token_dropout, weight_drop
from backstory.models.kernels.recurrence import Round, lstm_segment, mogrifier_segment


class LSTMState(NamedTuple):
    """Hidden and cell vectors (B, H_l) of each layer."""

    hidden: tuple[Tensor, ...]
    cell: tuple[Tensor, ...]


class RecurrentLayer(nn.Module):
    """Base of the layers: forward(x (B, T, I), h, c (B, H)) -> outputs (B, T, H), h, c; `weight_hh` is (4H, H)."""

    weight_hh: nn.Parameter


class RecurrentStack(Core):
    """Recurrent layers on each other, with dropout before the first, between them and after the last."""

    drops_tokens = False

    def __init__(self, config: LSTMConfig | MogrifierConfig, layers: Sequence[RecurrentLayer]) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(layers)
        self.output_size = layers[-1].weight_hh.shape[1]

    def param_groups(self) -> list[ParamGroup]:
        return self.matrix_groups(weight_ih=self.config.input_l2, weight_hh=self.config.recurrent_l2)

    def start(self, batch_size: int) -> LSTMState:
        weights = [cast(RecurrentLayer, layer).weight_hh for layer in self.layers]
        zeros = tuple(w.new_zeros(batch_size, w.shape[1]) for w in weights)
        return LSTMState(zeros, tuple(z.clone() for z in zeros))

    def forward(self, embedded: Tensor, state: LSTMState, tokens: Tensor | None = None) -> CoreOutput:
        config, outputs, hidden, cell = self.config, [], [], []
        dropout = token_dropout if self.drops_tokens else locked_dropout
        x = dropout(embedded, config.input_dropout, self.training)
        for layer, h, c in zip(self.layers, state.hidden, state.cell, strict=True):
            if outputs:
                x = dropout(x, config.layer_dropout, self.training)
            x, h, c = layer(x, h, c)
            outputs.append(x)
            hidden.append(h)
            cell.append(c)
        dropped = dropout(x, config.output_dropout, self.training)
        return CoreOutput(tuple(outputs), dropped, LSTMState(tuple(hidden), tuple(cell)))


class LSTMLayer(RecurrentLayer):
    """Raw weights of one layer: gates i, f, g, o; two biases, as cuDNN and the published counts have them, or one."""

    bias_hh: nn.Parameter | None

    def __init__(self, inputs: int, units: int, config: LSTMConfig) -> None:
        super().__init__()
        self.weight_drop, self.state_dropout = config.weight_drop, config.state_dropout
        weight_ih, weight_hh, bias_ih = gate_weights(inputs, units, config.initialisation)
        self.weight_ih, self.weight_hh = nn.Parameter(weight_ih), nn.Parameter(weight_hh)
        self.bias_ih, bias_hh = nn.Parameter(bias_ih), None
        if config.biases == 2:
            keras = config.initialisation == "keras"  # which has one bias: the other adds nothing at first
            bias_hh = nn.Parameter(torch.zeros(4 * units) if keras else uniform(4 * units, fan_in=units))
        self.register_parameter("bias_hh", bias_hh)

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
        self.drops_tokens = config.masks == "token"


class RoundWeights(nn.Module):
    """The raw weights of a round that gates n units by m others: Q_l (n, k) and Q_r (k, m), or Q_l (n, m) alone; b (n,)."""

    right: nn.Parameter | None

    def __init__(self, gating: int, gated: int, rank: int | None, kind: Initialisation) -> None:
        super().__init__()

        def matrix(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(glorot(rows, columns) if kind == "keras" else uniform(rows, columns, fan_in=columns))

        self.left = matrix(gated, rank or gating)
        self.register_parameter("right", matrix(rank, gating) if rank else None)
        self.bias = nn.Parameter(torch.zeros(gated))


class MogrifierLayer(RecurrentLayer):
    """The raw weights of one layer: an LSTM's with one bias per gate, and its rounds'."""

    def __init__(self, inputs: int, units: int, config: MogrifierConfig) -> None:
        super().__init__()
        kind = config.initialisation
        self.state_dropout, self.round_dropout = config.state_dropout, config.round_dropout
        self.weight_ih, self.weight_hh, self.bias = map(nn.Parameter, gate_weights(inputs, units, kind))
        sizes = (units, inputs)
        # Numbered from 1 in the names of their parameters, as in the equations.
        self.rounds = nn.ModuleDict(
            {
                str(i): RoundWeights(sizes[(i + 1) % 2], sizes[i % 2], config.rank, kind)
                for i in range(1, config.rounds + 1)
            }
        )

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Read x (B, T, I) from h, c (B, H), with the same masks at all steps of the segment."""
        like = x.new_empty(0, dtype=compute_dtype(x))
        mask = recurrent_mask(h.shape, self.state_dropout, like, self.training)
        if not self.rounds:
            return lstm_segment(x, h, c, self.weight_ih, self.weight_hh, self.bias, None, mask)
        rounds = [self._round(cast(RoundWeights, weights), len(h), like) for weights in self.rounds.values()]
        return mogrifier_segment(x, h, c, self.weight_ih, self.weight_hh, self.bias, rounds, mask)

    def _round(self, weights: RoundWeights, batch_size: int, like: Tensor) -> Round:
        mask = recurrent_mask((batch_size, weights.left.shape[1]), self.round_dropout, like, self.training)
        return Round(weights.left, weights.right, weights.bias, mask)


class Mogrifier(RecurrentStack):
    """Layers of `hidden` units, the last of `output` units if given."""

    config: MogrifierConfig

    def __init__(self, config: MogrifierConfig, inputs: int, output: int | None = None) -> None:
        sizes = [inputs, *[config.hidden] * (config.layers - 1), output or config.hidden]
        super().__init__(config, [MogrifierLayer(a, b, config) for a, b in pairwise(sizes)])

    def param_groups(self) -> list[ParamGroup]:
        return super().param_groups() + self.matrix_groups(rounds=self.config.round_l2)
