"""External memories behind one step interface, and the controller that speaks to them."""

from backstory.models.memory.addressing import Addressing, Keys, content_weights, cosines, parse_addressing
from backstory.models.memory.controller import Layer, Weights, controlled
from backstory.models.memory.dnc import NeuralComputer
from backstory.models.memory.interface import Looked, Machine, MemoryState
from backstory.models.memory.ntm import TuringMachine

__all__ = [
    "Addressing",
    "Keys",
    "Layer",
    "Looked",
    "Machine",
    "MemoryState",
    "NeuralComputer",
    "TuringMachine",
    "Weights",
    "content_weights",
    "controlled",
    "cosines",
    "parse_addressing",
]
