"""Imports point one way, from `utils` at the bottom to `cli` on top, and what needs no torch does not import it."""

import ast
import json
import resource
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import backstory

PACKAGE = Path(backstory.__file__).parent
BELOW: dict[str, set[str]] = {"utils": set()}
"""The rooms that each room may import."""
BELOW["config"] = {"utils"}
BELOW["storage"] = {"config", *BELOW["config"]}
BELOW["data"] = {"storage", *BELOW["storage"]}
BELOW["models"] = {"data", *BELOW["data"]}
BELOW["runs"] = {"models", *BELOW["models"]}
BELOW["readers"] = {"runs", *BELOW["runs"]}
BELOW["codec"] = {"readers", *BELOW["readers"]}
BELOW["evaluation"] = {"codec", "results", *BELOW["codec"]}
BELOW["training"] = {"evaluation", "jobs", *BELOW["evaluation"]}
BELOW["results"] = {"storage", *BELOW["storage"]}
BELOW["reports"] = {"results", *BELOW["results"]}
BELOW["jobs"] = {"storage", *BELOW["storage"]}
BELOW["context"] = {"evaluation", "reports", *BELOW["evaluation"]}
BELOW["interop"] = {"evaluation", "reports", *BELOW["evaluation"]}
BELOW["tuning"] = {"reports", "training", "jobs", *BELOW["training"]}
BELOW["explanations"] = {"context", "reports", *BELOW["context"]}
BELOW["api_errors"] = {"config", "utils"}
BELOW["api_arguments"] = {"api_errors", "context", "interop", *BELOW["context"], *BELOW["interop"]}
BELOW["plugins"] = set(BELOW) - {"api_arguments", "api_errors"}
BELOW["papers"] = set(BELOW)
BELOW["api_analysis"] = set(BELOW)
BELOW["api"] = set(BELOW)
BELOW["cli"] = set(BELOW)
BELOW["__main__"] = {"cli"}
BELOW["__init__"] = {"api", "api_analysis", "config", "plugins", "results", "utils"}

SOURCES = sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(source: str, package: str) -> set[str]:
    """The modules that a source imports, wherever in it, by their full names."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


@cache
def imports_of(path: Path) -> set[str]:
    package = ".".join(["backstory", *path.relative_to(PACKAGE).parent.parts])
    return imported(path.read_text(encoding="utf-8"), package)


def rooms_of(modules: set[str]) -> set[str]:
    return {name.split(".")[1] for name in modules if name.startswith("backstory.")}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_from_its_own_room_and_those_below(path: Path) -> None:
    here = room(path)
    assert here in BELOW, f"say in this test which rooms {here} may import"
    above = rooms_of(imports_of(path)) - BELOW[here] - {here}
    assert above == set()


def test_the_order_has_no_cycle() -> None:
    done: set[str] = set()
    while len(done) < len(BELOW):
        ready = {name for name, below in BELOW.items() if name not in done and below <= done}
        assert ready
        done |= ready


UNRESOLVED: set[str] = set()
"""Names that still occur twice and are to be renamed: this list only ever gets shorter."""


@pytest.mark.full
def test_a_class_or_module_name_occurs_once() -> None:
    places: dict[str, list[str]] = {}
    # An export is a program of its own: its plain parts are called as those that they stand for.
    for path in (path for path in SOURCES if path.parent.name != "exported"):
        names = [node.name for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ClassDef)]
        for name in [*names, path.stem] if path.stem != "__init__" else names:
            places.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1 and name not in UNRESOLVED} == {}


def test_imports_are_found_wherever_they_stand() -> None:
    source = "def f():\n    from backstory.cli import main\n\nfrom . import cheats\nfrom ..models import x\nimport torch.nn\n"
    assert imported(source, "backstory.evaluation") == {
        "backstory.cli.main",
        "backstory.evaluation.cheats",
        "backstory.models.x",
        "torch.nn",
    }
    assert rooms_of({"backstory.models.x", "torch.nn", "backstory.cli.main"}) == {"models", "cli"}


@pytest.mark.parametrize("name", ["utils", "config", "data", "results", "reports"])
def test_rooms_without_torch_do_not_mention_it(name: str) -> None:
    modules = {m for path in SOURCES if room(path) == name for m in imports_of(path)}
    assert modules
    assert {m for m in modules if m.split(".")[0] in ("torch", "safetensors")} == set()


def loaded_by(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after running the code."""
    program = f"{code}\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize(
    "code",
    [
        "import backstory",
        "import backstory.config, backstory.config.recipes",
        "import backstory.data",
        "import backstory.results",
        "import backstory.reports",
        "from backstory.papers import paper, suite; suite.load('base'); paper.paper('mos')",
        "from backstory.cli.main import main; main(['--help'])",
        "from backstory.cli.main import main; assert main('train demo --corpus nowhere.txt --out new'.split()) == 2; "
        "assert main('train demo --out /'.split()) == 2; assert main('read run --resume'.split()) == 2",
    ],
)
def test_what_needs_no_torch_does_not_load_it(code: str) -> None:
    modules = loaded_by(code)
    assert "backstory" in modules
    assert modules & {"torch", "safetensors"} == set()


@pytest.mark.parametrize("arguments", [["train", "demo", "--help-all"], ["evaluate", "--help"], ["completion", "bash"]])
def test_help_loads_nothing_that_takes_long(arguments: list[str]) -> None:
    modules = loaded_by(f"from backstory.cli.main import main; main({arguments})")
    slow = {"torch", "numpy", "jinja2"} | ({"typeguard"} if "completion" not in arguments else set())
    assert "backstory" in modules and modules & slow == set()


def test_help_is_there_at_once() -> None:
    # Processor time: the clock's would be that of whatever else the machine does.
    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    times = []
    for _ in range(3):
        began = spent()
        subprocess.run([sys.executable, "-m", "backstory", "--help"], capture_output=True, check=True)
        times.append(spent() - began)
    assert min(times) < 0.3


OUTLINES = """
from backstory.config import recipes
from backstory.models.composed import outline
for name in recipes.names():
    outline(recipes.load(name).model, 1000)
"""


STEPS = """
import torch
from backstory.config import TrainingConfig
from backstory.training.optimizers import build_optimizer
for name in ("sgd", "adam", "adamw", "nadam"):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = build_optimizer([weight], TrainingConfig(optimizer=name))
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
"""


@pytest.mark.full
def test_optuna_transformers_and_the_compiler_of_torch_are_imported_late() -> None:
    users = {room(path) for path in SOURCES if "optuna" in {m.split(".")[0] for m in imports_of(path)}}
    assert users == {"tuning"}
    verbs = "backstory.cli.sweep, backstory.cli.ls, backstory.cli.export"
    modules = loaded_by(
        f"import backstory.api, backstory.api_analysis, backstory.tuning.sweeps, {verbs}{OUTLINES}{STEPS}"
    )
    assert (
        "torch" in modules and modules & {"optuna", "transformers", "sympy"} == set()
    )  # sympy comes with torch._dynamo


@pytest.mark.full
def test_the_package_imports_without_what_only_posix_has() -> None:
    code = """
import importlib, os, pkgutil, signal, sys
import multiprocessing, numpy, subprocess, torch  # they know the real system
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
for module, names in ((signal, ("SIGHUP", "SIGKILL", "SIGXCPU")), (os, ("geteuid", "killpg", "sched_getaffinity"))):
    for name in names:
        delattr(module, name)
sys.modules |= {"fcntl": None, "resource": None}
import backstory
for module in pkgutil.walk_packages(backstory.__path__, "backstory."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
