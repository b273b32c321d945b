"""Plugins are run as they were hashed."""

import hashlib
import sys
from pathlib import Path

import pytest

from backstory.config import plugin_files


def test_a_plugin_that_is_edited_while_it_loads_runs_as_it_was_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_files, "LOADED", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    first = b"import sys\nsys.version_of_plugin = 1\n"
    (plugin := tmp_path / "edited.py").write_bytes(first)
    read_bytes = Path.read_bytes

    def edited(path: Path) -> bytes:
        content = read_bytes(path)
        plugin.write_bytes(content.replace(b"1", b"2"))
        return content

    monkeypatch.setattr(Path, "read_bytes", edited)
    monkeypatch.setattr(sys, "version_of_plugin", 0, raising=False)
    source = plugin_files.load_plugin(plugin)
    assert vars(sys)["version_of_plugin"] == 1 and source.sha256 == hashlib.sha256(first).hexdigest()
    assert source.files == (plugin,)
