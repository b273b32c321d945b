"""A desk with a tiny recipe and a space over it, and one sweep that many tests look at."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sweeps import Searched, finish, prepare, start

from backstory.config import RunConfig


@pytest.fixture
def desk(tmp_path: Path, tiny_config: RunConfig, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    prepare(tmp_path, tiny_config, tiny_corpus)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory, tiny_config: RunConfig, tiny_corpus: Path) -> Iterator[Searched]:
    """Four trials by two processes, in a folder that tests may read but not change."""
    folder = tmp_path_factory.mktemp("searched")
    prepare(folder, tiny_config, tiny_corpus)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield Searched(folder, *finish(start("--trials", "4", "--processes", "2", "--out", "sweep")))
