"""Fit a model: the loop, objectives, optimizers, checkpoints and the run folder."""

from backstory.config.process import Stopped
from backstory.training.fit import train
from backstory.training.objectives import Likelihood, Objective

__all__ = ["Likelihood", "Objective", "Stopped", "train"]
