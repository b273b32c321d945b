"""A run that begins with another's weights: what it takes over, what it says, what it refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import contents, outcome, tiny_corpus, with_model, with_training

from backstory.cli.main import main
from backstory.config import AuxiliarySoftmaxConfig, LSTMConfig, RunConfig, SpanBufferConfig
from backstory.evaluation import evaluate
from backstory.runs import run_folder
from backstory.runs.run import load_run, weights_hash
from backstory.storage.atomic import write_atomically
from backstory.training import Stopped, loop
from backstory.utils.errors import UserError

Train = Callable[..., dict]
BUFFER = SpanBufferConfig(size=12, span=4)


@pytest.fixture(scope="module")
def base(tiny_config: RunConfig, quietly: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that others begin with; none of them writes into it."""
    folder = tmp_path_factory.mktemp("begin") / "base"
    quietly(with_training(tiny_config, epochs=2), folder)
    return folder


def still(config: RunConfig) -> RunConfig:
    """With a buffer, and steps that leave the weights where they are."""
    return with_model(with_training(config, learning_rate=1e-30, weight_decay=0.0), buffer=BUFFER)


@pytest.mark.full
def test_it_has_the_others_weights_and_new_ones_beyond_them(
    tiny_config: RunConfig, quietly: Train, base: Path, tmp_path: Path
) -> None:
    result = quietly(still(tiny_config), tmp_path / "run", init_from=base)
    theirs, run = load_run(base), load_run(tmp_path / "run")
    ours = dict(run.model.named_parameters())
    for name, parameter in theirs.model.named_parameters():
        assert torch.equal(ours.pop(name), parameter)
    assert ours and all(name.startswith("gated.") for name in ours)
    assert result.provenance.init_from == {"run": "base", "weights": weights_hash(theirs.model)}
    p = evaluate(tmp_path / "run", split="test").figures.policy.p_perplexity
    assert p == pytest.approx(evaluate(base, split="test").figures.perplexity, rel=1e-6)


@pytest.mark.full
def test_it_resumes_to_what_it_would_have_been(
    tiny_config: RunConfig, resumes_exactly: Callable[..., Any], base: Path
) -> None:
    config = with_model(with_training(tiny_config, epochs=2), buffer=BUFFER)
    resumed = resumes_exactly(config, 3, init_from=base)
    assert resumed.provenance.init_from["run"] == "base"


@pytest.mark.full
@pytest.mark.parametrize(
    ("optimizer", "kind", "steps"),
    list(product(("adam", "nadam", "sgd"), (SpanBufferConfig, AuxiliarySoftmaxConfig), (0, 1, 2))),
)  # fmt: skip
def test_it_resumes_from_its_first_steps_whatever_the_optimizer_has_made_by_then(
    tiny_config: RunConfig, quietly: Train, stop_after: Callable[[int], None], base: Path, tmp_path: Path,
    optimizer: str, kind: type[SpanBufferConfig] | type[AuxiliarySoftmaxConfig], steps: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Adam makes its state of a parameter with its first gradient; the save of a run's beginning comes before any."""
    rate = 1.0 if optimizer == "sgd" else 0.001
    options = {"epochs": 1, "finetune_epochs": 0, "averaging": "none", "optimizer": optimizer, "learning_rate": rate}
    config = with_model(with_training(tiny_config, **options), buffer=BUFFER if kind is SpanBufferConfig else kind())
    quietly(config, tmp_path / "straight", init_from=base)
    if steps:
        stop_after(steps)
    else:
        save = loop.Trainer.save

        def save_and_be_killed(trainer: loop.Trainer, log: Any) -> None:
            save(trainer, log)
            raise KeyboardInterrupt

        monkeypatch.setattr(loop.Trainer, "save", save_and_be_killed)
    with pytest.raises(Stopped if steps else KeyboardInterrupt):
        quietly(config, tmp_path / "stopped", init_from=base)
    saved = (tmp_path / "stopped" / "checkpoints").glob("last-*")
    assert max(int(path.name.removeprefix("last-")) for path in saved) == steps
    monkeypatch.undo()
    quietly(config, tmp_path / "stopped", mode="resume")
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "straight")


