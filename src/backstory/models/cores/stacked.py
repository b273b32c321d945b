"""Recurrent layers on each other, with locked dropout on the first one's input, between them and on the last one's output."""

from collections.abc import Sequence
from typing import NamedTuple, cast

from torch import Tensor, nn

from backstory.config import LSTMConfig, MogrifierConfig
from backstory.models.cores.core import Core, CoreOutput
from backstory.models.dropout import locked_dropout


class LSTMState(NamedTuple):
    """Hidden and cell vectors (B, H_l) of each layer."""

    hidden: tuple[Tensor, ...]
    cell: tuple[Tensor, ...]


class Recurrent(nn.Module):
    """A layer: forward(x (B, T, I), h, c (B, H)) -> outputs (B, T, H), h, c; `weight_hh` is (4H, H)."""

    weight_hh: nn.Parameter


class Stacked(Core):
    """Layers that all have cells: LSTM and Mogrifier."""

    def __init__(self, config: LSTMConfig | MogrifierConfig, layers: Sequence[Recurrent]) -> None:
        super().__init__()
        self.dropouts = config.input_dropout, config.layer_dropout, config.output_dropout
        self.layers = nn.ModuleList(layers)
        self.output_size = layers[-1].weight_hh.shape[1]

    def start(self, batch_size: int) -> LSTMState:
        weights = [cast(Recurrent, layer).weight_hh for layer in self.layers]
        zeros = tuple(w.new_zeros(batch_size, w.shape[1]) for w in weights)
        return LSTMState(zeros, tuple(z.clone() for z in zeros))

    def forward(self, embedded: Tensor, state: LSTMState) -> CoreOutput:
        before, between, after = self.dropouts
        outputs, hidden, cell = [], [], []
        x = locked_dropout(embedded, before, self.training)
        for layer, h, c in zip(self.layers, state.hidden, state.cell, strict=True):
            if outputs:
                x = locked_dropout(x, between, self.training)
            x, h, c = layer(x, h, c)
            outputs.append(x)
            hidden.append(h)
            cell.append(c)
        dropped = locked_dropout(x, after, self.training)
        return CoreOutput(tuple(outputs), dropped, LSTMState(tuple(hidden), tuple(cell)))
