"""Examinations score the same targets under every condition, and find the known memory of a model."""

import json
import math
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from copying import Copying

import backstory as bs
from backstory.config.options import EvalOptions
from backstory.context import EXPERIMENTS, Examination, ReaderScorer, examine, experiment_run, measure
from backstory.context.experiments import CONTEXTS
from backstory.context.scorer import WordScorer
from backstory.data import prepare
from backstory.evaluation import Block, evaluate, read
from backstory.evaluation.opening import open_evaluation
from backstory.models import Precision, Prediction
from backstory.readers import StaticReader
from backstory.results import read as read_results
from backstory.results import result_from
from backstory.results.examination_record import ExaminationFigures
from backstory.runs.run import load_run
from backstory.utils.errors import UserError

FLOAT32 = Precision(torch.float32, "a test")
TYPES = 17


def repeating(period: int, count: int = 700) -> np.ndarray:
    """Repeat a random stretch of `period` tokens."""
    return np.tile(np.random.default_rng(0).integers(0, TYPES, period), count // period + 1)[:count].astype(np.uint16)


def baseline(model: Copying, ids: np.ndarray) -> np.ndarray:
    """Nats of every token, read once from end to end."""
    pieces = []

    def keep(block: Block, prediction: Prediction, log_prob: torch.Tensor) -> None:
        pieces.append(-log_prob[block.scored].double().numpy())

    read(StaticReader(model), ids, 0, each=keep)
    return np.concatenate(pieces)


def examination(distance: int, maximum_context: int = 100, **changes: Any) -> Examination:
    """An experiment on a model that repeats what it read `distance` tokens ago, on a text that does repeat so."""
    model, ids = Copying(TYPES, distance), repeating(distance)
    settings = {"targets": 150, "maximum_context": maximum_context} | changes
    return Examination(ids, baseline(model, ids), ReaderScorer(StaticReader(model, FLOAT32)), **settings)


@pytest.mark.parametrize("of_words", [False, True])
def test_a_gpu_scores_more_contexts_at_a_time(of_words: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU would idle between small calls; the scorer splits large ones into batches that fit its memory."""
    sizes_scored: list[int] = []

    def score(self: object, contexts: Any, targets: np.ndarray, progress: Any = None) -> np.ndarray:
        sizes_scored.append(len(targets))
        return np.full(len(targets), -1.0)

    monkeypatch.setattr(WordScorer if of_words else ReaderScorer, "score", score)
    monkeypatch.setattr(experiment_run, "GPU_PIECE", 100)
    for kind, sizes in (("cpu", {64, 22}), ("cuda", {100, 50})):
        on = examination(5)
        scorer: Any = on.scorer
        scorer.device = torch.device(kind)
        if of_words:
            on = replace(on, scorer=WordScorer(scorer, [np.array([word]) for word in range(TYPES)]))
        sizes_scored.clear()
        measure("truncate", on)
        assert set(sizes_scored) == sizes  # of 150 targets


class Noting:
    """A scorer that records its calls and gives every target the same score."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[np.ndarray], np.ndarray]] = []

    def score(self, contexts: Any, targets: np.ndarray, progress: Any = None) -> np.ndarray:
        self.asked.append((list(contexts), targets))
        if progress is not None:
            progress(sum(map(len, contexts)))
        return np.full(len(targets), -1.0)


@pytest.mark.parametrize("distance, answer", [(5, 5), (17, 20), (20, 20), (25, 30), (90, 100)])
def test_the_effective_context_of_a_known_memory(distance: int, answer: int) -> None:
    figures = examine("truncate", examination(distance))
    assert figures.effective_context is not None and figures.effective_context.to_dict() == {
        "context": answer,
        "low": answer,
        "high": answer,
        "threshold_percent": 1.0,
        "more_context_hurts": False,
    }
    for condition in figures.conditions:
        reaches = condition.context >= distance
        # Without the token to repeat, the model has no clue: ln 17 nats instead of almost none.
        expected = 0.0 if reaches else math.log(TYPES) - figures.baseline.nats
        assert condition.effect == pytest.approx(expected, abs=1e-9)
        assert condition.low == pytest.approx(expected, abs=1e-9)


def test_a_memory_beyond_the_longest_context_is_said_to_be_so() -> None:
    figures = examine("truncate", examination(distance=120))
    found = figures.effective_context
    assert found is not None and (found.context, found.low, found.high) == (None, None, None)


@pytest.mark.parametrize(
    "longest, contexts", [(1, [1]), (5, [5]), (12, [5, 10, 12]), (100, [5, 10, 13, 20, 30, 50, 75, 100])]
)
def test_contexts_are_tried_up_to_the_longest(longest: int, contexts: list[int]) -> None:
    figures = examine("truncate", examination(5, longest))
    assert [c.context for c in figures.conditions] == contexts
    assert list(CONTEXTS) == sorted(CONTEXTS)


def test_every_condition_scores_the_same_targets() -> None:
    ids, noting = np.arange(400), Noting()
    examine("truncate", Examination(ids, np.zeros(400), noting, targets=50, maximum_context=60))
    lengths = [n for n in CONTEXTS if n < 60] + [60]
    assert len(noting.asked) == len(lengths)
    for (contexts, targets), length in zip(noting.asked, lengths, strict=True):
        assert np.array_equal(targets, noting.asked[0][1])
        for context, target in zip(contexts, targets, strict=True):
            # In this text a token is its place, so the context must be the places just before the target.
            assert np.array_equal(context, np.arange(target - length, target))


def test_effects_are_against_the_baseline_of_the_same_targets() -> None:
    nats = np.random.default_rng(0).exponential(3, 400)
    on = Examination(np.arange(400), nats, Noting(), targets=50, maximum_context=60)
    figures = examine("truncate", on)
    mean = nats[on.positions()].mean()
    assert figures.baseline.to_dict() == {
        "context": None,
        "nats": pytest.approx(mean),
        "perplexity": pytest.approx(math.exp(mean)),
    }
    for condition in figures.conditions:
        assert condition.nats == pytest.approx(1.0)
        assert condition.effect == pytest.approx(1.0 - mean)
        assert condition.effect_percent == pytest.approx(100 * (math.exp(1.0 - mean) - 1))
        assert condition.low < condition.effect < condition.high


@hypothesis.given(
    tokens=st.integers(2, 400), longest=st.integers(1, 300), targets=st.integers(2, 500), seed=st.integers(0, 9)
)
def test_targets_have_the_longest_context_before_them(tokens: int, longest: int, targets: int, seed: int) -> None:
    on = Examination(np.zeros(tokens), np.zeros(tokens), Noting(), targets, longest, seed)
    if tokens - longest < 2:
        with pytest.raises(UserError, match="choose a longer split or a smaller --maximum-context"):
            on.positions()
        return
    positions = on.positions()
    assert positions.min() >= longest and positions.max() < tokens
    assert len(positions) == min(targets, tokens - longest)
    assert (np.diff(positions) > 0).all()
    assert np.array_equal(positions, on.positions())


def test_other_seeds_choose_other_targets() -> None:
    chosen = [examination(5, seed=seed, targets=40).positions().tolist() for seed in (0, 1)]
    assert chosen[0] != chosen[1]


def test_progress_reaches_its_end() -> None:
    told: list[tuple[int, int]] = []
    examine("truncate", examination(5, 40), lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] == 150 * (5 + 10 + 13 + 20 + 30 + 40)
    assert all(a[0] < b[0] for a, b in pairwise(told))


def test_an_unknown_experiment_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no experiment 'truncat' \(did you mean 'truncate'\?\)"):
        examine("truncat", examination(5))


def test_every_experiment_says_what_it_is() -> None:
    assert EXPERIMENTS and all(EXPERIMENTS.values())


@pytest.fixture(scope="module")
def examined(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """An examination of the tiny run, as returned, and the folder it was written to."""
    out = tmp_path_factory.mktemp("examined") / "below" / "here"
    found = bs.examine(tiny_run, None, "truncate", targets=40, maximum_context=30, precision="float32", out=out)
    return found.to_dict(), out


def test_the_written_result_is_the_one_returned_and_a_report_takes_it(examined: tuple[dict[str, Any], Path]) -> None:
    result, out = examined
    text = (out / "result.json").read_text()
    assert json.loads(text) == result
    assert result_from(text, "result.json").label == "examine truncate on valid"


def test_a_result_has_the_documented_fields(examined: tuple[dict[str, Any], Path]) -> None:
    figures = examined[0]["figures"]
    plain = {
        "experiment": "truncate", "split": "valid", "reader": "static", "unit": "word", "targets": 40,
        "maximum_context": 30, "seed": 0, "context": None, "within_documents": False, "near": 50, "tagger": None,
        "unknown_tag_share": None, "batch_size": 1, "pieces_per_word": None, "word_score": None, "window": None,
        "cut_contexts": 0, "unknown_tokens": 0, "unknown_share": 0.0, "out_of_vocabulary_tokens": 0,
        "out_of_vocabulary_share": 0.0, "out_of_vocabulary_cause": None, "start_token": False,
    }  # fmt: skip
    assert figures.keys() == {*plain, "readers", "baseline", "conditions", "effective_context", "groups"}
    assert {key: figures[key] for key in plain} == plain
    assert [layer["name"] for layer in figures["readers"]] == ["static"]
    assert figures["baseline"].keys() == {"context", "nats", "perplexity"}
    assert figures["effective_context"].keys() == {"context", "low", "high", "threshold_percent", "more_context_hurts"}
    for condition in figures["conditions"]:
        assert condition.keys() == {
            "name", "method", "context", "targets", "nats", "perplexity", "effect", "low", "high", "effect_percent",
        }  # fmt: skip
        assert condition["perplexity"] == pytest.approx(math.exp(condition["nats"]))
    assert [(group["by"], group["group"]) for group in figures["groups"]] == [("frequency", "infrequent")]
    (group,) = figures["groups"]
    assert group.keys() == {"by", "group", "targets", "share", "baseline", "conditions", "effective_context"}
    # The text is short: no word is frequent, so the one group is all there is.
    assert (group["targets"], group["share"]) == (40, 1.0)
    assert [group[key] for key in ("baseline", "conditions")] == [figures[key] for key in ("baseline", "conditions")]


def test_the_baseline_is_every_token_before_the_target(examined: tuple[dict[str, Any], Path], tiny_run: Path) -> None:
    run = load_run(tiny_run)
    dataset = prepare(run.config.text)
    ids, start = np.asarray(dataset.splits["valid"].ids), dataset.vocabulary.start
    positions = Examination(ids, np.empty(0), Noting(), 40, 30).positions()
    whole = [np.concatenate([[start], ids[:p]]) for p in positions]
    expected = -ReaderScorer(StaticReader(run.model, FLOAT32)).score(whole, ids[positions]).mean()
    assert examined[0]["figures"]["baseline"]["nats"] == pytest.approx(expected, abs=1e-4)


def test_an_examination_is_repeated_by_its_seed(examined: tuple[dict[str, Any], Path], tiny_run: Path) -> None:
    settings: dict[str, Any] = {"targets": 40, "maximum_context": 30, "precision": "float32", "out": examined[1]}
    again, other = (
        bs.examine(tiny_run, None, "truncate", seed=seed, again=True, **settings).figures.to_dict() for seed in (0, 1)
    )
    assert again == examined[0]["figures"] != other


def test_a_cache_is_examined_beside_the_model_alone(tiny_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    cache: dict[str, Any] = {"reader": "cache:window=40,weight=0.3", "precision": "float32"}
    evaluation = evaluate(run, split="valid", **cache).figures
    text = evaluation.tokens
    # Every token that has ten before it is a target, so the baseline is the evaluation but for the first ten.
    figures = bs.examine(run, None, "truncate", targets=text, maximum_context=10, **cache).figures
    assert figures.reader == evaluation.reader and figures.readers == evaluation.readers
    opened = open_evaluation(run, EvalOptions.build(split="valid", allow_unknown=True, **cache))
    ids, first = np.asarray(opened.split.ids), opened.dataset.vocabulary.start
    pieces: list[torch.Tensor] = []
    read(opened.reader, ids, first, each=lambda block, prediction, log_prob: pieces.append(-log_prob[0].double()))
    nats = torch.cat(pieces)
    assert nats.mean().item() == pytest.approx(evaluation.nats_per_token, abs=1e-6)
    assert figures.baseline.nats == pytest.approx(nats[10:].mean().item(), abs=1e-6)
    bs.examine(run, None, "truncate", targets=text, maximum_context=10, precision="float32")
    assert {p.name for p in run.glob("examine-*")} == {
        "examine-truncate-valid", "examine-truncate-valid-cache_window_40_weight_0.3",
    }  # fmt: skip
    labels = [r.label for r in read_results(run).of(ExaminationFigures)]
    assert labels == ["examine truncate on valid", "examine truncate on valid (cache:window=40,weight=0.3)"]


def test_a_reader_that_learns_is_refused_before_the_split_is_read(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstory.context.examined_text.read", lambda *_, **__: pytest.fail("it read the split"))
    with pytest.raises(UserError, match="the reader dynamic learns as it reads"):
        bs.examine(tiny_run, None, "truncate", reader="dynamic:rule=sgd", maximum_context=30)
    with pytest.raises(UserError, match="the reader dynamic learns as it reads"):
        bs.examine(tiny_run, None, "truncate", reader="dynamic", maximum_context=30)  # which has no statistics, either


def test_a_split_too_short_is_refused_before_it_is_read(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstory.context.examined_text.read", lambda *_, **__: pytest.fail("it read the split"))
    with pytest.raises(UserError, match=r"too few for contexts of 1,000; .*maximum_context"):
        bs.examine(tiny_run, None, "truncate")


def test_a_place_that_cannot_be_written_is_refused_before_the_split_is_read(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstory.context.examined_text.read", lambda *_, **__: pytest.fail("it read the split"))
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=r"cannot write to .*file; choose another folder with out"):
            bs.examine(tiny_run, None, "truncate", maximum_context=30, out=out)
