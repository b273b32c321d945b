"""A stopped and resumed evaluation gives the same figures, leaves nothing behind, and resumes no other evaluation."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import adaptive
import numpy as np
import pytest
import torch
from adaptive import Doubtful, Learning, Remembering
from runs import contents
from small_models import lstm
from tiers import fast_then_full

import backstory as bs
from backstory.config.readers import DynamicSettings
from backstory.evaluation import read
from backstory.evaluation.reading_loop import Position
from backstory.models import map_state
from backstory.readers import READERS, Reader, StaticReader
from backstory.readers.saved_reading import check_same, explain_full_disk, load_reading, save_reading
from backstory.storage.atomic import TEMPORARY
from backstory.storage.lock import LOCK
from backstory.utils.errors import NoDisk, UserError

ALWAYS = 1e-9
"""Seconds between two savings: after every block."""
Stream = Callable[[int], np.ndarray]
MADE: dict[str, Callable[[], Reader]] = {
    "static": lambda: StaticReader(lstm()),
    "wrapped": lambda: Doubtful(StaticReader(lstm())),
    "learning": lambda: Learning(lstm()),
    "wrapped learning": lambda: Doubtful(Learning(lstm())),
    "remembering": lambda: Remembering(lstm()),
}


@pytest.fixture(autouse=True)
def registered(adaptive_readers: None) -> None:
    """Register the readers of `adaptive` by name for all tests here."""


@pytest.fixture
def text(tiny_corpus: Path, tmp_path: Path) -> Path:
    """A text of more than a thousand tokens, so of five blocks."""
    path = tmp_path / "text.txt"
    path.write_text((tiny_corpus / "train.txt").read_text() * 2)
    return path


# --- a full disk ---


@pytest.mark.parametrize("line_by_line", fast_then_full([False, True], [False]))
def test_no_file_is_put_in_place_before_the_result(
    line_by_line: bool, tiny_run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for the result, the same command works once there is room."""
    text.write_text("".join(text.read_text().splitlines(keepends=True)[:3]))
    files = {"per_token": tmp_path / "tokens.tsv", "proof": tmp_path / "proof.bks"}
    lines = {"each_line": True, "per_line": tmp_path / "lines.tsv"} if line_by_line else {}

    def read_it() -> None:
        bs.evaluate(tiny_run, text=text, out=tmp_path / "out", audit_places=1, **files, **lines)

    with monkeypatch.context() as patched:
        patched.setattr("backstory.results.result_file.write_atomically", _full)
        with pytest.raises(OSError, match="No space left"):
            read_it()
    assert not list(tmp_path.glob("*.tsv")) and not list(tmp_path.glob("*.bks"))
    read_it()
    assert (tmp_path / "out" / "result.json").is_file() and all(path.is_file() for path in files.values())


