"""Provenance: the commit of the checkout that the package runs from."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from backstory.storage import provenance


@pytest.fixture(autouse=True)
def first_answer() -> Iterator[None]:
    """Ask git anew, and forget its answer."""
    provenance.commit.cache_clear()
    yield
    provenance.commit.cache_clear()


@pytest.mark.skipif(os.name != "posix", reason="names are no bytes")
@pytest.mark.parametrize("folder", ["plain", "café", "caf\udce9"])
def test_a_checkout_is_recognised_whatever_its_folder_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    package = tmp_path / folder / "src" / "backstory"
    try:
        (package / "storage").mkdir(parents=True)
    except OSError:
        pytest.skip("the file system takes no such name")
    (package / "storage" / "provenance.py").write_text("")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path / folder), *command], check=True)
    monkeypatch.setattr(provenance, "__file__", str(package / "storage" / "provenance.py"))
    commit = provenance.commit()
    assert commit is not None and len(commit) == 12
    (package / "storage" / "provenance.py").write_text("# edited")
    assert provenance.commit_of(package) == f"{commit}+changes"


def test_a_folder_outside_of_any_checkout_has_no_commit(tmp_path: Path) -> None:
    assert provenance.commit_of(tmp_path) is None
