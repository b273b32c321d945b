"""External memories with one step interface, and the controller that reads and writes them."""

from backstory.models.memory.addressing import Addressing, Keys, content_weights, cosines, parse_addressing
from backstory.models.memory.controller import ControllerWeights, LayerWeights, controlled
from backstory.models.memory.dnc import NeuralComputer
from backstory.models.memory.interface import AddressingTrace, Machine, MemoryState
from backstory.models.memory.ntm import TuringMachine

__all__ = [
    "Addressing",
    "AddressingTrace",
    "ControllerWeights",
    "Keys",
    "LayerWeights",
    "Machine",
    "MemoryState",
    "NeuralComputer",
    "TuringMachine",
    "content_weights",
    "controlled",
    "cosines",
    "parse_addressing",
]