def test_a_full_disk_leaves_what_was_read_to_be_resumed(
    tiny_run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_it(**options: Any) -> None:
        bs.evaluate(tiny_run, text=text, out=tmp_path / "out", audit_places=1, **options)

    with monkeypatch.context() as patched:
        patched.setattr("backstory.results.result_file.write_atomically", _full)
        with pytest.raises(NoDisk, match=r"make room on that disk, and go on with the same call and resume=True$"):
            read_it(save_every=ALWAYS)
        with pytest.raises(OSError, match="No space left"):  # which removes what was saved
            read_it(save_every=0)
    assert not list((tmp_path / "out").glob("reading-*"))


@pytest.mark.parametrize("again", ["", "give the same call again"])
def test_a_full_disk_that_was_explained_before_names_resume_too(again: str, tmp_path: Path) -> None:
    reader = StaticReader(lstm())
    reader.start(1)
    save_reading(tmp_path, 0, reader, {}, {})
    with pytest.raises(
        NoDisk, match=r"^it is full; set BACKSTORY_CACHE, and go on with the same command and --resume$"
    ):
        explain_full_disk(tmp_path, NoDisk("it is full; set BACKSTORY_CACHE", again))


def _full(path: Path, content: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


# --- a reader on disk ---


def test_a_reading_that_was_saved_before_a_setting_came_goes_on(tmp_path: Path) -> None:
    """A mean RMS over all weights was the only one there was."""

    def by(settings: dict[str, Any]) -> dict[str, Any]:
        return {"readers": [{"name": "dynamic", "settings": settings}]}

    reader, earlier = StaticReader(lstm()), asdict(DynamicSettings())
    del earlier["normalization"]
    reader.start(1)
    save_reading(tmp_path, 0, reader, by(earlier), {})
    saved = load_reading(tmp_path)
    assert saved is not None
    check_same(saved, by(asdict(DynamicSettings(normalization="weights"))))
    with pytest.raises(UserError, match=r"normalization=weights, not dynamic:.*normalization=tensors"):
        check_same(saved, by(asdict(DynamicSettings(normalization="tensors"))))


def test_readers_that_are_damaged_are_left_to_who_reads_them(tmp_path: Path) -> None:
    reader, damaged = StaticReader(lstm()), {"readers": [{"name": 1}]}
    reader.start(1)
    save_reading(tmp_path, 0, reader, damaged, {})
    saved = load_reading(tmp_path)
    assert saved is not None and saved.identity == damaged


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_reader_goes_on_from_disk_bit_for_bit(name: str, batch_size: int, stream: Stream, tmp_path: Path) -> None:
    made, ids = MADE[name], stream(120)
    if made().capabilities.adapts_weights and batch_size > 1:
        pytest.skip("reads one row")
    places: list[Position] = []
    whole_scores: list[torch.Tensor] = []

    def keep(position: Position) -> None:
        places.append(position)
        if position.block == 3:
            save_reading(tmp_path, position.tokens, reader, {"by": 1}, {"at": 2})

    reader = made()
    whole = read(
        reader, ids, 0, batch_size=batch_size, block=5, passed=keep, each=lambda b, p, s: whole_scores.append(s)
    )
    saved, again = load_reading(tmp_path), made()
    assert saved is not None and (saved.identity, saved.progress) == ({"by": 1}, {"at": 2})
    saved.restore(again, batch_size)
    scores: list[torch.Tensor] = []
    part = read(again, ids, 0, batch_size=batch_size, block=5, at=places[2], each=lambda b, p, s: scores.append(s))
    assert (part.nats, part.tokens) == (whole.nats, whole.tokens) and part.seconds > places[2].seconds
    assert len(scores) == len(whole_scores) - 3
    assert all(map(torch.equal, scores, whole_scores[3:]))
    assert str(again.snapshot()) == str(reader.snapshot())


# The learned one has to be trained first, and a foreign buffer needs a buffer, and rows.
@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in READERS if name not in ("learned", "shuffled-buffer")])
def test_every_reader_there_is_can_be_saved(name: str, tiny_run: Path, text: Path, tmp_path: Path) -> None:
    out, name = (
        tmp_path / "out",
        {
            "dynamic": "dynamic:rule=nadam,segment=20",  # of its rules one without statistics
            "mixture": "cache+ppm+mixture",
            "ensemble": f"ensemble:runs={tiny_run}",
        }.get(name, name),
    )
    plain = bs.evaluate(tiny_run, text=text, reader=name, out=tmp_path / "plain").figures
    assert stopped(tiny_run, text, out, after=300, reader=name)
    assert bs.evaluate(tiny_run, text=text, reader=name, out=out, resume=True).figures == plain


@pytest.mark.parametrize("changed", ["tree", "tensors"])
def test_what_does_not_fit_the_reader_is_refused(changed: str, stream: Stream, tmp_path: Path) -> None:
    reader = StaticReader(lstm())
    read(reader, stream(20), 0)
    kept = reader.snapshot()
    strange = (kept,) if changed == "tree" else map_state(lambda t: t[..., 1:], kept)
    other = Learning(lstm())
    other.snapshot = lambda: strange  # type: ignore[method-assign]
    save_reading(tmp_path, 20, other, {}, {})
    saved = load_reading(tmp_path)
    assert saved is not None
    with pytest.raises(UserError, match="does not fit its own reader"):
        saved.restore(reader)


# --- evaluations ---


class Killed(Exception):
    """Simulates the end of a process."""


def stopped(run: Path, text: Path | None, out: Path, after: int, **options: Any) -> bool:
    """Evaluate up to this many tokens, saving after every block. Return True if it was stopped after a save."""

    def stop(done: int, total: int) -> None:
        if done >= after:
            raise Killed

    try:
        bs.evaluate(run, text=text, out=out, save_every=ALWAYS, progress=stop, **options)
    except Killed:
        return any(out.glob("reading-*"))
    return False


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 3},
        {"after": "valid"},
        {"reader": "learning"},
        {"reader": "learning+doubtful", "after": "valid"},
        {"reader": "doubtful", "batch_size": 2},
        {"reader": "learning:rate=0.01"},
    ],
    ids=str,
)
def test_the_figures_are_those_of_a_reading_that_was_never_stopped(
    options: dict[str, Any], tiny_run: Path, tmp_path: Path
) -> None:
    hashes, split = contents(tiny_run), "train"
    plain = bs.evaluate(tiny_run, split=split, out=tmp_path / "plain", **options)
    seen: list[int] = []
    bs.evaluate(
        tiny_run, split=split, out=tmp_path / "plain", progress=lambda done, total: seen.append(done), **options
    )
    stops = sorted({seen[min(len(seen) - 1, int(len(seen) * share))] for share in (0.3, 0.8)})
    out, saved = tmp_path / "out", 0
    for number, stop in enumerate(stops):
        saved += stopped_split(tiny_run, split, out, stop, resume=number > 0, **options)
    assert saved or seen[-1] <= 256 or len(seen) == 1
    told: list[tuple[int, int]] = []
    result = bs.evaluate(
        tiny_run, split=split, out=out, resume=True, progress=lambda *done: told.append(done), **options
    )
    assert result.figures == plain.figures
    assert (told[-1] == (seen[-1], seen[-1]) and len(told) < len(seen)) or not saved
    assert [p.name for p in out.iterdir()] == ["result.json"]
    assert json.loads((out / "result.json").read_text())["figures"] == plain.figures.to_dict()
    assert contents(tiny_run) == hashes


