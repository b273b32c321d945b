"""Ensembles: the plain mean of what each model predicts alone, tuned, saved, and bound to the weights of every member."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from adapting import text
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import TYPES, dual, lstm, mixture

import backstory as bs
from backstory.config import RunConfig
from backstory.config.readers import DynamicSettings, EnsembleSettings
from backstory.evaluation import read
from backstory.readers import Reader, StaticReader
from backstory.readers.dynamic import DynamicEvaluation
from backstory.readers.ensemble import EnsembleReader, Members
from backstory.readers.interpolating import WEIGHTS, WeightScorer
from backstory.readers.registry import configure, open_reader, parse_stack, save_settings
from backstory.readers.saved_reading import load_reading, open_saved, reader_identity, save_reading
from backstory.runs.run import load_run
from backstory.tuning.preparation import tune_reader
from backstory.utils.errors import UserError

FIRST = 3


def dynamic(segment: int = 4, rate: float = 0.5) -> Reader:
    return DynamicEvaluation(dual(), DynamicSettings(rule="sgd", rate=rate, segment=segment), None)


def scores(reader: Reader, ids: np.ndarray) -> np.ndarray:
    """Probabilities (N,) of a text."""
    pieces: list[torch.Tensor] = []
    read(reader, ids, FIRST, each=lambda block, prediction, score: pieces.append(score[0].double().exp()))
    return torch.cat(pieces).numpy()


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 50), st.sampled_from([None, 0.0, 0.3, 1.0]), st.integers(1, 3))
def test_it_is_the_weighted_mean_of_what_each_predicts_alone(length: int, weight: float | None, members: int) -> None:
    ids, makers = (
        text(length, length),
        [lambda: StaticReader(mixture()), dynamic, lambda: StaticReader(dual())][:members],
    )
    alone = [scores(make(), ids) for make in makers]
    share = members / (members + 1) if weight is None else weight
    expected = (1 - share) * scores(StaticReader(lstm()), ids) + share * np.mean(alone, 0)
    ensemble = EnsembleReader(
        StaticReader(lstm()), EnsembleSettings(weight=weight), Members([make() for make in makers])
    )
    np.testing.assert_allclose(scores(ensemble, ids), expected, rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("segments", [(4, 4), (4, 6), (12, 5), (40, 16)])
def test_members_that_learn_take_their_steps_as_alone(segments: tuple[int, int]) -> None:
    ids, (first, second) = text(60, 3), (partial(dynamic, segment, rate=0.05) for segment in segments)
    expected = (scores(first(), ids) + scores(second(), ids)) / 2
    ensemble = EnsembleReader(first(), EnsembleSettings(), Members([second()]))
    np.testing.assert_allclose(scores(ensemble, ids), expected, rtol=1e-4)


def test_its_distribution_sums_to_one() -> None:
    ensemble = EnsembleReader(StaticReader(lstm()), EnsembleSettings(), Members([StaticReader(mixture()), dynamic()]))
    ensemble.start(1)
    table = ensemble.predict(torch.tensor([[FIRST, 1, 2, 5]])).log_probs().double().exp()
    assert table.shape == (1, 4, TYPES)
    torch.testing.assert_close(table.sum(2), torch.ones(1, 4, dtype=torch.float64), rtol=1e-6, atol=0)


def test_a_fork_reads_on_by_itself() -> None:
    ids = torch.from_numpy(text(30, 1).astype(np.int64))[None]
    one = EnsembleReader(StaticReader(lstm()), EnsembleSettings(), Members([StaticReader(mixture()), dynamic()]))
    one.start(1)
    one.predict(ids[:, :8])
    one.observe(ids[:, 1:9])
    other = one.fork()
    expected = one.predict(ids[:, 8:12]).log_probs()
    other.predict(ids[:, 20:24])
    other.observe(ids[:, 21:25])
    assert torch.equal(one.predict(ids[:, 8:12]).log_probs(), expected)
    assert not torch.equal(other.predict(ids[:, 8:12]).log_probs(), expected)


def test_its_weight_is_tuned_as_reading_with_each_weight_would_have_it() -> None:
    ids = text(40, 2)
    scorer = WeightScorer({}, EnsembleSettings, lambda settings: Members([StaticReader(mixture())]))
    read(
        StaticReader(lstm()), ids, FIRST, each=lambda block, prediction, score: scorer.update(block, prediction, score)
    )
    assert [point.weight for point, _ in scorer.scores()] == list(WEIGHTS)
    for point, nats in scorer.scores():
        reader = EnsembleReader(StaticReader(lstm()), point, Members([StaticReader(mixture())]))
        assert nats == pytest.approx(-np.log(scores(reader, ids)).mean(), rel=1e-5)


@pytest.fixture(scope="module")
def pair(tiny_run: Path, tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A copy of the tiny run, and another run of the same corpus with another seed."""
    folder = tmp_path_factory.mktemp("pair")
    shutil.copytree(tiny_run, folder / "one")
    bs.train(tiny_config, out=folder / "two", overrides={"seed": 2})
    return folder / "one", folder / "two"


