"""One LSTM layer over a segment by the fastest path: i, f, o = sigmoid(.), g = tanh(.), c = f c + i g, h = o tanh(c)."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.models.precision import compute_dtype

OWN_FROM = 640
"""Units from which, in bfloat16 on the CPU, `_Segment` beats the library's LSTM (whose backward pass there is three times
slower than its float32 one); below, the library wins. `benchmarks/recurrence.py` measures it."""
FEW = 32
"""Rows times steps up to which it wins in float32 too: the library lays all weights out anew at every call, which costs more
than so few products."""


def lstm_segment(
    x: Tensor, h: Tensor, c: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer of H units over a segment: x (B, T, I), h and c (B, H) -> outputs (B, T, H), h, c.

    Weights (4H, I) and (4H, H) and biases (4H,) hold the gates in PyTorch's order i, f, g, o. Products run in autocast's
    dtype; h and c keep the dtype they came with.
    """
    dtype = compute_dtype(x)
    few = x.shape[0] * x.shape[1] <= FEW and dtype == torch.float32
    if x.device.type == "cpu" and h.shape[1] >= OWN_FROM and (dtype == torch.bfloat16 or few):
        with torch.autocast("cpu", enabled=False):
            return _Segment.apply(x.to(dtype), h, c, weight_ih.to(dtype), weight_hh.to(dtype), bias_ih + bias_hh)
    weights = [w.to(dtype) for w in (weight_ih, weight_hh, bias_ih, bias_hh)]
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


class _Segment(torch.autograd.Function):
    """The layer with products in the input's dtype and float32 cells.

    The input's product and all three weight gradients are single products over the segment; in the loops only the
    recurrent product and a few element-wise steps remain. What the backward steps multiply by does not depend on the
    gradient, so it is computed for all steps at once.
    """

    @staticmethod
    def forward(ctx, x, h, c, weight_ih, weight_hh, bias):  # type: ignore[override]
        rows, steps, _ = x.shape
        units = h.shape[1]
        x = x.transpose(0, 1).contiguous()
        inputs = torch.addmm(bias.to(x.dtype), x.flatten(0, 1), weight_ih.t()).view(steps, rows, 4 * units)
        hidden = x.new_empty(steps + 1, rows, units)
        cells = c.new_empty(steps + 1, rows, units)
        squashed = c.new_empty(steps, rows, units)
        gates = c.new_empty(steps, rows, 4, units)
        hidden[0], cells[0] = h, c
        recurrent = weight_hh.t()
        for t in range(steps):
            gate = gates[t]
            gate.copy_(torch.addmm(inputs[t], hidden[t], recurrent).view(rows, 4, units))
            gate[:, :2].sigmoid_()
            gate[:, 2].tanh_()
            gate[:, 3].sigmoid_()
            i, f, g, o = gate.unbind(1)
            torch.mul(f, cells[t], out=cells[t + 1])
            cells[t + 1].addcmul_(i, g)
            torch.tanh(cells[t + 1], out=squashed[t])
            hidden[t + 1].copy_(o * squashed[t])
        ctx.save_for_backward(x, weight_ih, weight_hh, hidden, cells, squashed, gates)
        ctx.dtypes = h.dtype, bias.dtype
        return hidden[1:].transpose(0, 1), hidden[steps].to(h.dtype), cells[steps].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, d_output, d_h, d_c):  # type: ignore[override]
        x, weight_ih, weight_hh, hidden, cells, squashed, gates = ctx.saved_tensors
        steps, rows, units = squashed.shape
        i, f, g, o = gates.unbind(2)
        factors = torch.empty_like(gates)
        torch.mul(g * i, 1 - i, out=factors[:, :, 0])
        torch.mul(cells[:-1] * f, 1 - f, out=factors[:, :, 1])
        torch.mul(i, 1 - g * g, out=factors[:, :, 2])
        torch.mul(squashed * o, 1 - o, out=factors[:, :, 3])
        into_cell = o * (1 - squashed * squashed)
        d_output = d_output.transpose(0, 1).to(gates.dtype).contiguous()
        d_gates = x.new_empty(steps, rows, 4, units)
        d_h, d_c = d_h.to(gates.dtype), d_c.clone()
        for t in range(steps - 1, -1, -1):
            d_h = d_h + d_output[t]
            d_c.addcmul_(d_h, into_cell[t])
            d_gates[t, :, :3] = d_c.unsqueeze(1) * factors[t, :, :3]
            d_gates[t, :, 3] = d_h * factors[t, :, 3]
            d_c.mul_(f[t])
            d_h = torch.mm(d_gates[t].view(rows, 4 * units), weight_hh).to(gates.dtype)
        flat = d_gates.view(steps * rows, 4 * units)
        d_x = torch.mm(flat, weight_ih).view(x.shape).transpose(0, 1)
        d_weight_ih = torch.mm(flat.t(), x.flatten(0, 1))
        d_weight_hh = torch.mm(flat.t(), hidden[:-1].flatten(0, 1))
        h_dtype, bias_dtype = ctx.dtypes
        return d_x, d_h.to(h_dtype), d_c, d_weight_ih, d_weight_hh, flat.sum(0, dtype=gates.dtype).to(bias_dtype)