@pytest.mark.full
def test_what_readers_say_of_themselves_is_that_of_the_text_they_read(
    tiny_run: Path, text: Path, tmp_path: Path
) -> None:
    """Also where the evaluation was stopped in the static reading that follows for comparison."""
    reader, out = ("learning", "cache", "mixture"), tmp_path / "out"
    plain = bs.evaluate(tiny_run, text=text, reader=reader, out=tmp_path / "plain").figures
    assert plain.readers is not None and plain.readers[-1]["weights"] != [0.5, 0.5]
    assert stopped(tiny_run, text, out, after=plain.tokens + 300, reader=reader)
    assert bs.evaluate(tiny_run, text=text, reader=reader, out=out, resume=True).figures == plain


def stopped_split(run: Path, split: str, out: Path, stop_at: int, **options: Any) -> bool:
    def stop(done: int, total: int) -> None:
        if done >= stop_at:
            raise Killed

    with pytest.raises(Killed):
        bs.evaluate(run, split=split, out=out, save_every=ALWAYS, progress=stop, **options)
    return any(out.glob("reading-*"))


def test_without_resume_it_begins_anew(tiny_run: Path, text: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "out", []
    plain = bs.evaluate(tiny_run, text=text).figures
    assert stopped(tiny_run, text, out, after=600)
    for left in (LOCK, f"{TEMPORARY}1-result.json", f"{TEMPORARY}1-reading-7/half"):
        (out / left).parent.mkdir(exist_ok=True)
        (out / left).write_text("left by a process that was killed")
    (out / f"{TEMPORARY}mine").write_text("somebody else's")
    result = bs.evaluate(tiny_run, text=text, out=out, progress=lambda done, total: seen.append(done))
    assert result.figures == plain and seen[0] <= 256
    assert sorted(p.name for p in out.iterdir()) == [f"{TEMPORARY}mine", "result.json"]


def test_nothing_is_saved_of_a_short_reading_or_where_it_is_not_wanted(
    tiny_run: Path, text: Path, tmp_path: Path
) -> None:
    def stop(done: int, total: int) -> None:
        if done > 900:
            raise Killed

    for options in ({}, {"save_every": 0.0}, {"save_every": ALWAYS, "per_token": tmp_path / "tokens.tsv"}):
        with pytest.raises(Killed):
            bs.evaluate(tiny_run, text=text, out=tmp_path / "out", progress=stop, **options)
        assert not (tmp_path / "out").exists()


def test_resume_without_anything_saved_reads_it_all(tiny_run: Path, text: Path, tmp_path: Path) -> None:
    first = bs.evaluate(tiny_run, text=text, out=tmp_path / "out", resume=True)
    again = bs.evaluate(tiny_run, text=text, out=tmp_path / "out", resume=True)
    assert first.figures == again.figures == bs.evaluate(tiny_run, text=text).figures


def other_weights(run: Path, folder: Path) -> Path:
    """A run of the same settings and text with other weights."""
    from safetensors.torch import load_file, save_file

    copy = Path(shutil.copytree(run, folder))
    checkpoint = next(copy.glob("checkpoints/best-*"))
    path = checkpoint / "weights.safetensors"
    save_file({name: t * 1.01 for name, t in load_file(path).items()}, path)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    content = path.read_bytes()
    manifest["files"][path.name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    return copy


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"run": "other"}, "was saved with another model; give that one"),
        ({"text": "other"}, "was saved with another text; give that one"),
        ({"reader": "static"}, "was saved with the reader learning:rate=0.3, not static; give the same"),
        ({"reader": "learning:rate=0.2"}, "the reader learning:rate=0.3, not learning:rate=0.2"),
        ({"reader": "learning+doubtful"}, r"not learning:rate=0.3\+doubtful; give"),
        ({"precision": "bfloat16"}, "with the precision float32, not bfloat16"),
        ({"batch_size": 2}, "with the batch size 1, not 2"),
        ({"audit_places": 3}, r"with the places \d+, not 3"),
        ({"out": None}, "this evaluation was not saved"),
        ({"per_token": Path("tokens.tsv")}, "resume=True and per_token cannot be combined"),
    ],
    ids=str,
)
def test_another_evaluation_is_not_taken_up(
    change: dict[str, Any], says: str, tiny_run: Path, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert stopped(tiny_run, text, out, after=300, reader="learning")
    (tmp_path / "other.txt").write_text(text.read_text() + "more\n")
    options: dict[str, Any] = {"run": tiny_run, "text": text, "reader": "learning", "out": out} | change
    if change == {"run": "other"}:
        options["run"] = other_weights(tiny_run, tmp_path / "run")
    if change == {"text": "other"}:
        options["text"] = tmp_path / "other.txt"
    before = contents(out)
    with pytest.raises(UserError, match=says):
        bs.evaluate(options.pop("run"), resume=True, **options)
    assert contents(out) == before


@pytest.mark.full
def test_other_statistics_are_noticed(tiny_run: Path, text: Path, tmp_path: Path) -> None:
    run, out = Path(shutil.copytree(tiny_run, tmp_path / "run")), tmp_path / "out"
    for reader, taken in (("doubtful", True), ("learning", False)):
        shutil.rmtree(out, ignore_errors=True)
        assert stopped(run, text, out, after=300, reader=reader)
        (run / "readers" / f"statistics-{reader}").mkdir(parents=True)
        (run / "readers" / f"statistics-{reader}" / "manifest.json").write_text("{}")
        with (
            nullcontext()
            if taken
            else pytest.raises(UserError, match="was saved with other statistics or meta-learners")
        ):
            bs.evaluate(run, text=text, out=out, reader=reader, resume=True)


def resigned(saved: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the document of a saved reading under right hashes."""
    path = saved / "reading.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    manifest = json.loads((saved / "manifest.json").read_text())
    manifest["files"][path.name] = {
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    (saved / "manifest.json").write_text(json.dumps(manifest))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a tensor": (lambda p: flip(p / "reader.safetensors"), "does not have the SHA-256 in its manifest"),
    "the document": (lambda p: flip(p / "reading.json"), "does not have the SHA-256 in its manifest"),
    "cut off": (lambda p: (p / "reading.json").write_bytes(b"{"), "does not have the size in its manifest"),
    "no manifest": (lambda p: (p / "manifest.json").unlink(), "is missing or not JSON"),
    "version": (lambda p: resigned(p, lambda d: d.update(format=99)), "was saved by another version of backstory"),
    "no tree": (lambda p: resigned(p, lambda d: d.pop("tree")), "is damaged"),
    "other tree": (lambda p: resigned(p, lambda d: d.update(tree=None)), "does not fit its own reader"),
    "elsewhere": (lambda p: resigned(p, lambda d: d.update(at={})), "is damaged: it is not a saved evaluation"),
    "position": (lambda p: resigned(p, lambda d: d["at"].update(position={"block": "x"})), "is damaged"),
    "audit": (lambda p: resigned(p, lambda d: d["at"]["parts"].update(audit={"random": 1})), "is damaged"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_saving_is_refused(what: str, tiny_run: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert stopped(tiny_run, text, out, after=300)
    damage, says = DAMAGE[what]
    damage(next(out.glob("reading-*")))
    before = contents(out)
    with pytest.raises(UserError, match=says):
        bs.evaluate(tiny_run, text=text, out=out, resume=True)
    assert contents(out) == before


@pytest.mark.full
def test_on_the_command_line_a_killed_evaluation_goes_on(tiny_run: Path, text: Path, tmp_path: Path) -> None:
    text.write_text(text.read_text() * 4)
    out = tmp_path / "out"
    program = [sys.executable, str(Path(adaptive.__file__)), "evaluate", str(tiny_run), str(text)]
    program += ["--reader", "learning", "--reader", "doubtful", "--out", str(out), "--save-every", "0.05"]
    program += ["--audit-seed", "7", "--audit-places", "8"]
    process = subprocess.Popen(program)
    while not any(out.glob("reading-*")):
        assert process.poll() is None
    process.kill()
    process.wait()
    done = subprocess.run([*program, "--resume", "--json"], capture_output=True, text=True, check=True)
    plain = bs.evaluate(tiny_run, text=text, reader="learning+doubtful", audit_seed=7, audit_places=8)
    assert json.loads(done.stdout)["figures"] == plain.figures.to_dict()
    assert [p.name for p in out.iterdir()] == ["result.json"]
