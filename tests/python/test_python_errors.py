"""Errors of the Python API name arguments of its functions, and no flags."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import backstory as bs
from backstory.api_errors import with_arguments
from backstory.utils.errors import UserError

SWITCHES = {"overwrite", "resume"}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("--batch-size is 8; use --batch-size 1,000 or less", "batch_size is 8; use batch_size=1000 or less"),
        ("not saved (no --out). Run it again with --out FOLDER", "not saved (no out). Run it again with out=FOLDER"),
        ("go on with the same command and --resume", "go on with the same call and resume=True"),
        ("leave --lengths, --set and --after out", "leave lengths, overrides and after out"),
        ("use --after=train or --after=valid", "use after='train' or after='valid'"),
        ("--set core.addressing=window:257", "overrides=['core.addressing=window:257']"),
        ("give --reader dynamic:rule=sgd,rate=0.1.", "give reader='dynamic:rule=sgd,rate=0.1'."),
        ("or --accept corpus to go on", "or accept=['corpus'] to go on"),
        ("train with --text.tokenizer bpe:800", "train with text.tokenizer bpe:800"),
        ("to false (--training.no-answer-loss-only)", "to false (training.answer_loss_only=False)"),
        (
            "run `backstory train RECIPE --out a` or --overwrite",
            "run `backstory train RECIPE --out a` or overwrite=True",
        ),
        (
            "a--b/--out, torchrun's --nproc-per-node, --plugin FILE",
            "a--b/--out, torchrun's --nproc-per-node, --plugin FILE",
        ),
    ],
)
def test_flags_become_arguments(message: str, expected: str) -> None:
    assert with_arguments(message, SWITCHES, {"set": "overrides"}) == expected


def test_functions_name_their_arguments(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"use batch_size=\d+ or less$"):
        bs.evaluate(tiny_run, batch_size=10_000)
    with pytest.raises(
        UserError, match=r"choose another folder with out, or replace it with again=True|smaller maximum_"
    ):
        bs.examine(tiny_run)
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(UserError, match="choose another place for the page or overwrite=True"):
        bs.report(tiny_run, tmp_path / "page.html")
    with pytest.raises(UserError, match="after names a split to read first, and a text has none"):
        bs.evaluate(tiny_run, "ann saw the jam\n", after="valid")


def test_training_names_its_modes(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(UserError, match="use mode='resume' to go on, mode='overwrite' to start again, or another out"):
        bs.train("demo", tmp_path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: bs.train("demo", epochs=2),  # type: ignore[call-arg]
            "train has no argument 'epochs'; settings go into overrides={'training.epochs': 2}",
        ),
        (
            lambda: bs.train("demo", seed=2),  # type: ignore[call-arg]
            "train has no argument 'seed'; settings go into overrides={'seed': 2}",  # that of the training, not of a task
        ),
        (
            lambda: bs.report("run", "page.html", overwrit=True),  # type: ignore[call-arg]
            "report has no argument 'overwrit' (did you mean 'overwrite'?); it has runs, out, overwrite, figures",
        ),
    ],
)
def test_an_unknown_argument_is_explained(call, message: str) -> None:
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value) == message


def test_models_are_no_readers_and_no_recipes() -> None:
    with pytest.raises(UserError, match="nowhere"):
        bs.compare("nowhere", against="other")  # read by `static`
    with pytest.raises(
        UserError, match="hf:b is a model, not a reader; to compare with another model: 'static', against="
    ):
        bs.compare("hf:a", "hf:b")
    with pytest.raises(UserError, match="hf:a is a model of Hugging Face, which is read here, not trained"):
        bs.train("hf:a")


def test_a_model_without_weights_is_named(tiny_run: Path, tmp_path: Path) -> None:
    model, vocabulary = bs.load(tiny_run)
    model, ids = model.to("meta"), np.arange(100) % 5
    text = tmp_path / "text.txt"
    text.write_text("ann saw the tea\n", encoding="utf-8")
    calls: tuple[Callable[[], object], ...] = (
        lambda: bs.evaluate(model, text=text, tokenizer=vocabulary),
        lambda: bs.examine(model, ids, maximum_context=5),
        lambda: bs.audit(model, ids),
    )
    for call in calls:
        with pytest.raises(
            UserError, match=r"^the model is on the meta device.*; load them first, onto the CPU or a GPU$"
        ):
            call()
