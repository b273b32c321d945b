"""What a prediction depends on: scorers, perturbations of the context, experiments and their statistics."""

from backstory.context.bootstrap import Interval, effective_context, paired_interval, paired_intervals
from backstory.context.examination import Examination, Ranks
from backstory.context.experiment_run import examine, measure, regroup
from backstory.context.experiments import EXPERIMENTS, Condition, Experiment
from backstory.context.figures import figures
from backstory.context.folding import Folded, WordScorer, fold
from backstory.context.laboratory import examine_model, examine_run, run_subject
from backstory.context.losses import Losses
from backstory.context.perturbations import (
    Drop,
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
from backstory.context.result import Examined
from backstory.context.scorer import ReaderScorer, Scorer
from backstory.context.sets import combine, examine_runs, read_examination
from backstory.context.splits import SPLITS, Groups
from backstory.context.subject import Options, Subject

__all__ = [
    "EXPERIMENTS",
    "SPLITS",
    "Condition",
    "Drop",
    "Examination",
    "Examined",
    "Experiment",
    "Folded",
    "Groups",
    "Interval",
    "Losses",
    "Options",
    "Permute",
    "Perturbation",
    "Ranks",
    "ReaderScorer",
    "ReplaceFar",
    "ReplaceTarget",
    "Scorer",
    "Similar",
    "Subject",
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
    "run_subject",
    "shuffled",
]
