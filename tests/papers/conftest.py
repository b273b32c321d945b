"""A folder with a tiny recipe and a suite, and one reproduction that many tests share."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_suites import BROKEN, Reproduced, reproduce, suite, write

from backstory.config import RunConfig, to_yaml


def prepare(folder: Path, config: RunConfig, corpus: Path) -> None:
    """The recipe, which names the corpus by a path from the folder."""
    shutil.copytree(corpus, folder / "corpus")
    text = to_yaml(config).replace(str(corpus), "corpus")
    (folder / "tiny.yaml").write_text(text, encoding="utf-8")


@pytest.fixture
def desk(tmp_path: Path, tiny_config: RunConfig, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    prepare(tmp_path, tiny_config, tiny_corpus)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def reproduced(
    tmp_path_factory: pytest.TempPathFactory, tiny_config: RunConfig, tiny_corpus: Path
) -> Iterator[Reproduced]:
    """The suite run to its end by two processes, in a folder that tests may read but not change."""
    folder = tmp_path_factory.mktemp("reproduced")
    prepare(folder, tiny_config, tiny_corpus)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        systems = [*suite()["systems"], BROKEN]
        against = {"sentence": "Plain beats broken", "better": {"system": "plain"}, "than": {"system": "broken"}}
        write(suite(systems=systems, claims=[*suite()["claims"], against]))
        yield Reproduced(folder, *reproduce("suite.yaml", "--processes", "2"))
