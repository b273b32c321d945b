"""A controller and its memory over a segment: a stack of LSTM layers that all read the words and the memory.

Layer l reads [x_t, r_{t-1}, h^{l-1}_t]; a linear layer of all layers' outputs is the interface to the memory. The words'
products and the gradients of all weights are single products over the segment. The steps of the memory are differentiated by
autograd; each stores the states before and after it, and a few numbers for each slot.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.models.kernels.recurrence import CellGradients, Cells
from backstory.models.memory.machines import AddressingTrace, Machine, MemoryState, expand_mask
from backstory.models.memory.slots import Slots, SlotsInPlace


class LayerWeights(NamedTuple):
    """Weights of a layer of H units: gates i, f, g, o."""

    inputs: Tensor
    """(4H, E + R M + H'): for the words, the reads, and the layer below (H' = 0 for the first)."""
    recurrent: Tensor
    """(4H, H)"""
    bias: Tensor
    """(4H,)"""
    mask: Tensor | None
    """(B, H'): locked dropout on the layer below."""


class ControllerWeights(NamedTuple):
    """Weights of a controller."""

    layers: tuple[LayerWeights, ...]
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
    weights: ControllerWeights,
    document_start: Tensor | None = None,
    trace: list[AddressingTrace] | None = None,
) -> tuple[Tensor, list[Tensor], list[Tensor], MemoryState]:
    """Run over words (B, T, E) from h and c (B, H) of each layer and a memory.

    `document_start` (B, T) is True at the first token of a document, before which all state is reset. Returns all layers'
    outputs and the reads (B, T, sum of H + R M), then h, c and the memory after the segment. Products run in the dtype of
    `words`; cells and the memory keep theirs. Without gradients, the addressing of every step is appended to `trace`.
    """
    flat = [*hidden, *cells, *memory.tensors(), weights.interface, weights.bias]
    flat += [t for layer in weights.layers for t in layer[:3]]
    masks = [layer.mask for layer in weights.layers]
    if torch.is_grad_enabled() and any(t.requires_grad for t in (words, *flat)):
        output, *after = _ControllerSegment.apply(machine, masks, memory, document_start, words, *flat)
    else:
        output, after, _ = _forward(machine, words, hidden, cells, memory, weights, document_start, False, trace)
    count = len(hidden)
    return output, list(after[:count]), list(after[count : 2 * count]), memory.like(after[2 * count :])


