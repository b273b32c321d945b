"""The path from `evaluate` to the first block is short and avoids parts that the model lacks."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "walk.py"
MOST_CALLS = 25


@pytest.fixture
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("walk", PATH)
    assert spec is not None and spec.loader is not None
    module = sys.modules["walk"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("verb", ["evaluate", "train"])
def test_the_top_level_path_is_short(benchmark: ModuleType, verb: str) -> None:
    walk = benchmark.walk(verb, depth=1)
    assert 5 < len(walk.calls) <= MOST_CALLS and walk.climbs == []
