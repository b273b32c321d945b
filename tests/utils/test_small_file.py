"""A small file is read only if it is regular, not too large, and inside its folder."""

import os
from pathlib import Path

import pytest

from backstory.utils.small_file import read_small, read_small_text


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123")
    assert read_small(tmp_path / "a", most=4, inside=tmp_path) == b"0123"


def refusal(path: Path, **how: object) -> str:
    with pytest.raises(OSError) as told:
        read_small_text(path, **how)  # pyright: ignore[reportArgumentType]
    assert str(told.value.filename) == str(path)
    return str(told.value.strerror)


def test_other_files_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_bytes(b"01234")
    (tmp_path / "latin").write_bytes(b"\xe9")
    assert "not a regular file" in refusal(tmp_path / "pipe")
    assert "not a regular file" in refusal(Path("/dev/zero"))
    assert "directory" in refusal(tmp_path / "folder")
    assert "larger than 4 bytes" in refusal(tmp_path / "large", most=4)
    assert "not UTF-8" in refusal(tmp_path / "latin")
    assert "No such file" in refusal(tmp_path / "none")


def test_a_link_is_followed_inside_a_folder_and_not_out_of_it(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    other.mkdir()
    (other / "secret").write_text("s")
    (run / "kept").write_text("k")
    (run / "near").symlink_to("kept")
    (run / "far").symlink_to("../other/secret")
    (run / "room").symlink_to(other)
    (tmp_path / "linked").symlink_to(run)
    assert read_small(tmp_path / "linked" / "near", inside=tmp_path / "linked") == b"k"
    assert read_small(run / "far") == b"s"
    assert "leads out" in refusal(run / "far", inside=run)
    assert "leads out" in refusal(run / "room" / "secret", inside=run)
