"""A few of the fuzzed settings, command lines and corpora at every run of the tests."""

from pathlib import Path

import pytest
from matrix import MATRIX
from tiers import several


@pytest.mark.parametrize(
    ("name", "trials"), [("configs", several(25, 80)), ("corpora", several(40, 100)), ("refusals", 6)]
)
def test_the_first_trials_hold(name: str, trials: int, tmp_path: Path) -> None:
    assert list(MATRIX[name].run(range(trials), tmp_path)) == []
