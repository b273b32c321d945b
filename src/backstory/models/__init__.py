"""Numbers to predictions: embedding -> core -> dual connection -> head; states are explicit, and parts compose."""

from backstory.models.composed import (
    ComposedModel,
    WordEmbedding,
    build_model,
    check_parts,
    count_parameters,
    outline,
)
from backstory.models.contract import Capabilities, LanguageModel
from backstory.models.devices import Precision, choose_device, choose_precision, device_name
from backstory.models.prediction import (
    Activations,
    Interpolation,
    MixtureOfSoftmaxes,
    Pointer,
    Prediction,
    Softmax,
    Tempered,
)
from backstory.models.state import State, clone, detach, flatten, map_state, to, unflatten

__all__ = [
    "Activations",
    "Capabilities",
    "ComposedModel",
    "Interpolation",
    "LanguageModel",
    "MixtureOfSoftmaxes",
    "Pointer",
    "Precision",
    "Prediction",
    "Softmax",
    "State",
    "Tempered",
    "WordEmbedding",
    "build_model",
    "check_parts",
    "choose_device",
    "choose_precision",
    "clone",
    "count_parameters",
    "detach",
    "device_name",
    "flatten",
    "map_state",
    "outline",
    "to",
    "unflatten",
]
