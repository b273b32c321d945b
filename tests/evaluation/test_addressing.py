"""Trained external memories that are read with another addressing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import tiny_config, tiny_corpus, with_model, with_training
from tiers import fast_then_full

from backstory.cli.main import main
from backstory.config import DNCConfig, MDMConfig, NTMConfig, RunConfig, SoftmaxConfig, to_dict
from backstory.config.readers import CacheSettings
from backstory.evaluation.evaluation import evaluate
from backstory.readers.registry import parse_stack
from backstory.runs.run import Run, load_run
from backstory.training import train
from backstory.tuning.preparation import tune_reader
from backstory.utils.errors import UserError


def settings(corpus: Path, core: Any) -> RunConfig:
    config = with_model(tiny_config(corpus), core=core, head=SoftmaxConfig(tied=False))
    return with_training(config, learning_rate=1.0, batch_size=12)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("memories")
    corpus = tiny_corpus(folder / "corpus")
    sizes: dict[str, Any] = {"layers": (9, 7), "slots": 8, "width": 5, "heads": 2}
    cores = {
        "ntm": NTMConfig(**sizes),
        "mdm": MDMConfig(**sizes),
        "unlinked": DNCConfig(**sizes, link=False, allocation=False),
        "window": NTMConfig(**sizes, addressing="window:3"),
    }
    for name, core in cores.items():
        train(settings(corpus, core), folder / name)
    train(tiny_config(corpus), folder / "lstm")
    return {name: folder / name for name in (*cores, "lstm")}


@pytest.mark.full
@pytest.mark.parametrize("name", ["ntm", "mdm", "unlinked"])
def test_another_addressing_scores_otherwise_and_says_so(runs: dict[str, Path], name: str) -> None:
    own = evaluate(runs[name])
    assert own.figures.addressing == "dense" and own.figures.audit.passed
    other = evaluate(runs[name], addressing="localized:3")
    assert other.figures.addressing == "localized:3" and other.figures.audit.passed
    assert other.figures.nats_per_token != own.figures.nats_per_token
    assert other.provenance.config["model"]["core"]["addressing"] == "localized:3"
    written = json.loads((runs[name] / "evaluate-test-localized_3" / "result.json").read_text())
    assert written["figures"] == other.figures.to_dict()
    assert evaluate(runs[name]).figures == own.figures  # the run is as it was


@pytest.mark.parametrize("name", fast_then_full(["ntm", "mdm"], ["mdm"]))
def test_readers_of_one_run_with_other_addressings_do_not_disturb_each_other(runs: dict[str, Path], name: str) -> None:
    run = load_run(runs[name])
    tokens = torch.randint(len(run.vocabulary), (2, 9), generator=torch.Generator().manual_seed(0))

    def scores(of: Run) -> torch.Tensor:
        with torch.no_grad():
            return of.model(tokens, of.model.start(2))[0].log_probs()

    own = scores(run)
    others = [run.overridden({"core.addressing": how}) for how in ("localized:3", "literal")]
    found = [scores(other) for other in others]
    assert not torch.equal(found[0], own) and not torch.equal(found[0], found[1])
    assert torch.equal(scores(run), own) and torch.equal(scores(others[0]), found[0])
    assert [of.model.inference_overrides()["core.addressing"] for of in (run, *others)] == [
        "dense",
        "localized:3",
        "literal",
    ]
    assert torch.equal(scores(others[0].overridden({"core.addressing": "dense"})), own)
    for other in others:  # the weights are there once
        assert all(a is b for a, b in zip(run.model.parameters(), other.model.parameters(), strict=True))
        assert not other.model.training and other.settings() != run.settings()


@pytest.mark.full
def test_a_window_alone_is_localized_without_links(runs: dict[str, Path]) -> None:
    window, localized = (
        evaluate(runs["unlinked"], addressing=how).figures.nats_per_token for how in ("window:3", "localized:3")
    )
    assert window == pytest.approx(localized, abs=1e-6)


@pytest.mark.full
def test_a_trained_window_is_read_as_it_was_trained(runs: dict[str, Path]) -> None:
    assert evaluate(runs["window"]).figures.addressing == "window:3"


@pytest.mark.parametrize(
    ("name", "addressing", "message"),
    [
        ("lstm", "dense", "no setting core.addressing that can change after training; remove it"),
        ("ntm", "localized:4", "an odd number"),
        ("ntm", "localized:9", "more slots than the 8"),
        ("mdm", "window:3", "link and model.core.allocation must be false"),
        ("ntm", "nearest", "there is no addressing 'nearest'"),
    ],
)
def test_what_cannot_be_is_refused(runs: dict[str, Path], name: str, addressing: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        evaluate(runs[name], addressing=addressing)


@pytest.mark.full
def test_what_was_prepared_for_the_trained_addressing_is_not_taken_for_another(runs: dict[str, Path]) -> None:
    run = runs["ntm"]
    tune_reader(run, parse_stack("cache"), "valid", 60, ["theta=3", "weight=0.2", "window=20"])
    assert main(["reader", "statistics", str(run), "--batch-size", "10", "--segment", "10"]) == 0

    def cache(addressing: str | None) -> dict[str, Any]:
        return evaluate(run, reader="cache", addressing=addressing).figures.readers[-1]

    for own in (None, "dense"):
        assert cache(own)["settings"]["theta"] == 3.0
        assert cache(own)["origin"] == "tuned on the first 60 tokens of valid"
        assert evaluate(run, reader="dynamic", addressing=own).figures.audit.passed
    other = cache("localized:3")
    assert other["settings"] == to_dict(CacheSettings())
    assert other["origin"] == "default: the tuned settings are for the model as trained"
    told = r"statistics of training gradients are for .*ntm as it was trained; leave --set and --addressing out"
    with pytest.raises(UserError, match=told):
        evaluate(run, reader="dynamic", addressing="localized:3")
    assert evaluate(run, reader="dynamic:rule=sgd", addressing="localized:3").figures.audit.passed
    with pytest.raises(UserError, match=r"readers are prepared for .* as it was trained"):
        tune_reader(run, parse_stack("cache"), "valid", 60, addressing="localized:3")
