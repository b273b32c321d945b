"""Environment variables on other processes: taken, or refused in one line."""

import pytest

from backstory.config import UserError
from backstory.config.process import Launched, first_here, launched, world

TWO = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TWO, "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_alone_without_torchrun() -> None:
    assert launched() == Launched(0, 1, 0, 1)
    assert first_here()


def test_what_torchrun_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TWO.items():
        monkeypatch.setenv(name, value)
    assert launched() == Launched(1, 2, 1, 2)
    assert not first_here()


@pytest.mark.parametrize("value", ["y", "0", "-2", "1.5", "²", "9" * 5000])
def test_a_number_of_processes_that_is_none(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", value)
    for asked in (launched, world):
        with pytest.raises(UserError, match="WORLD_SIZE must be a whole number from 1"):
            asked()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("RANK", "x", "RANK must be"),
        ("RANK", "2", "RANK must be a whole number from 0 to 1, not '2'"),
        ("RANK", "-1", "RANK must be"),
        ("RANK", "", "RANK is not set"),
        ("LOCAL_RANK", "x", "LOCAL_RANK must be"),
        ("LOCAL_RANK", "2", "LOCAL_RANK must be"),
        ("LOCAL_WORLD_SIZE", "3", "LOCAL_WORLD_SIZE must be"),
        ("MASTER_ADDR", "", "MASTER_ADDR is not set"),
        ("MASTER_PORT", "x", "MASTER_PORT must be"),
        ("MASTER_PORT", "99999", "MASTER_PORT must be"),
    ],
)
def test_what_does_not_fit(name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for known, usual in TWO.items():
        monkeypatch.setenv(known, usual)
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=says):
        launched()


@pytest.mark.parametrize("value", ["x", "-1", "", "00", "9x"])
def test_a_process_whose_number_is_none_speaks(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", value)
    assert first_here()
