"""Fixtures of the data tests: a cache of their own, the real corpora, and small generated corpora."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from backstory.config.schema import TextConfig
from backstory.data import Dataset, prepare

SENTENCES = "the cat sat on the mat\nthe dog saw the cat\nno one saw the dog\n"


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has an empty cache."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("BACKSTORY_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def kept_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept-cache")


@pytest.fixture
def shared_cache(cache_folder: Path, kept_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Share a cache among the tests that use it, so that each real corpus is encoded once."""
    monkeypatch.setenv("BACKSTORY_CACHE", str(kept_cache))


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the real corpora, or the test is skipped."""
    folder = Path(os.environ.get("BACKSTORY_DATA", ""))
    if not (folder / "ptb" / "ptb.train.txt").is_file():
        pytest.skip("needs ptb and wikitext-2: set BACKSTORY_DATA to the folder that holds them")
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[..., Dataset]:
    """Prepare a folder with train.txt (the bytes given), valid.txt and test.txt."""

    def make(train: bytes, valid: bytes = b"the cat\n", test: bytes = b"the dog\n", **options: object) -> Dataset:
        for name, data in {"train": train, "valid": valid, "test": test}.items():
            (tmp_path / f"{name}.txt").write_bytes(data)
        return prepare(TextConfig(corpus=str(tmp_path), **options))  # type: ignore[arg-type]

    return make
