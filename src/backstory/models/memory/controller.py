"""A controller and its memory over a segment of text: a stack of LSTM layers that all read the words and the memory.

Layer l reads [e_t, r_{t-1}, h^{l-1}_t]; all layers' outputs say what the memory does. The words' products and the gradients of
all weights are single products over the segment. A step of the memory is autograd's own, of parts that keep the states before
and after the step, and beside these a few numbers for each row.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.models.kernels.lstm_segment import CellGradients, Cells
from backstory.models.memory.interface import Looked, Machine, MemoryState, along
from backstory.models.memory.rows import Rows, RowsInPlace


class Layer(NamedTuple):
    """A layer's weights of H units: gates i, f, g, o."""

    inputs: Tensor
    """(4H, E + R M + H'): of words, of what was read, and of the layer below (H' = 0 for the first)."""
    recurrent: Tensor
    """(4H, H)"""
    bias: Tensor
    """(4H,)"""
    mask: Tensor | None
    """(B, H'): locked dropout on the layer below."""


class Weights(NamedTuple):
    """Of a controller."""

    layers: tuple[Layer, ...]
    interface: Tensor
    """(S, sum of H)"""
    bias: Tensor
    """(S,)"""


def controlled(
    machine: Machine,
    words: Tensor,
    hidden: Sequence[Tensor],
    cells: Sequence[Tensor],
    memory: MemoryState,
    weights: Weights,
    fresh: Tensor | None = None,
    looked: list[Looked] | None = None,
) -> tuple[Tensor, list[Tensor], list[Tensor], MemoryState]:
    """Run over words (B, T, E) from h and c (B, H) of each layer and a memory.

    `fresh` (B, T): where a text begins, before which all state is as at the start.
    Returns all layers' outputs and what was read (B, T, sum of H + R M), h, c and the memory after it. Products run in the
    dtype of `words`; cells and the memory keep theirs. Without gradients, `looked` is told how every step
    found its rows.
    """
    flat = [*hidden, *cells, *memory.tensors(), weights.interface, weights.bias]
    flat += [t for layer in weights.layers for t in layer[:3]]
    masks = [layer.mask for layer in weights.layers]
    if torch.is_grad_enabled() and any(t.requires_grad for t in (words, *flat)):
        output, *after = _Segment.apply(machine, masks, memory, fresh, words, *flat)
    else:
        output, after = _forward(machine, words, hidden, cells, memory, weights, fresh, None, looked)
    count = len(hidden)
    return output, list(after[:count]), list(after[count : 2 * count]), memory.like(after[2 * count :])


