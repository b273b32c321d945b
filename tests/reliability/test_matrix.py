"""A bounded part of the reliability matrix; `python tests/reliability/record.py` runs all of it."""

from pathlib import Path

import pytest
from matrix import MATRIX


@pytest.mark.full
@pytest.mark.parametrize("name", MATRIX)
def test_the_bounded_part_holds(name: str, tmp_path: Path) -> None:
    case = MATRIX[name]
    assert list(case.run(case.part(), tmp_path)) == []
