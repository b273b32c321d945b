"""Fit a model: the loop, objectives, optimizers, checkpoints and the run folder."""

from backstory.training.fit import Stopped, train
from backstory.training.objectives import Likelihood, Objective

__all__ = ["Likelihood", "Objective", "Stopped", "train"]
