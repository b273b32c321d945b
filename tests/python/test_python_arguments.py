"""An object of the wrong type for any argument of a public function: one clear sentence, and nothing is written."""

import inspect
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import backstory as bs
from backstory.config.examination_options import ExamineOptions
from backstory.config.explanation_options import CompareOptions, ExplainOptions
from backstory.config.options import EvalOptions, LoadOptions
from backstory.utils.errors import UserError

BAD: list[Any] = [
    None,
    3,
    -1.5,
    True,
    b"x",
    [],
    [3],
    {},
    {"a": 1},
    object(),
    int,
    "nowhere/at/all",
    Path("nowhere"),
    "",
]
INTERNAL = re.compile(r"object has no|NoneType|unexpected|unsupported|not (iterable|callable|subscriptable)")
"""Words of Python's own messages."""
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[type, ...]]] = {
    "train": (bs.train, ("nowhere.yaml",), ()),
    "recipe": (bs.recipe, ("nowhere.yaml",), ()),
    "load": (bs.load, ("nowhere",), ()),
    "evaluate": (bs.evaluate, ("nowhere",), (EvalOptions,)),
    "audit": (bs.audit, ("nowhere",), (EvalOptions,)),
    "examine": (bs.examine, ("nowhere",), (ExamineOptions,)),
    "explain": (bs.explain, ("nowhere",), (ExplainOptions,)),
    "compare": (bs.compare, ("nowhere", "cache"), (CompareOptions,)),
    "generate": (bs.generate, ("nowhere",), (LoadOptions,)),
    "report": (bs.report, ("nowhere", "page.html"), ()),
}
"""Each function with arguments that end in an error on `nowhere`, and the options that it takes."""


def arguments(function: Callable[..., Any], options: tuple[type, ...]) -> Iterator[str]:
    parameters = inspect.signature(function).parameters.values()
    yield from (p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
    yield from (name for kind in options for name in inspect.signature(kind).parameters)


def sentence(call: Callable[[], Any]) -> str:
    """The message of the error that a call ends in, which must be one of ours."""
    with pytest.raises((UserError, TypeError)) as caught:
        call()
    message = str(caught.value)
    assert message and "\n" not in message and not INTERNAL.search(message), message
    return message


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_object_in_place_of_any_argument(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function, usual, options = FUNCTIONS[name]
    first = list(inspect.signature(function).parameters)
    for argument in arguments(function, options):
        for value in BAD:
            given = dict(zip(first, usual, strict=False)) | {argument: value}
            message = sentence(lambda given=given: function(**given))
            # A value that the argument may have ends where `nowhere` is looked for.
            assert argument.rstrip("s") in message.replace("-", "_") or "nowhere" in message or value == "", (
                argument,
                value,
                message,
            )
            if type(value) is object:
                assert argument in message.replace("-", "_"), (argument, message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name, (_, _, options) in FUNCTIONS.items() if options])
def test_an_unknown_option_is_named_with_the_nearest(name: str) -> None:
    function, usual, _ = FUNCTIONS[name]
    assert re.search(
        r"no option 'devise' \(did you mean 'device'\?\)", sentence(lambda: function(*usual, devise="cpu"))
    )


@pytest.mark.parametrize(
    ("name", "unknown", "nearest"), [("evaluate", "tokeniser", "tokenizer"), ("generate", "token", "tokens")]
)
def test_an_unknown_option_is_compared_with_the_arguments_too(name: str, unknown: str, nearest: str) -> None:
    function, usual, _ = FUNCTIONS[name]
    message = sentence(lambda: function(*usual, **{unknown: 3}))
    assert f"there is no option '{unknown}' (did you mean '{nearest}'?); there are " in message
    assert f" {nearest}, " in message and " device, " in message


@pytest.mark.parametrize(
    "part", [(), (None,), ("core",), ("core", 3, 4), ("reader", None), ("metric", 3), ("nothing", 1)]
)
def test_what_cannot_be_registered(part: tuple[Any, ...]) -> None:
    sentence(lambda: bs.register(*part))


@pytest.mark.parametrize(
    "overrides", [{"training.epochs": "three"}, {"training.epoch": 3}, {"training": 3}, {3: 3}, {"": 1}]
)
def test_overrides_that_do_not_fit(overrides: dict[Any, Any]) -> None:
    message = sentence(lambda: bs.recipe("demo", overrides))
    assert str(next(iter(overrides))) in message


def test_settings_of_other_types(tmp_path: Path) -> None:
    for settings in (bs.RunConfig(text=3), bs.RunConfig(training=None)):  # type: ignore[arg-type]
        assert "must be" in sentence(lambda settings=settings: bs.train(settings, tmp_path / "run", corpus="a.txt"))
    assert "out=FOLDER" in sentence(lambda: bs.train(bs.recipe("demo")))
    assert list(tmp_path.iterdir()) == []


def test_models_in_memory_that_cannot_be_read(tiny_run: Path) -> None:
    model, vocabulary = bs.load(tiny_run)
    for call in (bs.evaluate, bs.explain, lambda model: bs.compare(model, "cache")):
        assert "give tokenizer=vocabulary" in sentence(lambda call=call: call(model))
        assert "causal language model of transformers" in sentence(lambda call=call: call(torch.nn.Linear(2, 2)))
    for ids in (None, "a text", [1, 2], np.zeros(3), np.zeros((2, 2), int), vocabulary):
        assert "token ids" in sentence(lambda ids=ids: bs.audit(model, ids)) or ids in ("a text", [1, 2], vocabulary)
    for ids in (np.array([1, len(vocabulary)]), np.array([1, -1])):
        assert "the model knows 0 to 16" in sentence(lambda ids=ids: bs.audit(model, ids))
    assert "tokenizer is for a model in memory" in sentence(lambda: bs.evaluate(tiny_run, tokenizer=vocabulary))
    assert "name is for a model in memory" in sentence(lambda: bs.evaluate(tiny_run, name="mine"))


@pytest.mark.parametrize("text", ["nowhere.txt", "no where.txt", Path("nowhere"), "", "."])
def test_a_text_that_is_not_there(tiny_run: Path, text: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (
        bs.evaluate,
        bs.audit,
        lambda run, text: bs.explain(run, text=text),
        lambda run, text: bs.examine(run, text),
    ):
        sentence(lambda call=call: call(tiny_run, text))


def test_a_file_that_is_open_for_text_is_refused(tiny_run: Path) -> None:
    for call in (bs.evaluate, bs.explain, lambda run, text: bs.compress(text, run)):
        assert "a file that is open for bytes" in sentence(
            lambda call=call: call(tiny_run, text=io.StringIO("ann saw\n"))
        )
