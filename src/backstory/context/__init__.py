"""What a prediction depends on: scorers, perturbations of the context, experiments and their statistics."""

from backstory.context.examine import EXPERIMENTS, Examination, Experiment, examine
from backstory.context.folding import Folded, WordScorer, fold
from backstory.context.laboratory import examine_run
from backstory.context.perturbations import Perturbation, Truncate
from backstory.context.scorer import ReaderScorer, Scorer
from backstory.context.statistics import Interval, effective_context, paired_interval

__all__ = [
    "EXPERIMENTS",
    "Examination",
    "Experiment",
    "Folded",
    "Interval",
    "Perturbation",
    "ReaderScorer",
    "Scorer",
    "Truncate",
    "WordScorer",
    "effective_context",
    "examine",
    "examine_run",
    "fold",
    "paired_interval",
]