class _Step(NamedTuple):
    """Of the memory, with the graph from what was given to what came of it."""

    said: Tensor
    """(B, S)"""
    before: MemoryState
    after: MemoryState

    @classmethod
    def taken(cls, machine: Machine, said: Tensor, before: MemoryState) -> "_Step":
        given = said.detach().requires_grad_()
        state = before.like(t.detach().requires_grad_() for t in before.tensors())
        with torch.enable_grad():
            return cls(given, state, machine.step(given, state, Rows(state.memory, over=True)))

    def back(self, d_after: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The gradients of what was said (B, S) and of the state before, from those of the state after.

        The link's is overwritten.
        """
        given = [self.said, *self.before.tensors()]
        reached = [(t, d) for t, d in zip(self.after.tensors(), d_after, strict=True) if t.requires_grad]
        with torch.autocast(self.said.device.type, enabled=False):  # as on the way there
            found = torch.autograd.grad(
                [t for t, _ in reached], given, [d for _, d in reached], retain_graph=True, allow_unused=True
            )
        d_said, *d_before = (torch.zeros_like(t) if d is None else d for t, d in zip(given, found, strict=True))
        return d_said, d_before


class _Kept(NamedTuple):
    """What the way back needs of a segment."""

    entries: list[Tensor]
    """(T, B, R M + H') of each layer: what it reads beside the words."""
    cells: list[Cells]
    before: Tensor
    """(T, B, sum of H): what all layers side by side had put out before each step."""
    outputs: Tensor
    """(T, B, sum of H)"""
    steps: list[_Step]


def _forward(
    machine: Machine,
    words: Tensor,
    hidden: Sequence[Tensor],
    cells: Sequence[Tensor],
    memory: MemoryState,
    weights: Weights,
    fresh: Tensor | None,
    kept: list[_Kept] | None,
    looked: list[Looked] | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """The outputs, and the state after it: h, c and the tensors of the memory."""
    rows, steps, _ = words.shape
    sizes = [h.shape[1] for h in hidden]
    across = words.transpose(0, 1).contiguous().flatten(0, 1)
    size, reads = words.shape[2], machine.heads * machine.width
    products = [
        torch.addmm(x.bias.to(words.dtype), across, x.inputs[:, :size].t()).unflatten(0, (steps, rows))
        for x in weights.layers
    ]
    entries = [words.new_empty(steps, rows, layer.inputs.shape[1] - size) for layer in weights.layers]
    outputs = words.new_empty(steps + 1, rows, sum(sizes))
    torch.cat([h.to(words.dtype) for h in hidden], 1, out=outputs[0])
    found = memory.memory.new_empty(steps, rows, reads)
    filled = [Cells.start(c, steps) for c in cells]
    if kept is None and words.device.type == "cpu":  # what is overwritten is our own
        memory = memory._replace(
            memory=memory.memory.clone(), link=None if memory.link is None else memory.link.clone()
        )
    touching = None if kept is not None else _in_place(machine, memory)
    start, taken = None, []
    for t in range(steps):
        before, now = (outputs[at].split(sizes, 1) for at in (t, t + 1))
        if (begun := _begun(fresh, t)) is not None:
            before = [h * ~along(begun, h) for h in before]
            for cell in filled:
                cell.values[t].masked_fill_(along(begun, cell.values[t]), 0)
            start = start or machine.start(memory.memory, 1)
            memory = memory.restarted(start, begun)
            if touching is not None:
                touching.take(memory.memory)
        for i, layer in enumerate(weights.layers):
            entry = entries[i][t]
            entry[:, :reads] = memory.reads.flatten(1)
            if i:
                torch.mul(now[i - 1], 1 if layer.mask is None else layer.mask, out=entry[:, reads:])
            gates = torch.addmm(products[i][t], entry, layer.inputs[:, size:].t()).addmm_(
                before[i], layer.recurrent.t()
            )
            now[i].copy_(filled[i].step(t, gates))
        said = torch.addmm(weights.bias.to(words.dtype), outputs[t + 1], weights.interface.t()).to(found.dtype)
        if kept is None:
            memory = machine.step(said, memory, touching, looked)
        else:
            taken.append(_Step.taken(machine, said, memory))
            memory = memory.like(after.detach() for after in taken[-1].after.tensors())
        found[t] = memory.reads.flatten(1)
    if kept is not None:
        before = outputs[:-1] if fresh is None else outputs[:-1] * ~fresh.t().unsqueeze(2)
        kept.append(_Kept(entries, filled, before, outputs[1:], taken))
    output = torch.cat([outputs[1:].to(found.dtype), found], 2).transpose(0, 1)
    # A copy: a state that is kept keeps no segment.
    after = [h.to(old.dtype, copy=True) for h, old in zip(outputs[-1].split(sizes, 1), hidden, strict=True)]
    return output, [*after, *(c.values[steps].clone() for c in filled), *memory.tensors()]


def _begun(fresh: Tensor | None, t: int) -> Tensor | None:
    """The rows (B,) whose text begins at a step; None where none does. (A GPU is not waited for to say so.)"""
    if fresh is None or not (fresh.is_cuda or fresh[:, t].any()):
        return None
    return fresh[:, t]


def _in_place(machine: Machine, memory: MemoryState) -> RowsInPlace | None:
    """The rows of a memory that may be overwritten; None where in place gains nothing."""
    if memory.memory.device.type != "cpu":
        return None
    return RowsInPlace(memory.memory, machine.addressing.kind == "window")


class _Segment(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, machine, masks, memory, fresh, words, *flat):  # type: ignore[override]
        ctx.masks, ctx.fresh = masks, fresh
        hidden, cells, memory, weights = _unflattened(memory, masks, flat)
        kept: list[_Kept] = []
        output, after = _forward(machine, words, hidden, cells, memory, weights, fresh, kept)
        holder = words.new_empty(0)
        # Let go when the graph lets go of what it saved, and not with the last of the outputs. (Hooks on saved tensors that
        # put another in its place lose it.)
        holder.kept = kept[0]
        ctx.save_for_backward(holder, words, *flat)
        return output, *after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output, *d_after):  # type: ignore[override]
        holder, words, *flat = ctx.saved_tensors
        kept, dtype = holder.kept, words.dtype
        hidden, _, _, weights = _unflattened(kept.steps[0].before, ctx.masks, flat)
        count, (rows, steps, _) = len(hidden), words.shape
        sizes = [h.shape[1] for h in hidden]
        wide = kept.cells[0].gates.dtype
        d_output = d_output.transpose(0, 1).to(wide)
        d_hidden = [d.to(wide) for d in d_after[:count]]
        d_memory = list(d_after[2 * count :])
        if kept.steps[0].before.link is not None:
            d_memory[-1] = d_memory[-1].clone()  # which the steps overwrite
        back = [CellGradients(c, d, dtype) for c, d in zip(kept.cells, d_after[count:], strict=False)]
        size, heads = words.shape[2], kept.steps[0].before.reads.shape[1:]
        reads = heads.numel()
        d_said = words.new_empty(steps, rows, len(weights.interface))
        which = list(MemoryState._fields).index("reads")  # its place among the tensors: before what may be missing
        for t in range(steps - 1, -1, -1):
            d_memory[which] = d_memory[which] + d_output[t, :, -reads:].unflatten(1, heads)
            d_said[t], d_memory = kept.steps[t].back(d_memory)
            d_layers = torch.mm(d_said[t], weights.interface).to(wide) + d_output[t, :, :-reads]
            d_each = [a + b for a, b in zip(d_layers.split(sizes, 1), d_hidden, strict=True)]
            d_reads = torch.zeros_like(d_output[t, :, -reads:])
            for i in range(count - 1, -1, -1):
                layer, d_gates = weights.layers[i], back[i].step(t, d_each[i])
                d_hidden[i] = torch.mm(d_gates, layer.recurrent).to(wide)
                d_entry = torch.mm(d_gates, layer.inputs[:, size:]).to(wide)
                d_reads = d_reads + d_entry[:, :reads]
                if i:
                    mask, d_below = ctx.masks[i], d_entry[:, reads:]
                    d_each[i - 1] = d_each[i - 1] + (d_below if mask is None else d_below * mask)
            d_memory[which] = d_memory[which] + d_reads.unflatten(1, heads)
            if (begun := _begun(ctx.fresh, t)) is not None:  # nothing came from before
                for d in (*d_hidden, *(cell.d_c for cell in back), *d_memory):
                    d.masked_fill_(along(begun, d), 0)
        across, before = words.transpose(0, 1).flatten(0, 1), kept.before.split(sizes, 2)
        d_words, d_weights = torch.zeros_like(across), []
        for i, (layer, cell) in enumerate(zip(weights.layers, back, strict=True)):
            gates = cell.d_gates.flatten(2).flatten(0, 1)
            d_words.addmm_(gates, layer.inputs[:, :size])
            d_inputs = torch.empty_like(layer.inputs)
            torch.mm(gates.t(), across, out=d_inputs[:, :size])
            torch.mm(gates.t(), kept.entries[i].flatten(0, 1), out=d_inputs[:, size:])
            d_bias = gates.sum(0, dtype=wide).to(layer.bias.dtype)
            d_weights += [d_inputs, torch.mm(gates.t(), before[i].flatten(0, 1)), d_bias]
        said = d_said.flatten(0, 1)
        d_interface = torch.mm(said.t(), kept.outputs.flatten(0, 1))
        d_start = [*(d.to(h.dtype) for d, h in zip(d_hidden, hidden, strict=True)), *(b.d_c for b in back), *d_memory]
        ends = d_interface, said.sum(0, dtype=wide).to(weights.bias.dtype)
        return None, None, None, None, d_words.unflatten(0, (steps, rows)).transpose(0, 1), *d_start, *ends, *d_weights


def _unflattened(
    like: MemoryState, masks: Sequence[Tensor | None], flat: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor], MemoryState, Weights]:
    """h and c of each layer, the memory and the weights out of the tensors of a segment."""
    rest = iter(flat)
    hidden, cells = ([next(rest) for _ in masks] for _ in range(2))
    memory = like.like([next(rest) for _ in like.tensors()])
    interface, bias = next(rest), next(rest)
    layers = tuple(Layer(next(rest), next(rest), next(rest), mask) for mask in masks)
    return hidden, cells, memory, Weights(layers, interface, bias)
