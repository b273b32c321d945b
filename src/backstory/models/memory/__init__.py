"""External memories with one step interface, and the controller that reads and writes them."""

from backstory.models.memory.addressing import Addressing, content_weights, parse_addressing
from backstory.models.memory.controller import ControllerWeights, LayerWeights, controlled
from backstory.models.memory.machines import AddressingTrace, Machine, MemoryState, NeuralComputer, TuringMachine
from backstory.models.memory.slots import Keys, cosines

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
