"""The contract of experiments and metrics, as functions on a short text and a small model."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from backstory.config import RunConfig
from backstory.config.options import EvalOptions
from backstory.context.examination import Examination
from backstory.context.experiments import Condition, Experiment
from backstory.context.scorer import ReaderScorer
from backstory.data import Dataset, encode_bytes, tokenizer
from backstory.data import build as build_vocabulary
from backstory.evaluation import read
from backstory.evaluation.metrics import Metric
from backstory.evaluation.metrics.metric import plain_result
from backstory.evaluation.opening import EvalSetup
from backstory.evaluation.reading_loop import ScoredBlock
from backstory.plugins.model_contract import TYPES, require
from backstory.plugins.reader_contract import example_ids, small_model
from backstory.readers import StaticReader
from backstory.readers.registry import configure, parse_stack
from backstory.runs.run import Run

# --- experiments ---


def conditions_of(experiment: Experiment) -> Sequence[Condition]:
    """Return the conditions of an experiment on a text of 2,000 tokens."""
    ids = example_ids(2000)
    tags = np.array(["NN", "DT", "VB", "JJ", "IN"])[ids % 5]
    scorer = ReaderScorer(StaticReader(small_model()))
    examination = Examination(
        ids,
        None,
        scorer,
        50,
        400,
        tags=tags,
        training=example_ids(5000),
        counts=np.bincount(ids, minlength=TYPES),
        unknown=0,
    )
    conditions = experiment.conditions(examination)
    require(len(conditions) > 0, "it has no conditions")
    require(len({c.name for c in conditions}) == len(conditions), "two conditions have the same name")
    return conditions


def check_condition(condition: Condition) -> None:
    """Check what a perturbation does to contexts: at least one known token is left, the input is not changed, seeds repeat."""
    if condition.perturb is None:
        return
    tags = np.array(["NN", "DT", "VB", "<unk>"] * 25)
    for seed in range(5):
        context = np.random.default_rng(seed).integers(TYPES, size=100)
        before, results = context.copy(), []
        for _ in range(2):
            results.append(condition.perturb(context, 3, tags, np.random.default_rng(seed)))
        require(bool((context == before).all()), f"{condition.name} changes the context that it is given; copy it")
        require(len(results[0]) > 0, f"{condition.name} leaves no token of a context of 100")
        known = bool(((results[0] >= 0) & (results[0] < TYPES)).all())
        require(known, f"{condition.name} makes tokens outside the vocabulary")
        same = len(results[0]) == len(results[1]) and bool((results[0] == results[1]).all())
        require(same, f"{condition.name} is not repeated by its random generator; draw from that one alone")


def check_conditions(conditions: Sequence[Condition]) -> None:
    """Check every condition of an experiment."""
    for condition in conditions:
        check_condition(condition)


# --- metrics ---


def measures_in_two_halves(kind: type[Metric]) -> None:
    """Check that a metric that is saved between two blocks and restored has the result of one that is not."""
    setup = example_setup()
    blocks: list[ScoredBlock] = []
    read(setup.reader, setup.split.ids, 0, block=15, each=lambda *scored: blocks.append(ScoredBlock(*scored)))
    results: list[Any] = []
    for interrupted in (False, True):
        metric = kind.for_evaluation(setup, EvalOptions())
        if metric is None:  # it does not apply to a model of words
            return
        for number, scored in enumerate(blocks):
            if interrupted and number == 2:
                state = json.loads(json.dumps(metric.state_dict()))
                metric = kind.for_evaluation(setup, EvalOptions())
                assert metric is not None
                metric.load_state_dict(state)
            metric.update(scored)
        results.append(plain_result(metric))
    require(
        results[0] == results[1], "a state_dict that is saved and loaded changes the result; all sums must be in it"
    )


def example_setup() -> EvalSetup:
    """Return a reading of a short text by a small model."""
    model = small_model()
    words = [str(i) for i in example_ids(200, TYPES - 2)]
    vocabulary = build_vocabulary({str(i): TYPES - i for i in range(TYPES - 2)}, tokenizer("words"))
    split, _ = encode_bytes(vocabulary, iter([" ".join(words).encode()]), "text", "the text")
    dataset = Dataset("text", vocabulary, {"text": split}, "0" * 64, "an example")
    run = Run(Path("run"), model, vocabulary, RunConfig(), {}, {})
    reader = StaticReader(model)
    return EvalSetup(run, dataset, split, reader, configure(parse_stack("static"), run), EvalOptions())


METRIC_CHECKS: Mapping[str, Callable[[type[Metric]], None]] = {
    "an interrupted reading measures the same": measures_in_two_halves
}
