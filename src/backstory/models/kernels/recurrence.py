"""An LSTM layer and a Mogrifier layer over a segment, each as one operation.

i, f, o = sigmoid(.), g = tanh(.), c = f c + i g, h = o tanh(c) (Oliva and Lago-Fernandez 2021, eqs. 8 to 13, where g is z); the
Mogrifier has rounds before every cell (eqs. 19 to 21; `models/cores/recurrent.py` has them).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.models.devices import compute_dtype
from backstory.models.kernels import compiled
from backstory.models.kernels.factored_gradients import collector, matrix_gradient
from backstory.models.kernels.packed import many_linear

OWN_FROM = 1100
"""Inputs and units together from which, in bfloat16 on the CPU, `_LSTMSegment` beats the library's LSTM (whose backward pass
there is three times slower than its float32 one); below, the library wins. `benchmarks/recurrence.py` measures it. The same
bound serves short pieces in float32."""
ALIGNED = 8
"""On a GPU the kernels for products in 16 bits are faster if their rows are multiples of so many numbers, 16 bytes."""
SHORT_PIECE = 32
"""Batch size times steps up to which it wins in float32 too: the library copies all weights into its own layout at every call,
which costs more than so few products."""
SMALL = 2_000_000
"""Multiplications of a round's largest product below which a processor is done sooner in float32: a call for a product in
bfloat16 takes 20 microseconds at least, one of 32 x 200 x 24 in float32 four."""


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
    mask (B, H) times h_{t-1}. Products run in autocast's dtype; h and c keep the dtype they came with. Raises ValueError if
    input and state have different batches or sizes.
    """
    if x.shape[0] != h.shape[0] or h.shape != c.shape or x.shape[2] != weight_ih.shape[1]:
        # oneDNN does not check this, and writes past the end of what it allocates.
        raise ValueError(f"an input of shape {tuple(x.shape)} does not go with a state of shape {tuple(h.shape)}")
    dtype = compute_dtype(x)
    few = x.shape[0] * x.shape[1] <= SHORT_PIECE and dtype == torch.float32
    ours = x.device.type == "cpu" and x.shape[2] + h.shape[1] >= OWN_FROM and (dtype == torch.bfloat16 or few)
    ours = ours or (few and collector() is not None and compiled.takes(weight_ih, weight_hh))
    if ours or mask is not None:  # no library has dropout of the state
        bias = bias_ih if bias_hh is None else bias_ih + bias_hh
        with torch.autocast(x.device.type, enabled=False):
            return _LSTMSegment.apply(x.to(dtype), h, c, weight_ih.to(dtype), weight_hh.to(dtype), bias, mask)
    bias_hh = torch.zeros_like(bias_ih) if bias_hh is None else bias_hh
    weights = [weight_ih, weight_hh, bias_ih, bias_hh]
    with torch.autocast(x.device.type, enabled=False):
        if x.device.type == "cuda":
            return _aligned_lstm(x.to(dtype), h, c, weights, ALIGNED if dtype.itemsize == 2 else 1)
        return _library_lstm(x.to(dtype), h, c, [w.to(dtype) for w in weights])