@pytest.mark.full
def test_a_run_is_read_with_others(pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = pair
    log_probs, figures = {}, {}
    other = shutil.copytree(one, tmp_path / "other")
    readings = {
        "one": (one, "static"),
        "two": (two, "static"),
        "both": (one, f"ensemble:runs={two}"),
        "three": (one, f"ensemble:runs={two};{other}"),
    }
    for name, (run, reader) in readings.items():
        table = tmp_path / f"{name}.tsv"
        figures[name] = bs.evaluate(run, reader=reader, out=tmp_path / name, per_token=table).figures
        log_probs[name] = np.loadtxt(table, delimiter="\t", skiprows=1, usecols=5)
    p, q = np.exp(log_probs["one"]), np.exp(log_probs["two"])
    np.testing.assert_allclose(np.exp(log_probs["both"]), (p + q) / 2, rtol=1e-4)
    np.testing.assert_allclose(np.exp(log_probs["three"]), (2 * p + q) / 3, rtol=1e-4)
    assert figures["both"].audit.passed and figures["both"].readers[-1]["members"].keys() == {str(two)}
    assert [gain.name for gain in figures["both"].gains] == ["static", "ensemble"]


def test_the_folder_of_a_result_has_a_name_that_a_file_system_takes(pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = (shutil.copytree(run, tmp_path / ("ä" * 99) / ("b" * 200) / run.name) for run in pair)
    result = bs.evaluate(one, reader=f"ensemble:runs={two}")
    (folder,) = one.glob("evaluate-*")
    assert folder.name.startswith("evaluate-test-ensemble_runs_") and len(folder.name.encode()) <= 200
    assert result.path == folder / "result.json"


def test_weights_are_tuned_for_each_ensemble(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, stack = shutil.copytree(pair[0], tmp_path / "own"), parse_stack(f"ensemble:runs={pair[1]}")
    (path,), _ = tune_reader(own, stack, "valid", 100)
    run, weight = load_run(own), json.loads(path.read_text())["settings"]["weight"]
    assert path.parent == own / "readers" and weight in WEIGHTS
    assert configure(stack, run)[-1].settings.weight == weight
    assert configure(parse_stack(f"ensemble:runs={own}"), run)[-1].settings.weight is None
    moved = shutil.copytree(pair[1], tmp_path / ("a very long name" * 12) / "7")
    monkeypatch.chdir(moved.parent)
    assert configure(parse_stack("ensemble:runs=7"), run)[-1].settings.weight == weight
    shutil.rmtree(moved)
    shutil.copytree(pair[0], moved)  # as if it had been trained again
    assert configure(parse_stack("ensemble:runs=7"), run)[-1].settings.weight is None


@pytest.mark.full
def test_a_result_holds_the_settings_of_every_reader(pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = pair[0], shutil.copytree(pair[1], tmp_path / "two")
    tuned = DynamicSettings(rule="sgd", rate=0.03, segment=7)
    save_settings(load_run(two), parse_stack("dynamic"), tuned, "valid", {})
    layers = {}
    for reader in ("static", "dynamic"):
        figures = bs.evaluate(one, reader=f"ensemble:runs={two},reader={reader}", out=tmp_path / reader).figures
        layers[reader] = figures.readers[-1]["member_readers"][str(two)]
    assert layers["static"] == [{"name": "static", "settings": {}, "origin": "default"}]
    assert layers["dynamic"] == [{"name": "dynamic", "settings": vars(tuned), "origin": "tuned on valid"}]


@pytest.mark.full
def test_a_proof_is_bound_to_the_weights_of_every_member(pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = pair
    other = shutil.copytree(two, tmp_path / "other")
    proof = tmp_path / "proof.bks"
    bs.evaluate(one, reader=f"ensemble:runs={other}", out=tmp_path / "out", proof=proof)
    bs.verify(proof)
    shutil.rmtree(other)
    shutil.copytree(one, other)
    with pytest.raises(UserError, match="has changed since the file was written"):
        bs.verify(proof)


def test_a_session_is_bound_to_the_weights_of_every_member(pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = pair
    other = shutil.copytree(two, tmp_path / "other")
    run, reader, layers = open_reader(one, f"ensemble:runs={other}")
    reader.start(1)
    save_reading(tmp_path / "saved", 1, reader, reader_identity(run, layers, reader), {})
    saved = load_reading(tmp_path / "saved")
    assert saved is not None
    open_saved(one, saved, None)
    shutil.rmtree(other)
    shutil.copytree(one, other)
    with pytest.raises(UserError, match=f"was saved with another {other} than there is now"):
        open_saved(one, saved, None)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("ensemble", "needs another run; name it: ensemble:runs=RUN"),
        ("ensemble:runs={two},reader=cache", "read with static, dynamic or learned, not with cache"),
        (
            "ensemble:runs={two},reader=shuffled-buffer",
            "read with static, dynamic or learned, not with shuffled-buffer",
        ),
        ("ensemble:runs={two};{two}", "twice; name it once"),
        ("ensemble:runs={two},{two}", "a semicolon separates several runs"),
        ("ensemble:runs=absent/run", "a run of the ensemble cannot be read: there is no run"),
        ("ensemble:runs={characters}", "has another vocabulary than"),
    ],
)
def test_what_is_no_ensemble_is_refused(
    typed: str, message: str, pair: tuple[Path, Path], characters: Path, tmp_path: Path
) -> None:
    one, two = pair
    with pytest.raises(UserError, match=message):
        bs.evaluate(one, reader=typed.format(two=two, characters=characters), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def characters(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same corpus with another tokenizer."""
    out = tmp_path_factory.mktemp("characters") / "run"
    bs.train(tiny_config, out=out, overrides={"text.tokenizer": "characters"})
    return out
