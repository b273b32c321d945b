"""Cores with an external memory (NTM, DNC, MDM): a controller of LSTM layers with skips, as the published counts have it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from backstory.config import ExternalMemoryConfig, UserError, plural
from backstory.config.cores import CoreConfig, NeuralComputerConfig
from backstory.config.errors import off
from backstory.models.cores.core import Core, CoreOutput
from backstory.models.cores.lstm import LSTMState
from backstory.models.devices import available, compute_dtype, shown_bytes
from backstory.models.dropout import locked_dropout, recurrent_mask
from backstory.models.memory import (
    Layer,
    Looked,
    Machine,
    MemoryState,
    NeuralComputer,
    TuringMachine,
    Weights,
    controlled,
)
from backstory.models.memory.addressing import Addressing, parse_addressing

ASKED_FROM = 1 << 28
"""Bytes of a memory from which it is asked whether they fit."""


class ExternalMemoryState(NamedTuple):
    """Of the controller's layers and of the memory."""

    controller: LSTMState
    external: MemoryState


class ControllerLayer(nn.Module):
    """The raw weights of one layer: it reads the word, what was read, and the layer below; gates i, f, g, o."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        bound = units**-0.5
        self.weight_ih = nn.Parameter(torch.empty(4 * units, inputs).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(4 * units, units).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(4 * units).uniform_(-bound, bound))


class ExternalMemory(Core):
    """All layers' outputs and what was read, side by side (or a linear layer of them), are the output."""

    def __init__(self, config: ExternalMemoryConfig, inputs: int, output: int | None = None) -> None:
        super().__init__()
        if not config.layers or min(config.layers) < 1:
            raise UserError("model.core.layers holds the units of each layer; give at least one, each 1 or more")
        self.machine = build_machine(config)
        self.inputs, self.reset_token = inputs, config.reset_token
        self.dropouts = config.input_dropout, config.layer_dropout, config.output_dropout
        reads = config.heads * config.width
        fan = [inputs + reads + below for below in (0, *config.layers[:-1])]
        self.layers = nn.ModuleList(map(ControllerLayer, fan, config.layers))
        self.interface = nn.Linear(sum(config.layers), self.machine.interface_size)
        everything = sum(config.layers) + reads
        self.output = None if output is None else nn.Linear(everything, output)
        self.output_size = output or everything
        self._looked: list[Looked] | None = None

    def kept(self, steps: int) -> float:
        slots = self.machine.slots
        # The state, and of every head a dozen numbers for each slot. In float32 whatever the products are in, for which what is
        # counted here stands 1.5 or 1 times: between the two.
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

    @property
    def _links(self) -> bool:
        return isinstance(self.machine, NeuralComputer) and self.machine.link

    def start(self, batch_size: int) -> ExternalMemoryState:
        """Raises UserError where the memories, and the links of their slots, would not fit."""
        like = self.interface.weight
        needed = self._needed(batch_size)
        if needed > ASKED_FROM and (free := available(like.device)) is not None and needed > free:
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
        """Bytes of the memories, and links, that reading a segment has at a time: those before it and its own.

        Where texts begin within, those that take their place as well, and one as at the start; and where they are not
        overwritten in place, as on a GPU, those after a step beside those before it.
        """
        in_place = self.interface.weight.device.type == "cpu" and self.reset_token is None
        memories = (2 if in_place else 3) * batch_size + (self.reset_token is not None)
        of_row = self.machine.width + (self.machine.slots if self._links else 0)
        return memories * self.machine.slots * of_row * self.interface.weight.element_size()

    def forward(self, embedded: Tensor, state: ExternalMemoryState, fresh: Tensor | None = None) -> CoreOutput:
        """`fresh` (B, T): where a text begins, before which all state is as at the start."""
        before, between, after = self.dropouts
        x = locked_dropout(embedded, before, self.training)
        dtype = compute_dtype(x)
        weights = self._weights(len(x), between, x.new_empty(0, dtype=dtype))
        with torch.autocast(x.device.type, enabled=False):
            (hidden, cell), external = state
            found, hidden, cell, external = controlled(
                self.machine, x.to(dtype), hidden, cell, external, weights, fresh, self._looked
            )
        layers = found.split([*(c.shape[1] for c in cell), self.machine.heads * self.machine.width], 2)
        raw = found if self.output is None else self.output(found)
        dropped = locked_dropout(raw, after, self.training)
        now = ExternalMemoryState(LSTMState(tuple(hidden), tuple(cell)), external)
        return CoreOutput((*layers[:-1], raw), dropped, now)

    @contextmanager
    def traced(self) -> Iterator[list[Looked]]:
        """A list that is told, step by step, how slots were found by whatever runs within, which has no gradients.

        Outputs and states are those that they are without it.
        """
        self._looked = looked = []
        try:
            with torch.no_grad():
                yield looked
        finally:
            self._looked = None

    def _weights(self, rows: int, between: float, like: Tensor) -> Weights:
        """As a segment reads them, with the same masks at all steps of it."""
        layers = []
        reads = self.machine.heads * self.machine.width
        for module in self.layers:
            layer = cast(ControllerLayer, module)
            below = layer.weight_ih.shape[1] - self.inputs - reads
            mask = recurrent_mask((rows, below), between, like, self.training) if below else None
            layers.append(Layer(layer.weight_ih.to(like.dtype), layer.weight_hh.to(like.dtype), layer.bias, mask))
        return Weights(tuple(layers), self.interface.weight.to(like.dtype), self.interface.bias)


def build_machine(config: ExternalMemoryConfig) -> Machine:
    """The memory of these settings. Raises UserError for an addressing that it cannot have."""
    sizes = config.slots, config.width, config.heads, Addressing()
    machine: Machine = TuringMachine(*sizes)
    if isinstance(config, NeuralComputerConfig):
        flags = config.link, config.allocation, config.mask, config.deallocation, config.sharpness, config.sharpening
        machine = NeuralComputer(*sizes, *flags)
    return _addressed(machine, config.addressing)


def memory_of(model: nn.Module) -> ExternalMemory | None:
    """The core of a model, where that is an external memory."""
    core = getattr(model, "core", None)
    return core if isinstance(core, ExternalMemory) else None


def _addressed(machine: Machine, addressing: str) -> Machine:
    """The machine with another addressing. Raises UserError for `window` where more than content says where."""
    found = parse_addressing(addressing, machine.slots)
    if found.kind == "window" and isinstance(machine, NeuralComputer) and (machine.link or machine.allocation):
        raise UserError(
            "addressing `window` has nothing but content say where, so model.core.link and model.core.allocation "
            "must be false; or give `localized`"
        )
    return replace(machine, addressing=found)