def _library_lstm(x: Tensor, h: Tensor, c: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    start = h.to(x.dtype)[None].contiguous(), c.to(x.dtype)[None].contiguous()
    training = torch.is_grad_enabled()  # otherwise cuDNN keeps nothing for its backward pass
    output, h_last, c_last = torch.lstm(x, start, weights, True, 1, 0.0, training, False, True)
    return output, h_last[0].to(h.dtype), c_last[0].to(c.dtype)


def _aligned_lstm(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], multiple: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer whose inputs and units are filled up to a multiple. A unit whose weights are zero stays at zero."""
    inputs, units = x.shape[2], h.shape[1]
    more_inputs, more_units = -inputs % multiple, -units % multiple
    packed = list(_Packed.apply(x.dtype, inputs + more_inputs, units + more_units, *weights))  # type: ignore[arg-type]
    if more_inputs:
        x = F.pad(x, (0, more_inputs))
    if not more_units:
        return _library_lstm(x, h, c, packed)
    output, h, c = _library_lstm(x, F.pad(h, (0, more_units)), F.pad(c, (0, more_units)), packed)
    return output[:, :, :units], h[:, :units], c[:, :units]


class _Packed(torch.autograd.Function):
    """Weights in one piece of memory, as cuDNN needs them: it warns at every call otherwise."""

    @staticmethod
    def forward(ctx, dtype, inputs, units, *weights):  # type: ignore[override]
        shapes = [(4, units, inputs), (4, units, units), (4, units), (4, units)]
        sizes = [math.prod(shape) for shape in shapes]
        pieces = weights[0].new_zeros(sum(sizes), dtype=dtype).split(sizes)
        gates = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        ctx.shapes = [weight.unflatten(0, (4, -1)).shape for weight in weights]
        ctx.dtypes = [weight.dtype for weight in weights]
        for gate, weight, shape in zip(gates, weights, ctx.shapes, strict=True):
            _first(gate, shape).copy_(weight.view(shape))
        return tuple(gate.flatten(0, 1) for gate in gates)

    @staticmethod
    @once_differentiable
    def backward(ctx, *d_gates):  # type: ignore[override]
        gradients = zip(d_gates, ctx.shapes, ctx.dtypes, strict=True)
        d_weights = (_first(d.unflatten(0, (4, -1)), shape).flatten(0, 1).to(dtype) for d, shape, dtype in gradients)
        return None, None, None, *d_weights


def _first(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Return the first elements of each dimension."""
    return tensor[tuple(slice(size) for size in shape)]


class Cells(NamedTuple):
    """The cells of H units over a segment, which a forward pass fills step by step."""

    values: Tensor
    """(T + 1, B, H): c_0 to c_T."""
    squashed: Tensor
    """(T, B, H): tanh(c_t)."""
    gates: Tensor
    """(T, B, 4, H): i, f, g, o."""

    @classmethod
    def start(cls, c: Tensor, steps: int) -> Self:
        """Allocate the cells of a segment that starts from c_0 (B, H)."""
        values = c.new_empty(steps + 1, *c.shape)
        values[0] = c
        return cls(values, torch.empty_like(values[1:]), c.new_empty(steps, c.shape[0], 4, c.shape[1]))

    def step(self, t: int, products: Tensor) -> Tensor:
        """Return h_t (B, H) from the pre-activations of the gates (B, 4H)."""
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
    """The backward pass through cells. Its factors do not depend on the gradient: they are computed for all steps at once."""

    def __init__(self, cells: Cells, d_c: Tensor, dtype: torch.dtype) -> None:
        """Start from the gradient d_c (B, H) of c_T; `d_gates` are of `dtype`."""
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
        """Return the gradient of the pre-activations of step t (B, 4H) from that of h_t (B, H), from T - 1 down to 0."""
        self.d_c.addcmul_(d_h, self.into_cell[t])
        d_gate, factor = self.d_gates[t], self.factors[t]
        d_gate[:, :3] = self.d_c.unsqueeze(1) * factor[:, :3]
        d_gate[:, 3] = d_h * factor[:, 3]
        self.d_c.mul_(self.forget[t])
        return d_gate.flatten(1)


def _linear(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if ctx.compiled and len(x) <= compiled.FEW_ROWS:
        return compiled.linear(x, weight, bias)
    return torch.addmm(bias, x, weight.t())


def _matmul(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
    return compiled.matmul(x, weight) if ctx.compiled and len(x) <= compiled.FEW_ROWS else torch.mm(x, weight)


def _sum_of_rows(numbers: Tensor) -> Tensor:
    """Sum (N, n) over its rows: (n,). As a product it needs no copy in a wider dtype, and rounds as gradients of weights do."""
    return torch.mm(numbers.new_ones(1, len(numbers)), numbers)[0]


class _LSTMSegment(torch.autograd.Function):
    """The layer with products in the input's dtype and float32 cells.

    The input's product and all three weight gradients are single products over the segment; in the loops only the
    recurrent product and a few element-wise steps remain.
    """

    @staticmethod
    def forward(ctx, x, h, c, weight_ih, weight_hh, bias, mask):  # type: ignore[override]
        batch, steps, _ = x.shape
        units = h.shape[1]
        x = x.transpose(0, 1).contiguous()
        ctx.compiled = collector() is not None and mask is None and compiled.takes(x, h, c, weight_ih, weight_hh, bias)
        inputs = _linear(ctx, x.flatten(0, 1), weight_ih, bias.to(x.dtype)).view(steps, batch, 4 * units)
        hidden, cells = x.new_empty(steps + 1, batch, units), Cells.start(c, steps)
        hidden[0] = h
        if ctx.compiled:
            compiled.lstm_forward(inputs, weight_hh, hidden, *cells)
        else:
            recurrent = many_linear(weight_hh, batch, steps)
            for t in range(steps):
                before = hidden[t] if mask is None else hidden[t] * mask
                hidden[t + 1].copy_(cells.step(t, recurrent.plus(before, inputs[t])))
        ctx.save_for_backward(x, weight_ih, weight_hh, hidden, *cells)
        ctx.mask, ctx.dtypes, ctx.collector = mask, (h.dtype, bias.dtype), collector()
        return hidden[1:].transpose(0, 1), hidden[steps].to(h.dtype), cells.values[steps].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, d_output, d_h, d_c):  # type: ignore[override]
        x, weight_ih, weight_hh, hidden, *saved = ctx.saved_tensors
        cells, mask = Cells(*saved), ctx.mask
        steps, wide = len(x), cells.gates.dtype
        d_output, d_h = d_output.transpose(0, 1).to(wide).contiguous(), d_h.to(wide)
        if ctx.compiled:
            d_h, d_c = d_h.clone(), d_c.clone()
            d_gates = compiled.lstm_backward(weight_hh, *cells, d_output, d_h, d_c)
        else:
            back, recurrent = CellGradients(cells, d_c, x.dtype), many_linear(weight_hh.t(), x.shape[1], steps)
            for t in range(steps - 1, -1, -1):
                d_h = recurrent(back.step(t, d_h + d_output[t]))
                d_h = (d_h if mask is None else d_h * mask).to(wide)
            d_gates, d_c = back.d_gates, back.d_c
        flat = d_gates.flatten(2).flatten(0, 1)
        before = hidden[:-1] if mask is None else hidden[:-1] * mask
        d_x = _matmul(ctx, flat, weight_ih).view(x.shape).transpose(0, 1)
        d_weight_ih = d_weight_hh = None
        if ctx.needs_input_grad[3]:
            d_weight_ih = matrix_gradient(ctx.collector, weight_ih, flat, x.flatten(0, 1))
        if ctx.needs_input_grad[4]:
            d_weight_hh = matrix_gradient(ctx.collector, weight_hh, flat, before.flatten(0, 1))
        h_dtype, bias_dtype = ctx.dtypes
        d_bias = _sum_of_rows(flat).to(bias_dtype)
        return d_x, d_h.to(h_dtype), d_c, d_weight_ih, d_weight_hh, d_bias, None


class Round(NamedTuple):
    """Weights that gate n units by m others: 2 sigmoid(Q_l (mask * Q_r .) + b), or 2 sigmoid(Q_l (mask * .) + b)."""

    left: Tensor
    """(n, k); k = m without a right factor."""
    right: Tensor | None
    """(k, m)"""
    bias: Tensor
    """(n,)"""
    mask: Tensor | None
    """(B, k), for the whole segment."""


def mogrifier_segment(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    rounds: Sequence[Round],
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer of H units over a segment: x (B, T, I), h and c (B, H) -> outputs (B, T, H), h, c.

    Weights (4H, I) and (4H, H) and the bias (4H,) hold the gates in the order i, f, g, o. The first of the rounds, at least
    one, gates x by h_{t-1}, which has been multiplied with mask (B, H). Products run in autocast's dtype, but for those of
    rounds in which they are SMALL; h and c keep the dtype they came with.
    """
    dtype = compute_dtype(x)
    round_dtype = _round_dtype(dtype, len(x), rounds)
    flat = [part if part is None else part.to(round_dtype) for one in rounds for part in one]
    with torch.autocast(x.device.type, enabled=False):
        return _MogrifierSegment.apply(x.to(round_dtype), h, c, weight_ih, weight_hh, bias, dtype, mask, *flat)


def _round_dtype(dtype: torch.dtype, batch: int, rounds: Sequence[Round]) -> torch.dtype:
    """Return the dtype of the rounds' products in a segment whose cells multiply in `dtype`."""
    factors = [factor for one in rounds for factor in one[:2] if factor is not None]
    small = factors[0].device.type == "cpu" and batch * max(f.numel() for f in factors) < SMALL
    return torch.promote_types(dtype, torch.float32) if small else dtype


class _MogrifierSegment(torch.autograd.Function):
    """The layer with rounds in the input's dtype, products of the cells in `dtype` and float32 cells.

    Every product of a step needs the one before it, so the steps are what takes the time; all gradients of weights are single
    products over the segment.
    """

    @staticmethod
    def forward(ctx, x, h, c, weight_ih, weight_hh, bias, dtype, mask, *flat):  # type: ignore[override]
        rounds, (batch, steps, inputs) = _rounds(flat), x.shape
        x = x.transpose(0, 1).contiguous()
        hidden, cells = x.new_empty(steps + 1, batch, h.shape[1]), Cells.start(c, steps)
        hidden[0] = h
        states = hidden[:-1] if mask is None else torch.empty_like(hidden[:-1])
        weight = x.new_empty(len(bias), inputs + h.shape[1], dtype=dtype)
        weight[:, :inputs], weight[:, inputs:] = weight_ih, weight_hh
        # Not empty: if the units of a row are no multiple of 32, products in bfloat16 on AMX read on into its other half,
        # times 0 (oneDNN up to 3.12). That is NaN if such memory happens to hold one.
        cell_input = x.new_zeros(steps, batch, inputs + h.shape[1])
        cell_operand = cell_input if dtype == x.dtype else torch.zeros_like(cell_input, dtype=dtype)
        last = cell_input[:, :, :inputs], cell_input[:, :, inputs:]
        gates, inner, after = [], [], []
        for number, one in enumerate(rounds):
            gates.append(x.new_empty(steps, batch, len(one.left)))
            inner.append(x.new_empty(steps, batch, one.left.shape[1]))
            # The last two rounds write into the input of the cells.
            after.append(last[number % 2] if number >= len(rounds) - 2 else torch.empty_like(gates[number]))
        factors = [(one.left.t(), None if one.right is None else one.right.t()) for one in rounds]
        bias_dtype, bias = bias.dtype, bias.to(dtype).unsqueeze(1)
        for t in range(steps):
            if mask is not None:
                torch.mul(hidden[t], mask, out=states[t])
            gated, gating = x[t], states[t]
            for number, (one, (left, right)) in enumerate(zip(rounds, factors, strict=True)):
                gate, between = gates[number][t], inner[number][t]
                if right is None:
                    between.copy_(gating)
                else:
                    torch.mm(gating, right, out=between)
                if one.mask is not None:
                    between.mul_(one.mask)
                torch.addmm(one.bias, between, left, out=gate)
                gate.sigmoid_().mul_(2)
                torch.mul(gate, gated, out=after[number][t])
                gated, gating = gating, after[number][t]
            if len(rounds) == 1:
                last[1][t] = states[t]
            if cell_operand is not cell_input:
                cell_operand[t].copy_(cell_input[t])
            # Many rows times few columns is faster than few rows times many columns.
            products = torch.addmm(bias, weight, cell_operand[t].t())
            hidden[t + 1].copy_(cells.step(t, products.t()))
        ctx.save_for_backward(x, weight, states, cell_input, cell_operand, *cells, *gates, *inner, *after[:-2], *flat)
        ctx.count, ctx.mask, ctx.dtypes = len(rounds), mask, (h.dtype, weight_ih.dtype, bias_dtype)
        return hidden[1:].transpose(0, 1).to(dtype), hidden[steps].to(h.dtype), cells.values[steps].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, d_output, d_h, d_c):  # type: ignore[override]
        x, weight, states, cell_input, cell_operand, values, squashed, cell_gates, *saved = ctx.saved_tensors
        count, mask, (steps, _, inputs) = ctx.count, ctx.mask, x.shape
        gates, inner, rounds = saved[:count], saved[count : 2 * count], _rounds(saved[-4 * count :])
        last = cell_input[:, :, :inputs], cell_input[:, :, inputs:]
        after = [*saved[2 * count : -4 * count], *(last[i % 2] for i in range(max(0, count - 2), count))]
        back = CellGradients(Cells(values, squashed, cell_gates), d_c, weight.dtype)
        # The derivative of g v by z, with g = 2 sigmoid(z), is g v (1 - g / 2).
        factors = [torch.addcmul(a, a, g, value=-0.5) for a, g in zip(after, gates, strict=True)]
        d_gates, d_inner = [torch.empty_like(g) for g in gates], [torch.empty_like(i) for i in inner]
        d_x, wide = torch.empty_like(x), cell_gates.dtype
        d_output, d_h = d_output.transpose(0, 1).to(wide).contiguous(), d_h.to(wide)
        for t in range(steps - 1, -1, -1):
            d_cell_operand = torch.mm(back.step(t, d_h + d_output[t]), weight).to(x.dtype)
            # The last round gated one of the two by the other.
            d_gated, d_gating = d_cell_operand[:, :inputs], d_cell_operand[:, inputs:]
            if count % 2 == 0:
                d_gated, d_gating = d_gating, d_gated
            for number in range(count - 1, -1, -1):
                one, d_gate, d_between = rounds[number], d_gates[number][t], d_inner[number][t]
                torch.mul(d_gated, factors[number][t], out=d_gate)
                torch.mm(d_gate, one.left, out=d_between)
                if one.mask is not None:
                    d_between.mul_(one.mask)
                d_source = d_between if one.right is None else torch.mm(d_between, one.right)
                d_gated, d_gating = d_gating + d_source, d_gated * gates[number][t]
            d_x[t] = d_gating
            d_h = (d_gated if mask is None else d_gated * mask).to(wide)
        flat = back.d_gates.flatten(2).flatten(0, 1)
        # Contiguous rows are faster for the kernels of bfloat16, and slower for the others.
        across = flat.t().contiguous() if flat.dtype == torch.bfloat16 else flat.t()
        d_weight = torch.mm(across, cell_operand.flatten(0, 1))
        h_dtype, weight_dtype, bias_dtype = ctx.dtypes
        d_ih, d_hh = d_weight[:, :inputs].to(weight_dtype), d_weight[:, inputs:].to(weight_dtype)
        d_bias = _sum_of_rows(flat).to(bias_dtype)
        d_rounds = []
        for number, one in enumerate(rounds):
            left, gating = d_gates[number].flatten(0, 1), after[number - 1] if number else states
            d_left = torch.mm(left.t(), inner[number].flatten(0, 1))
            d_right = None
            if one.right is not None:
                d_right = torch.mm(d_inner[number].flatten(0, 1).t(), gating.flatten(0, 1))
            d_rounds += [d_left, d_right, _sum_of_rows(left).to(one.bias.dtype), None]
        return d_x.transpose(0, 1), d_h.to(h_dtype), back.d_c, d_ih, d_hh, d_bias, None, None, *d_rounds


def _rounds(flat: Sequence[Tensor | None]) -> list[Round]:
    return [Round(*flat[i : i + 4]) for i in range(0, len(flat), 4)]  # type: ignore[arg-type]
