"""Fit a model: the loop, objectives, optimizers, checkpoints and the run folder."""

from backstory.training.fit import train
from backstory.training.objectives import Likelihood, Objective
from backstory.utils.process import Stopped

__all__ = ["Likelihood", "Objective", "Stopped", "train"]
