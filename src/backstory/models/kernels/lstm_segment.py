"""One LSTM layer over a segment by the fastest path: i, f, o = sigmoid(.), g = tanh(.), c = f c + i g, h = o tanh(c)."""

from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.models.devices import compute_dtype

OWN_FROM = 640
"""Units from which, in bfloat16 on the CPU, `_Segment` beats the library's LSTM (whose backward pass there is three times
slower than its float32 one); below, the library wins. `benchmarks/recurrence.py` measures it."""
FEW = 32
"""Rows times steps up to which it wins in float32 too: the library lays all weights out anew at every call, which costs more
than so few products."""


def lstm_segment(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer of H units over a segment: x (B, T, I), h and c (B, H) -> outputs (B, T, H), h, c.

    Weights (4H, I) and (4H, H) and biases (4H,) hold the gates in PyTorch's order i, f, g, o. `weight_hh` is multiplied with
    mask (B, H) times h_{t-1}. Products run in autocast's dtype; h and c keep the dtype they came with. Raises ValueError where
    input and state are of different batches or sizes.
    """
    if x.shape[0] != h.shape[0] or h.shape != c.shape or x.shape[2] != weight_ih.shape[1]:
        # oneDNN does not look, and writes past the end of what it allocates.
        raise ValueError(f"an input of shape {tuple(x.shape)} does not go with a state of shape {tuple(h.shape)}")
    dtype = compute_dtype(x)
    few = x.shape[0] * x.shape[1] <= FEW and dtype == torch.float32
    ours = x.device.type == "cpu" and h.shape[1] >= OWN_FROM and (dtype == torch.bfloat16 or few)
    if ours or mask is not None:  # no library drops the state from step to step
        bias = bias_ih if bias_hh is None else bias_ih + bias_hh
        with torch.autocast(x.device.type, enabled=False):
            return _Segment.apply(x.to(dtype), h, c, weight_ih.to(dtype), weight_hh.to(dtype), bias, mask)
    second = torch.zeros_like(bias_ih) if bias_hh is None else bias_hh
    weights = [w.to(dtype) for w in (weight_ih, weight_hh, bias_ih, second)]
    if x.device.type == "cuda":
        weights = _adjoining(weights)
    start = h.to(dtype)[None].contiguous(), c.to(dtype)[None].contiguous()
    training = torch.is_grad_enabled()  # cuDNN keeps what its backward pass needs only when told that it trains
    with torch.autocast(x.device.type, enabled=False):
        output, h_last, c_last = torch.lstm(x.to(dtype), start, weights, True, 1, 0.0, training, False, True)
    return output, h_last[0].to(h.dtype), c_last[0].to(c.dtype)


def _adjoining(tensors: list[Tensor]) -> list[Tensor]:
    """Copies that lie side by side in one piece of memory, as cuDNN wants its weights; it copies them itself otherwise,
    with a warning at every call."""
    flat = torch.cat([t.flatten() for t in tensors])
    return [part.view(t.shape) for part, t in zip(flat.split([t.numel() for t in tensors]), tensors, strict=True)]


class Cells(NamedTuple):
    """The cells of H units over a segment, as a forward pass fills them in step by step."""

    values: Tensor
    """(T + 1, B, H): c_0 to c_T."""
    squashed: Tensor
    """(T, B, H): tanh(c_t)."""
    gates: Tensor
    """(T, B, 4, H): i, f, g, o."""

    @classmethod
    def start(cls, c: Tensor, steps: int) -> Self:
        """Before the first step, from c_0 (B, H)."""
        values = c.new_empty(steps + 1, *c.shape)
        values[0] = c
        return cls(values, torch.empty_like(values[1:]), c.new_empty(steps, c.shape[0], 4, c.shape[1]))

    def step(self, t: int, products: Tensor) -> Tensor:
        """h_t (B, H) from what the gates are functions of (B, 4H)."""
        gate, cell = self.gates[t], self.values[t + 1]
        gate.copy_(products.unflatten(1, gate.shape[1:]))
        gate[:, :2].sigmoid_()
        gate[:, 2].tanh_()
        gate[:, 3].sigmoid_()
        i, f, g, o = gate.unbind(1)
        torch.mul(f, self.values[t], out=cell)
        cell.addcmul_(i, g)
        torch.tanh(cell, out=self.squashed[t])
        return o * self.squashed[t]


class CellGradients:
    """The way back through cells: what it multiplies by does not depend on the gradient, so it is there for all steps."""

    def __init__(self, cells: Cells, d_c: Tensor, dtype: torch.dtype) -> None:
        """From the gradient d_c (B, H) of c_T; products are of `dtype`."""
        self.d_c = d_c.clone()
        values, squashed, gates = cells
        i, f, g, o = gates.unbind(2)
        self.forget = f
        self.factors = torch.empty_like(gates)
        torch.mul(g * i, 1 - i, out=self.factors[:, :, 0])
        torch.mul(values[:-1] * f, 1 - f, out=self.factors[:, :, 1])
        torch.mul(i, 1 - g * g, out=self.factors[:, :, 2])
        torch.mul(squashed * o, 1 - o, out=self.factors[:, :, 3])
        self.into_cell = o * (1 - squashed * squashed)
        self.d_gates = torch.empty_like(gates, dtype=dtype)

    def step(self, t: int, d_h: Tensor) -> Tensor:
        """The gradient (B, 4H) of what the gates of step t are functions of, from that of h_t (B, H), T - 1 first."""
        self.d_c.addcmul_(d_h, self.into_cell[t])
        d_gate, factor = self.d_gates[t], self.factors[t]
        d_gate[:, :3] = self.d_c.unsqueeze(1) * factor[:, :3]
        d_gate[:, 3] = d_h * factor[:, 3]
        self.d_c.mul_(self.forget[t])
        return d_gate.flatten(1)


class _Segment(torch.autograd.Function):
    """The layer with products in the input's dtype and float32 cells.

    The input's product and all three weight gradients are single products over the segment; in the loops only the
    recurrent product and a few element-wise steps remain.
    """

    @staticmethod
    def forward(ctx, x, h, c, weight_ih, weight_hh, bias, mask):  # type: ignore[override]
        rows, steps, _ = x.shape
        units = h.shape[1]
        x = x.transpose(0, 1).contiguous()
        inputs = torch.addmm(bias.to(x.dtype), x.flatten(0, 1), weight_ih.t()).view(steps, rows, 4 * units)
        hidden, cells = x.new_empty(steps + 1, rows, units), Cells.start(c, steps)
        hidden[0] = h
        recurrent = weight_hh.t()
        for t in range(steps):
            before = hidden[t] if mask is None else hidden[t] * mask
            hidden[t + 1].copy_(cells.step(t, torch.addmm(inputs[t], before, recurrent)))
        ctx.save_for_backward(x, weight_ih, weight_hh, hidden, *cells)
        ctx.mask, ctx.dtypes = mask, (h.dtype, bias.dtype)
        return hidden[1:].transpose(0, 1), hidden[steps].to(h.dtype), cells.values[steps].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, d_output, d_h, d_c):  # type: ignore[override]
        x, weight_ih, weight_hh, hidden, *saved = ctx.saved_tensors
        cells, mask = Cells(*saved), ctx.mask
        steps, wide = len(x), cells.gates.dtype
        back = CellGradients(cells, d_c, x.dtype)
        d_output, d_h = d_output.transpose(0, 1).to(wide).contiguous(), d_h.to(wide)
        for t in range(steps - 1, -1, -1):
            d_h = torch.mm(back.step(t, d_h + d_output[t]), weight_hh)
            d_h = (d_h if mask is None else d_h * mask).to(wide)
        flat = back.d_gates.flatten(2).flatten(0, 1)
        before = hidden[:-1] if mask is None else hidden[:-1] * mask
        d_x = torch.mm(flat, weight_ih).view(x.shape).transpose(0, 1)
        d_weight_ih = torch.mm(flat.t(), x.flatten(0, 1))
        d_weight_hh = torch.mm(flat.t(), before.flatten(0, 1))
        h_dtype, bias_dtype = ctx.dtypes
        d_bias = flat.sum(0, dtype=wide).to(bias_dtype)
        return d_x, d_h.to(h_dtype), back.d_c, d_weight_ih, d_weight_hh, d_bias, None
