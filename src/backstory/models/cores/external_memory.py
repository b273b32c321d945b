"""Cores with an external memory (NTM, DNC, MDM): a controller of LSTM layers with skip connections, and a memory.

`memory.controller` runs the layers and the memory over a segment; `memory.machines` holds the memories.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from backstory.config import ExternalMemoryConfig
from backstory.config.cores import CoreConfig, NeuralComputerConfig
from backstory.models.contract import Core, CoreOutput, ParamGroup
from backstory.models.cores.recurrent import LSTMState
from backstory.models.devices import available, compute_dtype
from backstory.models.dropout import locked_dropout, recurrent_mask
from backstory.models.memory import (
    AddressingTrace,
    ControllerWeights,
    LayerWeights,
    Machine,
    MemoryState,
    NeuralComputer,
    TuringMachine,
    controlled,
)
from backstory.models.memory.addressing import Addressing, parse_addressing
from backstory.utils.errors import UserError, off, plural
from backstory.utils.free_memory import shown_bytes

CHECKED_FROM = 1 << 28
"""Bytes from which `start` checks that the memories fit."""


class ExternalMemoryState(NamedTuple):
    """State of the controller's layers and of the memory."""

    controller: LSTMState
    external: MemoryState


class ControllerLayer(nn.Module):
    """Raw weights of one layer over [x_t, r_{t-1}, h^{l-1}_t]; gates i, f, g, o."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        bound = units**-0.5
        self.weight_ih = nn.Parameter(torch.empty(4 * units, inputs).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(4 * units, units).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(4 * units).uniform_(-bound, bound))


class ExternalMemory(Core):
    """The output is [h^1_t, ..., h^L_t, r_t], all layers' outputs and the reads, or a linear layer of it."""

    def __init__(self, config: ExternalMemoryConfig, inputs: int, output: int | None = None) -> None:
        super().__init__()
        if not config.layers or min(config.layers) < 1:
            raise UserError("model.core.layers holds the units of each layer; give at least one, each 1 or more")
        self.config, self.machine = config, build_machine(config)
        self.inputs, self.reset_token = inputs, config.reset_token
        self.dropouts = config.input_dropout, config.layer_dropout, config.output_dropout
        reads = config.heads * config.width
        fan = [inputs + reads + below for below in (0, *config.layers[:-1])]
        self.layers = nn.ModuleList(map(ControllerLayer, fan, config.layers))
        self.interface = nn.Linear(sum(config.layers), self.machine.interface_size)
        joined = sum(config.layers) + reads
        self.output = None if output is None else nn.Linear(joined, output)
        self.output_size = output or joined

    def param_groups(self) -> list[ParamGroup]:
        return self.matrix_groups(weight_ih=self.config.input_l2, weight_hh=self.config.recurrent_l2)

    def check_vocabulary(self, size: int) -> None:
        if self.reset_token is not None and self.reset_token >= size:
            raise UserError(
                f"model.core.reset_token is {self.reset_token}, and the ids of {size:,} types end at {size - 1}; "
                "give the id of the token that begins a document, or none"
            )

    def extra_activations(self, steps: int) -> float:
        slots = self.machine.slots
        # The state, and a dozen numbers per head and slot. They are float32 in any precision, but the estimate multiplies them
        # by 1.5 or 1: the divisor is between the two.
        numbers = slots * (self.machine.width + 12 * (self.machine.heads + 1)) + (slots * slots if self._links else 0)
        return numbers / 1.2

    def inference_overrides(self) -> dict[str, str]:
        return {"addressing": str(self.machine.addressing)}

    def override(self, setting: str, value: str) -> None:
        if setting != "addressing":
            super().override(setting, value)
        self.machine = _addressed(self.machine, value)

    @classmethod
    def check_override(cls, config: CoreConfig, setting: str, value: str) -> None:
        if setting != "addressing" or not isinstance(config, ExternalMemoryConfig):
            super().check_override(config, setting, value)
        else:
            build_machine(replace(config, addressing=value))

    @classmethod
    def memory_options(cls, config: CoreConfig) -> tuple[str, ...]:
        return ("link",) if isinstance(config, NeuralComputerConfig) and config.link else ()

    @property
    def _links(self) -> bool:
        return isinstance(self.machine, NeuralComputer) and self.machine.link

    def start(self, batch_size: int) -> ExternalMemoryState:
        """Return an empty memory and zeros. Raises UserError if the memories and their links would not fit."""
        like = self.interface.weight
        needed = self._needed(batch_size)
        if needed > CHECKED_FROM and (free := available(like.device)) is not None and needed > free:
            links = " with links between them" if self._links else ""
            instead = f", or set {off('model.core.link')}" if self._links else ""
            raise UserError(
                f"{self.machine.slots:,} slots of memory{links} take {shown_bytes(needed)} for {batch_size} "
                f"{plural('text', batch_size)}, and {shown_bytes(free)} are free; lower model.core.slots{instead}"
            )
        hidden, cell = (
            tuple(like.new_zeros(batch_size, cast(ControllerLayer, x).weight_hh.shape[1]) for x in self.layers)
            for _ in range(2)
        )
        return ExternalMemoryState(LSTMState(hidden, cell), self.machine.start(like.detach(), batch_size))

    def _needed(self, batch_size: int) -> int:
        """Return the bytes of all memories and links that exist at a time while a segment is read.

        These are the memories before the segment, and those in it, which only the CPU overwrites in place. Documents that start
        within the segment need a third copy, and one empty memory.
        """
        in_place = self.interface.weight.device.type == "cpu" and self.reset_token is None
        memories = (2 if in_place else 3) * batch_size + (self.reset_token is not None)
        per_slot = self.machine.width + (self.machine.slots if self._links else 0)
        return memories * self.machine.slots * per_slot * self.interface.weight.element_size()

    def forward(self, embedded: Tensor, state: ExternalMemoryState, tokens: Tensor | None = None) -> CoreOutput:
        document_start = None if self.reset_token is None or tokens is None else tokens == self.reset_token
        before, between, after = self.dropouts
        x = locked_dropout(embedded, before, self.training)
        dtype = compute_dtype(x)
        weights = self._weights(len(x), between, x.new_empty(0, dtype=dtype))
        with torch.autocast(x.device.type, enabled=False):
            (hidden, cell), external = state
            joined, hidden, cell, external = controlled(
                self.machine, x.to(dtype), hidden, cell, external, weights, document_start, _traces.get().get(self)
            )
        layers = joined.split([*(c.shape[1] for c in cell), self.machine.heads * self.machine.width], 2)
        raw = joined if self.output is None else self.output(joined)
        dropped = locked_dropout(raw, after, self.training)
        next_state = ExternalMemoryState(LSTMState(tuple(hidden), tuple(cell)), external)
        return CoreOutput((*layers[:-1], raw), dropped, next_state)

    @contextmanager
    def traced(self) -> Iterator[list[AddressingTrace]]:
        """Collect how every step of the block addresses the memory, without gradients and with the same outputs and states.

        Steps that another thread makes meanwhile are not collected.
        """
        trace: list[AddressingTrace] = []
        token = _traces.set(MappingProxyType({**_traces.get(), self: trace}))
        try:
            with torch.no_grad():
                yield trace
        finally:
            _traces.reset(token)

    def _weights(self, batch_size: int, between: float, like: Tensor) -> ControllerWeights:
        """Return the controller's weights for a segment, with one dropout mask for all its steps."""
        layers = []
        reads = self.machine.heads * self.machine.width
        for module in self.layers:
            layer = cast(ControllerLayer, module)
            below = layer.weight_ih.shape[1] - self.inputs - reads
            mask = recurrent_mask((batch_size, below), between, like, self.training) if below else None
            layers.append(
                LayerWeights(layer.weight_ih.to(like.dtype), layer.weight_hh.to(like.dtype), layer.bias, mask)
            )
        return ControllerWeights(tuple(layers), self.interface.weight.to(like.dtype), self.interface.bias)


