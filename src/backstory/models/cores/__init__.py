"""Cores: embedded words and a state to the hidden vectors of every layer."""

from backstory.models.cores.core import Core, CoreOutput
from backstory.models.cores.lstm import LSTM
from backstory.models.cores.mogrifier import Mogrifier
from backstory.models.cores.stacked import LSTMState

__all__ = ["LSTM", "Core", "CoreOutput", "LSTMState", "Mogrifier"]