class _MemoryStep(NamedTuple):
    """One step of the memory, with the graph from its inputs to the next state."""

    interface: Tensor
    """(B, S)"""
    before: MemoryState
    after: MemoryState

    @classmethod
    def record(cls, machine: Machine, interface: Tensor, before: MemoryState) -> "_MemoryStep":
        """Take a step of the machine on detached inputs, and record its graph."""
        interface = interface.detach().requires_grad_()
        state = before.like(t.detach().requires_grad_() for t in before.tensors())
        with torch.enable_grad():
            return cls(interface, state, machine.step(interface, state, Slots(state.memory, overwrite=True)))

    def backward(self, d_after: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the gradients of the interface (B, S) and of the state before, from those of the state after.

        The gradient of the link is overwritten.
        """
        inputs = [self.interface, *self.before.tensors()]
        outputs = [(t, d) for t, d in zip(self.after.tensors(), d_after, strict=True) if t.requires_grad]
        with torch.autocast(self.interface.device.type, enabled=False):  # as in the forward pass
            gradients = torch.autograd.grad(
                [t for t, _ in outputs], inputs, [d for _, d in outputs], retain_graph=True, allow_unused=True
            )
        d_interface, *d_before = (
            torch.zeros_like(t) if d is None else d for t, d in zip(inputs, gradients, strict=True)
        )
        return d_interface, d_before


class _Layers(NamedTuple):
    """The LSTM layers over a segment, which a forward pass fills step by step."""

    weights: tuple[LayerWeights, ...]
    products: list[Tensor]
    """(T, B, 4H) of each layer: W_x x_t + b, of the words at all steps."""
    inputs: list[Tensor]
    """(T, B, R M + H') of each layer: its input beside the words."""
    cells: list[Cells]
    outputs: Tensor
    """(T + 1, B, sum of H): all layers' outputs before the segment and after each step."""

    @classmethod
    def start(
        cls,
        words: Tensor,
        hidden: Sequence[Tensor],
        cells: Sequence[Tensor],
        weights: tuple[LayerWeights, ...],
    ) -> "_Layers":
        """Multiply the words (B, T, E), and allocate the rest, from h and c (B, H) of each layer."""
        batch, steps, size = words.shape
        flat_words = words.transpose(0, 1).contiguous().flatten(0, 1)
        products = [
            torch.addmm(x.bias.to(words.dtype), flat_words, x.inputs[:, :size].t()).unflatten(0, (steps, batch))
            for x in weights
        ]
        inputs = [words.new_empty(steps, batch, layer.inputs.shape[1] - size) for layer in weights]
        outputs = words.new_empty(steps + 1, batch, sum(h.shape[1] for h in hidden))
        torch.cat([h.to(words.dtype) for h in hidden], 1, out=outputs[0])
        return cls(weights, products, inputs, [Cells.start(c, steps) for c in cells], outputs)

    def step(self, t: int, reads: Tensor, reset: Tensor | None) -> Tensor:
        """Return all layers' outputs (B, sum of H) of step t from the reads before it (B, R M).

        The texts of `reset` (B,) start from zeros.
        """
        sizes, width = [layer.recurrent.shape[1] for layer in self.weights], reads.shape[1]
        before, now = (self.outputs[at].split(sizes, 1) for at in (t, t + 1))
        if reset is not None:
            before = [h * ~expand_mask(reset, h) for h in before]
            for cell in self.cells:
                cell.values[t].masked_fill_(expand_mask(reset, cell.values[t]), 0)
        for i, layer in enumerate(self.weights):
            x = self.inputs[i][t]
            x[:, :width] = reads
            if i:
                torch.mul(now[i - 1], 1 if layer.mask is None else layer.mask, out=x[:, width:])
            beside_words = layer.inputs[:, -x.shape[1] :]
            gates = torch.addmm(self.products[i][t], x, beside_words.t()).addmm_(before[i], layer.recurrent.t())
            now[i].copy_(self.cells[i].step(t, gates))
        return self.outputs[t + 1]


class _Saved(NamedTuple):
    """Tensors of a segment for its backward pass."""

    inputs: list[Tensor]
    """(T, B, R M + H') of each layer: its input beside the words."""
    cells: list[Cells]
    before: Tensor
    """(T, B, sum of H): all layers' outputs before each step."""
    outputs: Tensor
    """(T, B, sum of H)"""
    steps: list[_MemoryStep]


def _forward(
    machine: Machine,
    words: Tensor,
    hidden: Sequence[Tensor],
    cells: Sequence[Tensor],
    memory: MemoryState,
    weights: ControllerWeights,
    document_start: Tensor | None,
    record: bool,
    trace: list[AddressingTrace] | None = None,
) -> tuple[Tensor, list[Tensor], _Saved | None]:
    """Return the outputs, the state after them (h, c and the tensors of the memory), and the record for the backward pass."""
    batch, steps, _ = words.shape
    layers = _Layers.start(words, hidden, cells, weights.layers)
    all_reads = memory.memory.new_empty(steps, batch, machine.heads * machine.width)
    slots, start, recorded = None, None, []
    if not record and words.device.type == "cpu":  # a GPU gains nothing by overwriting the memory
        link = None if memory.link is None else memory.link.clone()
        memory = memory._replace(memory=memory.memory.clone(), link=link)
        slots = SlotsInPlace(memory.memory, machine.addressing.kind == "window")
    for t in range(steps):
        if (reset := _reset_mask(document_start, t)) is not None:
            start = start or machine.start(memory.memory, 1)
            memory = memory.restarted(start, reset)
            if slots is not None:
                slots.replace(memory.memory)
        output = layers.step(t, memory.reads.flatten(1), reset)
        interface = torch.addmm(weights.bias.to(words.dtype), output, weights.interface.t()).to(all_reads.dtype)
        if record:
            recorded.append(_MemoryStep.record(machine, interface, memory))
            memory = memory.like(after.detach() for after in recorded[-1].after.tensors())
        else:
            memory = machine.step(interface, memory, slots, trace)
        all_reads[t] = memory.reads.flatten(1)
    outputs, saved = layers.outputs, None
    if record:
        before = outputs[:-1] if document_start is None else outputs[:-1] * ~document_start.t().unsqueeze(2)
        saved = _Saved(layers.inputs, layers.cells, before, outputs[1:], recorded)
    joined = torch.cat([outputs[1:].to(all_reads.dtype), all_reads], 2).transpose(0, 1)
    # Copies, so that a stored state does not hold on to the whole segment.
    last = outputs[-1].split([h.shape[1] for h in hidden], 1)
    after = [h.to(old.dtype, copy=True) for h, old in zip(last, hidden, strict=True)]
    return joined, [*after, *(c.values[steps].clone() for c in layers.cells), *memory.tensors()], saved


def _reset_mask(document_start: Tensor | None, t: int) -> Tensor | None:
    """Return the mask (B,) of texts whose document starts at step t; None if there is none. A GPU is not waited for."""
    if document_start is None or not (document_start.is_cuda or document_start[:, t].any()):
        return None
    return document_start[:, t]


class _ControllerSegment(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, machine, masks, memory, document_start, words, *flat):  # type: ignore[override]
        ctx.masks, ctx.document_start = masks, document_start
        hidden, cells, memory, weights = _unflattened(memory, masks, flat)
        output, after, saved = _forward(machine, words, hidden, cells, memory, weights, document_start, record=True)
        # Freed with the saved tensors of the graph, not with the last of the outputs. (Hooks on saved tensors that
        # replace a tensor lose it.)
        holder = words.new_empty(0)
        holder.saved = saved
        ctx.save_for_backward(holder, words, *flat)
        return output, *after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output, *d_after):  # type: ignore[override]
        holder, words, *flat = ctx.saved_tensors
        saved, dtype = holder.saved, words.dtype
        hidden, _, _, weights = _unflattened(saved.steps[0].before, ctx.masks, flat)
        layers, (batch, steps, size) = len(hidden), words.shape
        sizes = [h.shape[1] for h in hidden]
        wide = saved.cells[0].gates.dtype
        d_output = d_output.transpose(0, 1).to(wide)
        d_hidden = [d.to(wide) for d in d_after[:layers]]
        d_memory = list(d_after[2 * layers :])
        if saved.steps[0].before.link is not None:
            d_memory[-1] = d_memory[-1].clone()  # which the steps overwrite
        d_cells = [CellGradients(c, d, dtype) for c, d in zip(saved.cells, d_after[layers:], strict=False)]
        heads = saved.steps[0].before.reads.shape[1:]
        reads = heads.numel()
        d_interface = words.new_empty(steps, batch, len(weights.interface))
        reads_index = list(MemoryState._fields).index("reads")  # among the tensors: before any that may be None
        for t in range(steps - 1, -1, -1):
            d_memory[reads_index] = d_memory[reads_index] + d_output[t, :, -reads:].unflatten(1, heads)
            d_interface[t], d_memory = saved.steps[t].backward(d_memory)
            d_joined = torch.mm(d_interface[t], weights.interface).to(wide) + d_output[t, :, :-reads]
            d_layers = [a + b for a, b in zip(d_joined.split(sizes, 1), d_hidden, strict=True)]
            d_reads = torch.zeros_like(d_output[t, :, -reads:])
            for i in range(layers - 1, -1, -1):
                layer, d_gates = weights.layers[i], d_cells[i].step(t, d_layers[i])
                d_hidden[i] = torch.mm(d_gates, layer.recurrent).to(wide)
                d_x = torch.mm(d_gates, layer.inputs[:, size:]).to(wide)
                d_reads = d_reads + d_x[:, :reads]
                if i:
                    mask, d_below = ctx.masks[i], d_x[:, reads:]
                    d_layers[i - 1] = d_layers[i - 1] + (d_below if mask is None else d_below * mask)
            d_memory[reads_index] = d_memory[reads_index] + d_reads.unflatten(1, heads)
            if (reset := _reset_mask(ctx.document_start, t)) is not None:  # no gradient flows to the document before
                for d in (*d_hidden, *(cell.d_c for cell in d_cells), *d_memory):
                    d.masked_fill_(expand_mask(reset, d), 0)
        d_words, d_weights = _layer_gradients(words, saved, d_cells, weights.layers)
        d_flat = d_interface.flatten(0, 1)
        d_start = [
            *(d.to(h.dtype) for d, h in zip(d_hidden, hidden, strict=True)),
            *(cell.d_c for cell in d_cells),
            *d_memory,
        ]
        d_projection = (
            torch.mm(d_flat.t(), saved.outputs.flatten(0, 1)),
            d_flat.sum(0, dtype=wide).to(weights.bias.dtype),
        )
        return None, None, None, None, d_words, *d_start, *d_projection, *d_weights


def _layer_gradients(
    words: Tensor, saved: _Saved, d_cells: Sequence[CellGradients], layers: Sequence[LayerWeights]
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradients of the words (B, T, E) and of `inputs`, `recurrent` and `bias` of each layer."""
    batch, steps, size = words.shape
    flat_words, wide = words.transpose(0, 1).flatten(0, 1), saved.cells[0].gates.dtype
    before = saved.before.split([layer.recurrent.shape[1] for layer in layers], 2)
    d_words, d_weights = torch.zeros_like(flat_words), []
    for i, (layer, cell) in enumerate(zip(layers, d_cells, strict=True)):
        gates = cell.d_gates.flatten(2).flatten(0, 1)
        d_words.addmm_(gates, layer.inputs[:, :size])
        d_inputs = torch.empty_like(layer.inputs)
        torch.mm(gates.t(), flat_words, out=d_inputs[:, :size])
        torch.mm(gates.t(), saved.inputs[i].flatten(0, 1), out=d_inputs[:, size:])
        d_bias = gates.sum(0, dtype=wide).to(layer.bias.dtype)
        d_weights += [d_inputs, torch.mm(gates.t(), before[i].flatten(0, 1)), d_bias]
    return d_words.unflatten(0, (steps, batch)).transpose(0, 1), d_weights


def _unflattened(
    like: MemoryState, masks: Sequence[Tensor | None], flat: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor], MemoryState, ControllerWeights]:
    """Return h and c of each layer, the memory and the weights from the flat tensors of a segment."""
    rest = iter(flat)
    hidden, cells = ([next(rest) for _ in masks] for _ in range(2))
    memory = like.like([next(rest) for _ in like.tensors()])
    interface, bias = next(rest), next(rest)
    layers = tuple(LayerWeights(next(rest), next(rest), next(rest), mask) for mask in masks)
    return hidden, cells, memory, ControllerWeights(layers, interface, bias)
