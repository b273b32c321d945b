"""Runs of every core but the LSTM: trained, resumed, read by every kind of reader, examined and explained."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import with_model, with_training

import backstory as bs
from backstory.config import (
    DNCConfig,
    MDMConfig,
    MogrifierConfig,
    NTMConfig,
    RunConfig,
    SpanBufferConfig,
    TransformerConfig,
    TrellisConfig,
)
from backstory.config.options import EvalOptions
from backstory.evaluation import evaluate, read
from backstory.evaluation.opening import open_evaluation
from backstory.readers import StaticReader
from backstory.runs.run import load_run
from backstory.tuning.preparation import collect_statistics

Train = Callable[..., dict]

TRANSFORMER = TransformerConfig(layers=2, heads=2, hidden=12, window=16)
CORES = {
    "mogrifier": MogrifierConfig(layers=2, hidden=9, rank=3),
    "transformer": TRANSFORMER,
    "transformer that begins anew": TransformerConfig(
        layers=2, heads=2, hidden=12, window=16, chunked=True, positions="sinusoidal", norm="post", activation="relu"
    ),
    "trellis": TrellisConfig(levels=9, hidden=13, auxiliary=3, auxiliary_weight=0.3),
    "ntm": NTMConfig(layers=(9, 7), slots=6, width=5),
    "mdm": MDMConfig(layers=(9, 7), slots=6, width=5, heads=2),
    "dnc": DNCConfig(layers=(9, 7), slots=6, width=5, link=False, allocation=False, addressing="window:3"),
}


def config(base: RunConfig, core: str, **model: object) -> RunConfig:
    """Adam for three epochs."""
    settings = with_training(base, epochs=3, optimizer="adam", learning_rate=0.01, averaging="none")
    return with_model(settings, core=CORES[core], **model)


@pytest.mark.full
@pytest.mark.parametrize("core", CORES)
def test_a_run_learns_and_is_read_examined_and_explained(
    core: str, tiny_config: RunConfig, quietly: Train, tmp_path: Path
) -> None:
    result = quietly(config(tiny_config, core), tmp_path / "run")
    curve = [epoch.valid_nats for epoch in result.figures.curve]
    assert curve[-1] < curve[0] < math.log(40)
    found, run = {}, tmp_path / "run"
    for moving in ("all", "low-rank:2"):
        collect_statistics(open_evaluation(run, EvalOptions(split="train", allow_unknown=True)), moving, None, 4, 5)
    readers = ("static", "cache", "dynamic", "dynamic:moving=low-rank:2")
    for number, reader in enumerate(readers):
        evaluation = evaluate(run, split="valid", reader=reader, out=tmp_path / str(number))
        assert evaluation.figures.audit.passed, reader
        found[reader] = evaluation.figures.nats_per_token
    assert found["static"] == pytest.approx(read_whole(run), abs=1e-5)
    assert len(set(found.values())) == len(found)
    assert bs.examine(run, None, "truncate", targets=20, maximum_context=16).figures
    assert bs.explain(run, split="valid", at=3, words=20).figures


def read_whole(run: Path) -> float:
    """The validation text in a single block."""
    loaded = load_run(run)
    dataset = loaded.dataset(None, None)
    ids = dataset.splits["valid"].ids
    return read(StaticReader(loaded.model), ids, dataset.vocabulary.start, block=len(ids)).nats


@pytest.mark.full
@pytest.mark.parametrize("core", ["transformer", "trellis"])
def test_a_span_buffer_over_it_is_trained_and_read_exactly(
    core: str, tiny_config: RunConfig, quietly: Train, tmp_path: Path
) -> None:
    quietly(config(tiny_config, core, buffer=SpanBufferConfig(size=24, span=4)), tmp_path / "run")
    evaluation = evaluate(tmp_path / "run", split="valid").figures
    assert evaluation.audit.passed and 0 < evaluation.policy.mean_lambda < 1
    loaded = load_run(tmp_path / "run")
    model, ids = loaded.model.double().eval(), torch.from_numpy(np.arange(90) % 11)[None]
    with torch.no_grad():
        whole, state, pieces = model(ids, model.start(1))[0].log_probs(), model.start(1), []
        for piece in ids.split([1, 40, 7, 30, 12], 1):
            prediction, state = model(piece, state)
            pieces.append(prediction.log_probs())
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("core", ["transformer", "trellis", "ntm", "mdm", "dnc"])
def test_a_stopped_run_resumes_to_what_it_would_have_been(
    core: str, tiny_config: RunConfig, resumes_exactly: Callable[..., object]
) -> None:
    resumes_exactly(config(tiny_config, core), 3)
