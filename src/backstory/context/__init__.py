"""Experiments on how much of its context a model uses, and what for: scorers, perturbations, statistics (Khandelwal et al.)."""

from backstory.context.bootstrap import Interval, effective_context, paired_interval, paired_intervals
from backstory.context.effects import Effects, figures, regroup
from backstory.context.examination import SPLITS, Examination, Groups, ProcessGroup
from backstory.context.examined_text import AnnotatedText, Folded, fold
from backstory.context.experiment_run import examine, measure
from backstory.context.experiments import (
    EXPERIMENTS,
    Condition,
    Drop,
    Experiment,
    Permute,
    Perturbation,
    ReplaceFar,
    ReplaceTarget,
    Similar,
    Truncate,
    drop_target,
    reversed_order,
    shuffled,
)
from backstory.context.laboratory import examine_model, examine_run, examine_runs
from backstory.context.losses import Losses
from backstory.context.result import ExaminationResult, combine, read_examination
from backstory.context.scorer import ReaderScorer, Scorer, WordScorer

__all__ = [
    "EXPERIMENTS",
    "SPLITS",
    "AnnotatedText",
    "Condition",
    "Drop",
    "Effects",
    "Examination",
    "ExaminationResult",
    "Experiment",
    "Folded",
    "Groups",
    "Interval",
    "Losses",
    "Permute",
    "Perturbation",
    "ProcessGroup",
    "ReaderScorer",
    "ReplaceFar",
    "ReplaceTarget",
    "Scorer",
    "Similar",
    "Truncate",
    "WordScorer",
    "combine",
    "drop_target",
    "effective_context",
    "examine",
    "examine_model",
    "examine_run",
    "examine_runs",
    "figures",
    "fold",
    "measure",
    "paired_interval",
    "paired_intervals",
    "read_examination",
    "regroup",
    "reversed_order",
    "shuffled",
]
