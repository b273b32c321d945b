"""Checkpoints are written whole, verified before parsing, and rotated without losing the last whole one."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError

from backstory.storage import checkpoint as module
from backstory.storage import manifest
from backstory.storage.checkpoint import (
    DamagedCheckpoint,
    drop_checkpoint,
    newest_checkpoint,
    read_checkpoint,
    rotate_checkpoints,
    write_checkpoint,
)

TENSORS = {
    "weights": {"a": torch.arange(6.0).view(2, 3), "b.c": torch.tensor([1, 2]), "half": torch.ones(3).bfloat16()},
    "random": {"cpu": torch.arange(9, dtype=torch.uint8), "scalar": torch.tensor(0.1, dtype=torch.float64)},
    "empty": {},
}
DOCUMENTS = {"progress": {"step": 7, "history": [0.1, 1e-300], "best": None, "name": "é\u2028"}}


def write(parent: Path, name: str = "last-7") -> Path:
    return write_checkpoint(parent, name, TENSORS, DOCUMENTS)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return write(tmp_path)


def rewrite_manifest(folder: Path, change: Callable[[dict], object]) -> None:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def listed(path: Path) -> dict[str, object]:
    """A file as a manifest lists it."""
    return {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


# --- writing ---


def test_what_is_written_is_read(saved: Path) -> None:
    found = read_checkpoint(saved)
    assert found.path == saved and found.documents == DOCUMENTS
    assert found.tensors.keys() == TENSORS.keys()
    for file, group in TENSORS.items():
        assert found.tensors[file].keys() == group.keys()
        for name, tensor in group.items():
            assert found.tensors[file][name].dtype == tensor.dtype
            assert torch.equal(found.tensors[file][name], tensor)


@given(st.lists(st.floats(allow_nan=False, width=32), max_size=20), st.text(st.characters(codec="utf-8"), max_size=10))
def test_numbers_and_text_come_back_exactly(tmp_path_factory: pytest.TempPathFactory, values: list, text: str) -> None:
    folder = tmp_path_factory.mktemp("any")
    saved = write_checkpoint(folder, "last-1", {"t": {"x": torch.tensor(values)}}, {"d": {"text": text}})
    found = read_checkpoint(saved)
    assert found.tensors["t"]["x"].tolist() == values
    assert found.documents["d"]["text"] == text


def test_transposed_and_sliced_tensors_are_written_as_they_look(tmp_path: Path) -> None:
    table = torch.arange(12.0).view(3, 4)
    found = read_checkpoint(write_checkpoint(tmp_path, "last-1", {"t": {"x": table.t(), "y": table[1]}}, {}))
    assert torch.equal(found.tensors["t"]["x"], table.t())
    assert torch.equal(found.tensors["t"]["y"], table[1])


def test_only_the_files_asked_for_are_read(saved: Path) -> None:
    (saved / "random.safetensors").write_bytes(b"damaged")
    found = read_checkpoint(saved, frozenset({"weights"}))
    assert found.tensors.keys() == {"weights"} and found.documents == {}


def test_a_file_asked_for_must_be_there(saved: Path) -> None:
    rewrite_manifest(saved, lambda m: m["files"].pop("weights.safetensors"))
    with pytest.raises(DamagedCheckpoint, match="weights"):
        read_checkpoint(saved, frozenset({"weights"}))


def test_numbers_that_json_cannot_hold_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_checkpoint(tmp_path, "last-1", {}, {"progress": {"nats": float("nan")}})
    assert list(tmp_path.iterdir()) == []


class Crash(BaseException):
    """The process ends here."""


CALLS = 9
"""`os` calls of a write over an older checkpoint of the same name: at least as many as it makes."""


@pytest.mark.parametrize("number", range(CALLS))
@pytest.mark.parametrize("name", ["last-7", "last-8"], ids=["again", "anew"])
def test_a_failure_at_any_call_leaves_the_checkpoint_before(
    saved: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    calls = 0

    def failing(original: Callable) -> Callable:
        def call(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == number + 1:
                raise OSError(5, "Input/output error")
            return original(*arguments, **options)

        return call

    for function in ("fsync", "rename"):
        monkeypatch.setattr(os, function, failing(getattr(os, function)))
    try:
        write(saved.parent, name)
    except OSError:
        monkeypatch.undo()
    found = newest_checkpoint(saved.parent, "last")
    assert found is not None and found.documents == DOCUMENTS
    assert {p.name for p in saved.parent.iterdir()} <= {"last-7", "last-7-replaced", "last-8"}


def test_two_writers_of_one_checkpoint_do_not_write_into_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two containers that share a folder, whose first processes have one number."""
    fsync = os.fsync

    def interrupted(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        write(tmp_path)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", interrupted)
    assert read_checkpoint(write(tmp_path)).documents == DOCUMENTS
    assert [p.name for p in tmp_path.iterdir()] == ["last-7"]


def test_the_manifest_is_written_last_and_the_name_given_after_it(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync_file, fsync_folder, rename = module.fsync_file, module.fsync_folder, os.rename
    monkeypatch.setattr(module, "fsync_file", lambda path: (events.append(path.name), fsync_file(path))[1])
    monkeypatch.setattr(module, "fsync_folder", lambda path: (events.append(f"in {path.name}"), fsync_folder(path))[1])
    monkeypatch.setattr(os, "rename", lambda a, b: (events.append("rename"), rename(a, b))[1])
    write(saved.parent, "last-8")
    files = sorted(p.name for p in saved.iterdir() if p.name != "manifest.json")
    *durable, own, renamed, parent = events
    assert durable == [*files, "manifest.json"] and own.endswith("-last-8"), (
        "the files, then the folder that lists them"
    )
    assert (renamed, parent) == ("rename", f"in {saved.parent.name}"), "then the name, in the folder above"


@pytest.mark.parametrize(
    ("told", "number"), [("I/O error: No space left on device (os error 28)", 28), ("something else", 5)]
)
def test_a_disk_that_fails_under_tensors_is_told_as_any_other(
    saved: Path, monkeypatch: pytest.MonkeyPatch, told: str, number: int
) -> None:
    def full(tensors: object, path: Path) -> None:
        raise SafetensorError(told)

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(OSError) as error:
        write(saved.parent, "last-8")
    assert error.value.errno == number and str(error.value.filename).endswith(".safetensors")
    assert names(saved.parent) == ["last-7"]


def test_all_files_are_as_readable_as_the_system_makes_files(saved: Path) -> None:
    (saved.parent / "plain").touch()
    assert {p.stat().st_mode for p in saved.iterdir()} == {(saved.parent / "plain").stat().st_mode}


# --- damage ---


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The tensor files that were given to the parser."""
    paths: list[Path] = []
    load = module.load_file
    monkeypatch.setattr(module, "load_file", lambda path: (paths.append(path), load(path))[1])
    return paths


FILES = ("weights.safetensors", "random.safetensors", "empty.safetensors", "progress.json", "manifest.json")


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_refused(saved: Path, parsed: list[Path], name: str) -> None:
    whole = (saved / name).read_bytes()
    for position in range(0, len(whole), 1 if name == "manifest.json" else 3):
        bit = 1 << (position % 8)
        (saved / name).write_bytes(whole[:position] + bytes([whole[position] ^ bit]) + whole[position + 1 :])
        with pytest.raises(DamagedCheckpoint):
            read_checkpoint(saved)
    assert saved / name not in parsed
    (saved / name).write_bytes(whole)
    read_checkpoint(saved)


def lose(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\x00")


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def link(path: Path) -> None:
    """A link to a file that is the same in every byte."""
    shutil.move(path, path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [lose, truncate, empty, append, zero, folder, link])
def test_a_damaged_file_is_refused_unparsed(saved: Path, parsed: list[Path], damage: Callable, name: str) -> None:
    damage(saved / name)
    with pytest.raises(DamagedCheckpoint):
        read_checkpoint(saved)
    assert saved / name not in parsed


def test_a_damaged_document_is_refused_unparsed(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (saved / "progress.json").write_bytes((saved / "progress.json").read_bytes().replace(b"7", b"8"))
    seen: list[bytes] = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda data, **how: (seen.append(data.encode()), loads(data, **how))[1])
    with pytest.raises(DamagedCheckpoint, match=r"progress\.json does not have the SHA-256"):
        read_checkpoint(saved)
    assert seen == [(saved / "manifest.json").read_bytes()]


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", "3", "NaN", '{"schema": 1}', '{"schema": 1, "files": []}', "[" * 100_000]
)
def test_a_manifest_that_is_none_is_refused(saved: Path, text: str) -> None:
    (saved / "manifest.json").write_text(text)
    with pytest.raises(DamagedCheckpoint, match=r"manifest\.json"):
        read_checkpoint(saved)


@pytest.mark.parametrize("schema", [0, 2, "1", None, [1]])
def test_another_schema_is_refused(saved: Path, schema: object) -> None:
    rewrite_manifest(saved, lambda m: m.update(schema=schema))
    with pytest.raises(DamagedCheckpoint, match="schema this version does not read"):
        read_checkpoint(saved)


@pytest.mark.parametrize(
    "name",
    [
        "../x.json",
        "/etc/passwd",
        "sub/x.json",
        "..",
        "x.pkl",
        "x.pt",
        "x.json\n",
        ".json",
        "x.json.exe",
        "a b.json",
        "é.json",
    ],
)
def test_a_hostile_file_name_is_refused(saved: Path, name: str) -> None:
    (saved.parent / "x.json").write_text("{}")
    rewrite_manifest(saved, lambda m: m["files"].update({name: listed(saved.parent / "x.json")}))
    with pytest.raises(DamagedCheckpoint, match="does not list its files"):
        read_checkpoint(saved)


@pytest.mark.parametrize("entry", [None, 3, [], {}, {"bytes": 1}, {"sha256": "0" * 64}])
def test_an_entry_without_size_or_hash_is_refused(saved: Path, entry: object) -> None:
    rewrite_manifest(saved, lambda m: m["files"].update({"weights.safetensors": entry}))
    with pytest.raises(DamagedCheckpoint):
        read_checkpoint(saved)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("progress.json", b"["),
        ("progress.json", b"\xff\xfe"),
        ("progress.json", b"[" * 100_000),
        ("weights.safetensors", b""),
        ("weights.safetensors", (9).to_bytes(8, "little") + b"{}"),
        ("progress.json", b'{"step": NaN}'),
        ("progress.json", b'{"step": 1e999}'),
        ("progress.json", b'{"step": 1, "step": 2}'),
        ("progress.json", '{"step": 1}'.encode("utf-16")),
        (
            "weights.safetensors",
            (60).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[99],"data_offsets":[0,9999]}}  ',
        ),
    ],
)
def test_a_file_with_the_right_hash_that_cannot_be_parsed_is_refused(saved: Path, name: str, content: bytes) -> None:
    (saved / name).write_bytes(content)
    rewrite_manifest(saved, lambda m: m["files"].update({name: listed(saved / name)}))
    with pytest.raises(DamagedCheckpoint, match="cannot be parsed"):
        read_checkpoint(saved)


@pytest.mark.parametrize("name", ["manifest.json", "progress.json"])
def test_json_that_is_too_large_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (saved / "progress.json").write_text(json.dumps(["x" * 5000]))
    rewrite_manifest(saved, lambda m: m["files"].update({"progress.json": listed(saved / "progress.json")}))
    read_checkpoint(saved)
    limit = {"manifest.json": "LARGEST_MANIFEST", "progress.json": "LARGEST_JSON"}[name]
    monkeypatch.setattr(manifest, limit, 100)
    with pytest.raises(DamagedCheckpoint, match=f"{name} is too large"):
        read_checkpoint(saved)


# --- several of them ---


@pytest.fixture
def three(tmp_path: Path) -> Path:
    for step in (5, 40, 200):
        write(tmp_path, f"last-{step}")
    write(tmp_path, "best-1000")
    return tmp_path


def names(parent: Path) -> list[str]:
    return sorted(p.name for p in parent.iterdir())


def test_the_newest_is_the_one_with_the_largest_number(three: Path) -> None:
    found = newest_checkpoint(three, "last")
    assert found is not None and found.path.name == "last-200"
    assert newest_checkpoint(three, "other") is None
    assert newest_checkpoint(three / "absent", "last") is None


def test_a_damaged_newest_is_passed_over_with_one_warning(three: Path) -> None:
    truncate(three / "last-200" / "weights.safetensors")
    with pytest.warns(UserWarning, match="skipping a damaged checkpoint: .*last-200") as warned:
        found = newest_checkpoint(three, "last")
    assert found is not None and found.path.name == "last-40"
    assert len(warned) == 1 and "\n" not in str(warned[0].message)


def test_where_all_are_damaged_the_newest_is_told_of(three: Path) -> None:
    for step in (5, 40, 200):
        lose(three / f"last-{step}" / "manifest.json")
    with pytest.raises(DamagedCheckpoint, match=r"last-200/manifest\.json is missing"):
        newest_checkpoint(three, "last")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["manifest.json", "weights.safetensors"])
def test_a_pipe_is_not_waited_for(saved: Path, name: str) -> None:
    rewrite_manifest(saved, lambda m: m["files"]["weights.safetensors"].update(bytes=0))
    (saved / name).unlink()
    os.mkfifo(saved / name)
    with pytest.raises(DamagedCheckpoint, match=f"{name} is not a regular file"):
        read_checkpoint(saved)


@pytest.mark.parametrize("size", [1 << 21, 1 << 60, 2**64 - 1])
def test_a_header_that_is_too_large_is_refused(saved: Path, parsed: list[Path], size: int) -> None:
    (saved / "weights.safetensors").write_bytes(size.to_bytes(8, "little") + b"{}")
    rewrite_manifest(saved, lambda m: m["files"].update({"weights.safetensors": listed(saved / "weights.safetensors")}))
    with pytest.raises(DamagedCheckpoint, match=r"weights\.safetensors is too large"):
        read_checkpoint(saved)
    assert saved / "weights.safetensors" not in parsed


def test_a_checkpoint_that_is_a_link_is_neither_read_nor_removed(three: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(three / "last-5", elsewhere)
    (three / "last-5").symlink_to(elsewhere)
    with pytest.raises(DamagedCheckpoint, match="last-5 is a link"):
        read_checkpoint(three / "last-5")
    rotate_checkpoints(three / "last-200", keep=1)
    assert read_checkpoint(elsewhere).documents == DOCUMENTS


def test_rotation_keeps_the_newest_and_other_kinds(three: Path) -> None:
    (three / "last-x").mkdir()
    rotate_checkpoints(three / "last-200", keep=2)
    assert names(three) == ["best-1000", "last-200", "last-40", "last-x"]
    rotate_checkpoints(three / "last-200", keep=2)
    assert names(three) == ["best-1000", "last-200", "last-40", "last-x"]
    rotate_checkpoints(three / "last-200", keep=1)
    assert names(three) == ["best-1000", "last-200", "last-x"]


@pytest.mark.parametrize("name", FILES)
def test_rotation_removes_nothing_when_the_newest_is_damaged(three: Path, name: str) -> None:
    append(three / "last-200" / name)
    before = names(three)
    with pytest.warns(UserWarning, match="others are kept"):
        rotate_checkpoints(three / "last-200", keep=1)
    assert names(three) == before


def test_rotation_removes_what_the_run_went_back_behind(three: Path) -> None:
    truncate(three / "last-200" / "weights.safetensors")
    rotate_checkpoints(three / "last-40", keep=2)
    assert names(three) == ["best-1000", "last-40", "last-5"]


def test_a_checkpoint_that_is_being_replaced_is_found_until_the_new_one_stands(three: Path) -> None:
    os.rename(three / "last-200", three / "last-200-replaced")
    found = newest_checkpoint(three, "last")
    assert found is not None and found.path.name == "last-200-replaced"
    write(three, "last-200")
    assert names(three) == ["best-1000", "last-200", "last-40", "last-5"]


def test_a_checkpoint_is_dropped_only_if_another_is_whole(three: Path) -> None:
    assert drop_checkpoint(three / "last-200")
    assert names(three) == ["best-1000", "last-40", "last-5"]
    assert drop_checkpoint(three / "last-7")
    assert names(three) == ["best-1000", "last-40", "last-5"]
    append(three / "last-5" / "manifest.json")
    assert not drop_checkpoint(three / "last-40")
    assert names(three) == ["best-1000", "last-40", "last-5"]


def test_an_interrupted_removal_leaves_nothing_that_looks_whole(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(path: Path, **options: object) -> None:
        raise Crash

    monkeypatch.setattr(shutil, "rmtree", interrupt)
    with pytest.raises(Crash):
        rotate_checkpoints(three / "last-200", keep=2)
    with pytest.raises(DamagedCheckpoint, match=r"manifest\.json is missing"):
        read_checkpoint(three / "last-5")