def test_one_that_was_killed_before_it_had_begun_does_not_go_on_without(
    tiny_config: RunConfig, quietly: Train, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(loop.Trainer, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            quietly(tiny_config, tmp_path / "run", init_from=base)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["init_from"]["run"] == "base"
    with pytest.raises(
        UserError, match="stopped before its first checkpoint; start again with --overwrite and --init-from"
    ):
        quietly(tiny_config, tmp_path / "run", mode="resume")
    quietly(tiny_config, tmp_path / "run", mode="overwrite", init_from=base)


def test_one_that_was_killed_before_its_settings_were_written_is_no_run(
    tiny_config: RunConfig, quietly: Train, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its provenance names the other run before there is anything to resume."""

    def killed(path: Path, content: str) -> None:
        if path.name == "config.yaml":
            raise KeyboardInterrupt
        write_atomically(path, content)

    monkeypatch.setattr(run_folder, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        quietly(tiny_config, tmp_path / "run", init_from=base)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]
    with pytest.raises(UserError, match="holds no run to resume"):
        quietly(tiny_config, tmp_path / "run", mode="resume")


def test_one_that_is_stopped_says_which_command_goes_on(
    tiny_config: RunConfig, quietly: Train, base: Path, tmp_path: Path, stop_after: Callable[[int], None]
) -> None:
    stop_after(2)
    with pytest.raises(Stopped, match=r"go on with the same command with --resume in place of --init-from$"):
        quietly(tiny_config, tmp_path / "run", init_from=base)


def test_one_that_was_killed_after_its_first_save_still_tells(
    tiny_config: RunConfig, quietly: Train, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(loop.Trainer, "train", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            quietly(tiny_config, tmp_path / "run", init_from=base)
    resumed = quietly(tiny_config, tmp_path / "run", mode="resume")
    quietly(tiny_config, tmp_path / "straight", init_from=base)
    assert resumed.provenance.init_from["run"] == "base"
    assert outcome(tmp_path / "run") == outcome(tmp_path / "straight")


def test_another_corpus_with_the_same_vocabulary_is_trained_further(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path
) -> None:
    """The counts of its words are of another text, which was refused."""
    for name, line in (("one", "ann saw the jam\n"), ("two", "bob ate\n")):
        tiny_corpus(tmp_path / name, lines=8)
        (tmp_path / name / "train.txt").write_text(line * 40)
        text = replace(tiny_config.text, corpus=str(tmp_path / name), tokenizer="bytes")
        begun = None if name == "one" else tmp_path / "run-one"
        result = quietly(replace(still(tiny_config), text=text), tmp_path / f"run-{name}", init_from=begun)
    assert result.provenance.init_from["run"] == "run-one"
    one, two = load_run(tmp_path / "run-one"), load_run(tmp_path / "run-two")
    assert one.vocabulary.counts.tolist() != two.vocabulary.counts.tolist()
    assert one.vocabulary.gives_the_ids_of(two.vocabulary)
    assert not one.vocabulary.gives_the_ids_of(replace(two.vocabulary, lowercase=True))


@pytest.mark.full
def test_the_error_says_how_another_corpus_gets_the_same_vocabulary(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    for name, line in (("one", "ann saw the jam\n"), ("two", "bob ate all of it\n")):
        tiny_corpus(tmp_path / name, lines=8)
        (tmp_path / name / "train.txt").write_text(line * 40)

    def run(tokenizer: str, init_from: str | None = None) -> dict:
        text = replace(tiny_config.text, corpus="one" if init_from is None else "two", tokenizer=tokenizer)
        folder = Path(f"run-{tokenizer}" if init_from is None else "new")
        return quietly(replace(still(tiny_config), text=text), folder, init_from=init_from and Path(init_from))

    for tokenizer in ("words", "bytes", "bpe:270"):
        run(tokenizer)
    command = "backstory data tokenizer one --kind bpe --size 270"
    write = f"write its tokenizer with `{command}`, and give --text.tokenizer tokenizer.json"
    for tokenizer, init_from, advice in (
        ("words", "run-words", "begin with a run on the same corpus, or train both with --text.tokenizer bytes or one"),
        ("words", "run-bytes", "use its tokenizer, --text.tokenizer bytes"),
        ("words", "run-bpe:270", write),
        ("bpe:270", "run-bpe:270", write),
    ):
        with pytest.raises(UserError, match=f"{init_from} has another vocabulary than this corpus gives; {advice}"):
            run(tokenizer, init_from)
    assert main(command.split()[1:]) == 0
    run("tokenizer.json")
    with pytest.raises(UserError, match=r"use its tokenizer, --text.tokenizer tokenizer\.json"):
        run("words", "run-tokenizer.json")
    assert run("tokenizer.json", "run-bpe:270").provenance.init_from["run"] == "run-bpe:270"


@pytest.mark.full
def test_what_it_refuses(tiny_config: RunConfig, quietly: Train, base: Path, tmp_path: Path) -> None:
    wide = with_model(tiny_config, core=LSTMConfig(layers=2, hidden=11))
    elsewhere = tiny_corpus(tmp_path / "other", lines=8)
    (elsewhere / "train.txt").write_text("quite other words\n" * 40)
    with pytest.raises(UserError, match=r"does not fit this model: .* has shape"):
        quietly(wide, tmp_path / "run", init_from=base)
    with pytest.raises(UserError, match="has another vocabulary"):
        quietly(
            tiny_config.__class__(text=tiny_config.text.__class__(str(elsewhere))), tmp_path / "run", init_from=base
        )
    quietly(still(tiny_config), tmp_path / "buffered")
    with pytest.raises(UserError, match=r"does not fit this model: .* with gated\."):
        quietly(tiny_config, tmp_path / "run", init_from=tmp_path / "buffered")
    with pytest.raises(UserError, match="leave --init-from out"):
        quietly(tiny_config, base, mode="resume", init_from=base)
    kept = contents(base)
    (tmp_path / "link").symlink_to(base)
    for name in (base, tmp_path / "link", base / ".." / "base"):
        with pytest.raises(UserError, match="would be removed before anything that begins with it is saved"):
            quietly(tiny_config, base, mode="overwrite", init_from=name)
    assert contents(base) == kept
    with pytest.raises(UserError, match="there is no run folder"):
        quietly(tiny_config, tmp_path / "run", init_from=tmp_path / "none")
    assert not (tmp_path / "run").exists()
