"""The trellis network (Bai, Kolter and Koltun 2019): levels of one convolution over two steps, with the gates of an LSTM.

With embedded words x_t and the level below, (h', c'), which is zero below the first: i, f, g, o are functions of
U_1 x_{t-1} + U_2 x_t + W_1 h'_{t-1} + W_2 h'_t + b; c_t = f c'_{t-1} + i g, h_t = o tanh(c_t). All levels share U, W and b.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backstory.config import TrellisConfig
from backstory.models.contract import Core, CoreOutput, ParamGroup
from backstory.models.devices import compute_dtype
from backstory.models.dropout import locked_dropout, recurrent_mask, weight_drop
from backstory.utils.errors import UserError


class TrellisState(NamedTuple):
    """The last step, which the next one reads."""

    embedded: Tensor
    """(B, E): the last embedded word."""
    hidden: Tensor
    """(B, levels - 1, H): h of every level but the last."""
    cell: Tensor
    """(B, levels - 1, H): c of the same."""


class Trellis(Core):
    """Levels of `hidden` units; the last `output` units of the last level are the output."""

    scale_ih: nn.Parameter | None
    scale_hh: nn.Parameter | None

    def __init__(self, config: TrellisConfig, inputs: int, output: int | None = None) -> None:
        """Raises UserError if a level has fewer units than the output, and for an auxiliary loss of no level."""
        super().__init__()
        units = config.hidden
        output = output or units
        if output > units:
            raise UserError(
                f"the output is a part of a level, so model.core.hidden must be at least {output}, not {units}; "
                f"raise it, or lower model.core.output or the embedding that it is tied to"
            )
        if config.auxiliary_weight and not (config.auxiliary and config.auxiliary < config.levels):
            raise UserError(
                "model.core.auxiliary_weight is the loss of inner levels, and none of this model's predicts; set "
                "model.core.auxiliary below its levels, or the weight to 0"
            )
        self.config, self.output_size, self.auxiliary_weight = config, output, config.auxiliary_weight
        # Each row of the weights has a length near 1/2, whatever its size: the authors' 0.01 at their 1,250 units.
        deviation = (8 * units) ** -0.5
        self.weight_ih = nn.Parameter(_normal(4 * units, 2 * inputs, deviation=deviation))
        self.weight_hh = nn.Parameter(_normal(4 * units, 2 * units, deviation=deviation))
        self.bias = nn.Parameter(_normal(4 * units, deviation=deviation))
        for name, weight in (("scale_ih", self.weight_ih), ("scale_hh", self.weight_hh)):
            self.register_parameter(name, nn.Parameter(_row_lengths(weight)) if config.weight_norm else None)
        if config.levels == 1:  # which reads no level below: several processes would wait for gradients that never come
            self.weight_hh.requires_grad_(False)
            if self.scale_hh is not None:
                self.scale_hh.requires_grad_(False)

    def param_groups(self) -> list[ParamGroup]:
        return self.matrix_groups(weight_ih=self.config.input_l2, weight_hh=self.config.recurrent_l2)

    def start(self, batch_size: int) -> TrellisState:
        zeros, inner = self.weight_hh.new_zeros, self.config.levels - 1
        hidden, cell = (zeros(batch_size, inner, self.config.hidden) for _ in range(2))
        return TrellisState(zeros(batch_size, self.weight_ih.shape[1] // 2), hidden, cell)

    def forward(self, embedded: Tensor, state: TrellisState, tokens: Tensor | None = None) -> CoreOutput:
        config, dtype = self.config, compute_dtype(embedded)
        x = torch.cat([state.embedded.to(embedded.dtype).unsqueeze(1), embedded], 1)
        x = locked_dropout(x, config.input_dropout, self.training).transpose(0, 1)
        # Time first: the previous and the present step then share memory, and no product needs a copy.
        pairs = torch.cat([x[:-1], x[1:]], 2)
        injected = F.linear(pairs, self._weight(self.weight_ih, self.scale_ih), self.bias).flatten(0, 1)
        before, present = self._weight(self.weight_hh, self.scale_hh).to(dtype).t().split(config.hidden)
        mask = recurrent_mask((len(embedded), config.hidden), config.layer_dropout, before, self.training)
        last_h, last_c = state.hidden.unbind(1), state.cell.unbind(1)
        h, c = _gated(injected.unflatten(0, x[1:].shape[:2]), None)
        hidden, cell, outputs = [], [], []
        for level in range(1, config.levels):
            if config.auxiliary and level % config.auxiliary == 0:
                outputs.append(self._output(h).to(embedded.dtype))
            hidden.append(h[-1])
            cell.append(c[-1])
            read = torch.cat([last_h[level - 1].unsqueeze(0), h]).to(dtype)
            read = (read if mask is None else read * mask).flatten(0, 1)
            batch = len(embedded)
            gates = torch.addmm(torch.addmm(injected, read[:-batch], before), read[batch:], present)
            h, c = _gated(gates.view(*h.shape[:2], -1), torch.cat([last_c[level - 1].unsqueeze(0), c[:-1]]))
        outputs.append(self._output(h).to(embedded.dtype))
        dropped = [locked_dropout(x, config.output_dropout, self.training) for x in outputs]
        after = state
        if hidden:
            h, c = torch.stack(hidden, 1).to(state.hidden.dtype), torch.stack(cell, 1).to(state.cell.dtype)
            after = TrellisState(state.embedded, h, c)
        after = after._replace(embedded=embedded[:, -1].to(state.embedded.dtype))
        return CoreOutput(tuple(outputs), dropped[-1], after, tuple(dropped[:-1]) if self.training else ())

    def extra_activations(self, steps: int) -> float:
        # Per level: the input of the next one, the gates, and the cells before and after tanh.
        return 9.0 * self.config.levels * self.config.hidden

    def _weight(self, direction: Tensor, scale: Tensor | None) -> Tensor:
        """Return the weights for a segment: weight drop on those that read the step before, then weight normalisation."""
        before, present = direction.chunk(2, 1)
        weight = torch.cat([weight_drop(before, self.config.weight_drop, self.training), present], 1)
        return weight if scale is None else weight * (scale / weight.norm(dim=1)).unsqueeze(1)

    def _output(self, h: Tensor) -> Tensor:
        return h[:, :, h.shape[2] - self.output_size :].transpose(0, 1)


def _gated(gates: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return h and c (T, B, H) from pre-activations (T, B, 4H) and the c of the level below one step before, or 0."""
    i, f, g, o = gates.chunk(4, 2)
    wide = torch.promote_types(gates.dtype, torch.float32)
    c = (i.sigmoid() * g.tanh()).to(wide)
    c = c if before is None else c + f.sigmoid() * before
    return o.sigmoid() * c.tanh(), c


# An outline has no values (`models.composed.outline`); on its device torch loads its compiler for either of these.


def _normal(*size: int, deviation: float) -> Tensor:
    weight = torch.empty(size)
    return weight if weight.is_meta else weight.normal_(0, deviation)


def _row_lengths(weight: Tensor) -> Tensor:
    return weight.new_empty(len(weight)) if weight.is_meta else weight.detach().norm(dim=1)
