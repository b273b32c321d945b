"""Cores: embedded words and a state to the hidden vectors of every layer."""

from collections.abc import Callable
from typing import Any

from backstory.config import (
    DNCConfig,
    LSTMConfig,
    MDMConfig,
    MogrifierConfig,
    NTMConfig,
    TransformerConfig,
    TrellisConfig,
)
from backstory.models.contract import Core, CoreOutput
from backstory.models.cores.external_memory import ExternalMemory
from backstory.models.cores.recurrent import LSTM, LSTMState, Mogrifier
from backstory.models.cores.transformer import Transformer
from backstory.models.cores.trellis import Trellis

CORES: dict[type, Callable[[Any, int, int | None], Core]] = {
    LSTMConfig: LSTM,
    MogrifierConfig: Mogrifier,
    NTMConfig: ExternalMemory,
    DNCConfig: ExternalMemory,
    MDMConfig: ExternalMemory,
    TransformerConfig: Transformer,
    TrellisConfig: Trellis,
}
"""Constructors of the cores, by the type of their settings: of these, of E and of the output size (None: the core's own)."""

__all__ = [
    "CORES",
    "LSTM",
    "Core",
    "CoreOutput",
    "ExternalMemory",
    "LSTMState",
    "Mogrifier",
    "Transformer",
    "Trellis",
]
