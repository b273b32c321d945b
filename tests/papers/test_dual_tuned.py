"""benchmarks/dual_tuned.py: searches of plain modules, connection and control alike, and the suite that uses what they find."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import scripts
import yaml

from backstory.cli.sweep import SweepArguments
from backstory.cli.train import parse_with_recipe
from backstory.config import DualConfig, RunConfig, to_yaml
from backstory.papers.plan import SuiteRun, runs_of
from backstory.papers.suite import load
from backstory.results import ReproductionFigures, result_at
from backstory.tuning import space as spaces
from backstory.tuning.space import draw, parameters

DROPOUTS = ("input_dropout", "output_dropout")


@pytest.fixture
def script() -> ModuleType:
    return scripts.load("benchmarks/dual_tuned.py")


@pytest.fixture
def found(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, RunConfig]:
    """Recipes that the searches may find, each with the largest values of its space, in the folders that they write."""
    monkeypatch.chdir(tmp_path)
    recipes = {}
    for name, command in script.searches(list(script.MODULES), trials=12, epochs=3).items():
        _, args = parse_with_recipe(SweepArguments, command[2:], "sweep run")
        assert (args.trials, args.config.training.epochs, args.config.training.schedule) == (12, 3, "cosine")
        searched = parameters(spaces.load(args.space), args.config, "a test")
        recipes[name] = draw(searched, args.config, lambda parameter: parameter.high)
        assert args.out is not None
        args.out.mkdir(parents=True)
        (args.out / "best.yaml").write_text(to_yaml(recipes[name]), encoding="utf-8")
    return recipes


@pytest.mark.full
def test_plain_modules_connection_and_control_are_searched_alike(found: dict[str, RunConfig]) -> None:
    assert len(found) == 9
    for module in ("lstm", "dlstm", "mdlstm"):
        plain, dual, control = (found[name] for name in (module, f"dual-{module}", f"{module}-plus"))
        assert plain.model.core == dual.model.core == control.model.core
        assert plain.training == dual.training == control.training
        assert plain.model.dual.kind == "none"
        assert isinstance(dual.model.dual, DualConfig) and isinstance(control.model.dual, DualConfig)
        assert dual.model.dual.direct and not control.model.dual.direct
        assert [getattr(one.model.dual, d) for one in (dual, control) for d in DROPOUTS] == [0.5, 0.6, 0.5, 0.6]


@pytest.mark.full
def test_the_suite_carries_over_and_takes_what_was_searched(script: ModuleType, found: dict[str, RunConfig]) -> None:
    runs: dict[str, SuiteRun] = {}
    for run in runs_of(load(str(script.SUITE)), "small", str(script.SUITE)):
        assert run.config.training.epochs == 6
        runs.setdefault(run.system, run)
    part = load(str(script.suite(["lstm"])))
    assert [system.name for system in part.systems] == ["lstm", "dual-lstm", "dual-lstm-searched", "lstm-plus"]
    assert len(part.claims) == 5 and 3 * len(part.systems) == len(runs) == 12
    for module in ("lstm", "dlstm", "mdlstm"):
        carried: Any = runs[f"dual-{module}"].config
        assert carried.model.core == found[module].model.core
        assert [getattr(carried.model.dual, d) for d in DROPOUTS] == [0.0, 0.4]
        for system, search in (
            (module, module),
            (f"dual-{module}-searched", f"dual-{module}"),
            (f"{module}-plus",) * 2,
        ):
            assert runs[system].config.model == found[search].model
            assert runs[system].config.training.learning_rate == found[search].training.learning_rate


@pytest.mark.full
def test_one_module_is_searched_trained_and_read(
    script: ModuleType, tmp_path: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command as it is documented, with tiny models; without dynamic evaluation, which takes most of the time."""
    monkeypatch.chdir(tmp_path)
    quick = yaml.safe_load(script.SUITE.read_text(encoding="utf-8"))
    del quick["templates"]["tuned"]["prepare"]
    for entry in (quick["templates"]["tuned"], *quick["systems"]):
        if "readings" in entry:
            entry["readings"] = [reading for reading in entry["readings"] if "reader" not in reading]
    quick["claims"] = [claim for claim in quick["claims"] if "reader" not in claim["better"]]
    monkeypatch.setattr(script, "SUITE", tmp_path / "quick.yaml")
    script.SUITE.write_text(yaml.safe_dump(quick, sort_keys=False), encoding="utf-8")
    tiny = ["--text.corpus", str(tiny_corpus), "--model.embedding.size", "6", "--training.batch-size", "4",
            "--training.segment", "8", "--training.validation-batch-size", "2"]  # fmt: skip
    options = ["--modules", "lstm", "--trials", "1", "--epochs", "1", "--seeds", "1"]
    monkeypatch.setattr(sys, "argv", ["dual_tuned.py", *options, "--", *tiny])
    script.main()
    figures = result_at(Path("runs", "dual-tuned", "suite-lstm", "result.json")).figures
    assert isinstance(figures, ReproductionFigures)
    assert sorted(run.system for run in figures.runs if run.state == "done") == [
        "dual-lstm", "dual-lstm-searched", "lstm", "lstm-plus"
    ]  # fmt: skip
    assert len(figures.claims) == 3
