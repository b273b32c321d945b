"""The path from `evaluate` to the first block is short and avoids parts that the model lacks."""

from types import ModuleType

import pytest
import scripts

MOST_CALLS = 25


@pytest.fixture
def benchmark() -> ModuleType:
    return scripts.load("benchmarks/walk.py")


@pytest.mark.parametrize("verb", ["evaluate", "train"])
def test_the_top_level_path_is_short(benchmark: ModuleType, verb: str) -> None:
    walk = benchmark.walk(verb, depth=1)
    assert 5 < len(walk.calls) <= MOST_CALLS and walk.climbs == []
