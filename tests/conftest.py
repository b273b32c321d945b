"""Fixtures of all tests: one thread, a cache of their own, `--full`, and a tiny corpus with a model trained on it."""

import gc
import io
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest
import runs
import tiers
import torch
from rich.console import Console
from tyro._docstrings import _ClassTokenization

from backstory.config import RunConfig
from backstory.data import Dataset, prepare
from backstory.evaluation import evaluation
from backstory.models.kernels import compiled
from backstory.training import train

# Results are compared bit for bit, and small products are faster so.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
# A shell lets what it runs in the background ignore interrupts, and nohup the closing of a terminal: so would the processes
# that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Otherwise every worker and every process of a test would compile the package again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

for tier, examples in {"fast": 12, "full": 60}.items():
    hypothesis.settings.register_profile(tier, deadline=None, derandomize=True, max_examples=examples)

RUN_IN_PROCESSES = {"reproduced", "searched"}
"""Fixtures that run a dozen processes in turn; all tests that use them count as long."""


MOST_WORKERS = 16
"""More workers would only wait for the slowest file."""

SLOWEST_FILES = (Path(__file__).parent / "slowest_files.txt").read_text(encoding="utf-8").split()
"""The slowest files, in the order of their start; a slow file at the end would leave the other cores idle.

The first take minutes in the full tier, the others 20 to 5 seconds of processor time in the fast one, as
`pytest -n 0 --durations=0` measures it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the long tests, marked full")
    parser.addoption("--part", type=int, choices=(1, 2, 3), help="with --full, run one third of the long tests")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the number of workers
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Use all cores for folders of tests, unless `-n` sets another number, and one process for single files."""
    option = config.option
    if getattr(option, "numprocesses", 0) is None and not hasattr(config, "workerinput") and whole_folders(config):
        option.numprocesses = "logical"  # pytest-xdist takes 0 for this with --pdb
        option.maxprocesses = option.maxprocesses or MOST_WORKERS
        option.dist = "loadfile" if option.dist == "no" else option.dist
        option.loadscopereorder = False  # it would start files with few tests last, even slow ones


def whole_folders(config: pytest.Config) -> bool:
    return all(Path(argument).is_dir() for argument in config.args)


def pytest_configure(config: pytest.Config) -> None:
    tiers.FULL = config.getoption("--full")
    hypothesis.settings.load_profile("full" if tiers.FULL else "fast")


@pytest.hookimpl(tryfirst=True)  # before `-m full` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the long tests, or skip them with a reason if files or tests are named."""
    for item in items:
        if RUN_IN_PROCESSES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.full)
    if not config.getoption("--full"):
        long = [item for item in items if item.get_closest_marker("full")]
        if whole_folders(config):
            config.hook.pytest_deselected(items=long)
            items[:] = [item for item in items if not item.get_closest_marker("full")]
        else:
            for item in long:
                item.add_marker(pytest.mark.skip(reason="a long test; --full runs it"))
    elif part := config.getoption("--part"):
        other = {item for item in items if item.get_closest_marker("full") and tiers.part_of(item.nodeid) != part}
        config.hook.pytest_deselected(items=list(other))
        items[:] = [item for item in items if item not in other]
    order = {name: place for place, name in enumerate(SLOWEST_FILES)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))  # stable: each file stays together


def pytest_collection_finish() -> None:
    """Keep the garbage collector from scanning thousands of tests and modules repeatedly."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def isolated_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Use a cache of its own instead of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("BACKSTORY_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def one_audit_seed() -> Iterator[None]:
    """Fix the seed of audits, so that the figures of two evaluations compare."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("backstory.evaluation.audit.system_seed", lambda: 7)
        yield


@pytest.fixture(scope="session", autouse=True)
def brief_audits() -> Iterator[None]:
    """Audit a quarter of the usual places, because the audit dominates the time of tiny runs."""
    with pytest.MonkeyPatch.context() as patch:
        usual = evaluation.usual_places
        patch.setattr(evaluation, "usual_places", lambda *sizes: max(2, usual(*sizes) // 4))
        yield


@pytest.fixture(scope="session", autouse=True)
def sources_read_once() -> Iterator[None]:
    """Keep tyro's cache of the settings' sources, which it would clear after every command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_ClassTokenization, "make", staticmethod(cache(_ClassTokenization.make.__wrapped__)))
        yield


@pytest.fixture
def torch_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch compute instead of the compiled passes, which is bit-identical for every caller."""
    monkeypatch.setattr(compiled, "library", lambda: None)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the real corpora, or the test is skipped."""
    named = os.environ.get("BACKSTORY_DATA")
    if not named or not Path(named).is_dir():
        pytest.skip("needs the real corpora: set BACKSTORY_DATA to the folder that holds them")
    return Path(named)


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with about 600 words to train on and 150 in each other split."""
    return runs.tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def tiny_config(tiny_corpus: Path) -> RunConfig:
    """Settings of a run that takes half a second."""
    return runs.tiny_config(tiny_corpus)


@pytest.fixture(scope="session")
def tiny_dataset(tiny_config: RunConfig) -> Dataset:
    return prepare(tiny_config.text)


@pytest.fixture(scope="session")
def tiny_run(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a finished run of `tiny_config`. Tests share it, and must write next to it, never into it."""
    folder = tmp_path_factory.mktemp("run") / "tiny"
    train(tiny_config, folder, console=Console(file=io.StringIO()))
    trained = runs.contents(folder)
    yield folder
    assert runs.contents(folder) == trained, "a test wrote into the run that all share"