_traces: ContextVar[Mapping[ExternalMemory, list[AddressingTrace]]] = ContextVar(
    "traces of cores", default=MappingProxyType({})
)
"""Where the cores that are traced leave their steps."""


def build_machine(config: ExternalMemoryConfig) -> Machine:
    """Build the memory of these settings. Raises UserError for an addressing that it cannot have."""
    machine: Machine
    if isinstance(config, NeuralComputerConfig):
        machine = NeuralComputer(
            config.slots,
            config.width,
            config.heads,
            Addressing(),
            link=config.link,
            allocation=config.allocation,
            mask=config.mask,
            deallocation=config.deallocation,
            sharpness=config.sharpness,
            sharpening=config.sharpening,
        )
    else:
        machine = TuringMachine(config.slots, config.width, config.heads, Addressing())
    return _addressed(machine, config.addressing)


def memory_of(model: nn.Module) -> ExternalMemory | None:
    """Return the core of a model if it has an external memory, else None."""
    core = getattr(model, "core", None)
    return core if isinstance(core, ExternalMemory) else None


def _addressed(machine: Machine, addressing: str) -> Machine:
    """Return the machine with another addressing. Raises UserError for `window` if anything but content addresses it."""
    parsed = parse_addressing(addressing, machine.slots)
    if parsed.kind == "window" and isinstance(machine, NeuralComputer) and (machine.link or machine.allocation):
        raise UserError(
            "addressing `window` uses content alone, so model.core.link and model.core.allocation "
            "must be false; or give `localized`"
        )
    return replace(machine, addressing=parsed)
