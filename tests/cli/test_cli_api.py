"""`import backstory as bs`: the verbs as functions, and nothing heavy before one is used."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import backstory as bs
from backstory.utils.errors import UserError

NAMES = [
    *(
        "RunConfig",
        "UserError",
        "audit",
        "compare",
        "compress",
        "decompress",
        "evaluate",
        "examine",
        "explain",
        "generate",
    ),
    *("load", "recipe", "referee", "register", "report", "seed_gain", "train", "verify"),
]


def test_names_are_listed() -> None:
    assert bs.__all__ == NAMES and dir(bs) == sorted([*NAMES, "__version__"])
    assert bs.__version__ == importlib.metadata.version("backstory")
    assert all(callable(getattr(bs, name)) for name in NAMES)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'backstory' has no attribute 'evalute'"):
        bs.evalute  # noqa: B018
    assert not hasattr(bs, "torch")


@pytest.mark.parametrize(
    "first", ["import backstory", "import backstory; dir(backstory); backstory.__version__; backstory.recipe('demo')"]
)
def test_importing_is_light(first: str) -> None:
    loaded = "print([m for m in ('torch', 'numpy', 'matplotlib', 'rich') if m in sys.modules])"
    code = f"import backstory; {first}; import sys; {loaded}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.full
def test_a_run_from_python(run_copy: Path, desk: Path) -> None:
    model, vocabulary = bs.load("run")
    assert not model.training and model.vocabulary_size == len(vocabulary)
    words = torch.as_tensor(vocabulary.encode("ann saw the tea")).long()[None]
    prediction, _ = model(words, model.start(1))
    torch.testing.assert_close(prediction.log_probs().exp().sum(-1), torch.ones(words.shape), rtol=0, atol=1e-5)

    evaluation = bs.evaluate("run", split="valid")
    assert evaluation.to_dict() == json.loads((run_copy / "evaluate-valid" / "result.json").read_text())
    assert evaluation.figures.audit.passed

    examination = bs.examine("run", experiment="truncate", targets=20, maximum_context=10, out="examined")
    assert examination.to_dict() == json.loads(Path("examined/result.json").read_text())

    explanation = bs.explain("run", layer="entropy")
    assert explanation.to_dict() == json.loads(next(run_copy.glob("explain-surprisal*/result.json")).read_text())

    bs.report(["run"], "page.html")
    assert "tiny" in Path("page.html").read_text()


def test_a_run_is_trained_from_python(
    tiny_config: bs.RunConfig, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = bs.train(tiny_config, "new")
    assert result.to_dict() == json.loads(Path("new/result.json").read_text())
    assert capsys.readouterr().out == ""


def test_a_recipe_is_settings() -> None:
    assert isinstance(bs.recipe("demo"), bs.RunConfig)
    with pytest.raises(UserError, match="did you mean 'demo'"):
        bs.recipe("demoo")


def test_a_mistake_names_the_argument_that_was_meant(run_copy: Path, desk: Path) -> None:
    for mistaken, hint in (
        (lambda: bs.evaluate("run", "valid"), "split='valid'"),
        (lambda: bs.evaluate("run", "cache"), "reader='cache'"),
        (lambda: bs.examine("run", "truncate"), "experiment='truncate'"),
        (lambda: bs.train("demo", "run", corpus="nowhere.txt"), "run is not empty; use mode='resume' to go on"),
        (lambda: bs.compare("run", "run"), "run is a folder, not a reader; .* against='run'"),
    ):
        with pytest.raises(UserError, match=hint):
            mistaken()


def test_mistakes_are_user_errors(desk: Path) -> None:
    for mistaken in (
        lambda: bs.load("nowhere"),
        lambda: bs.evaluate("nowhere"),
        lambda: bs.examine("nowhere"),
    ):
        with pytest.raises(UserError, match="there is no run folder nowhere"):
            mistaken()
