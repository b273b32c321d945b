"""A compression that is stopped or killed and then resumed writes the same file as an uninterrupted one."""

import errno
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from coded_runs import TEXT, run_of, vocabulary_of
from test_codec import CountsBlocks

import backstory as bs
import backstory.codec.code_checkpoint as code_checkpoint
from backstory.cli.main import main
from backstory.codec import compress, decompress
from backstory.config import SpanBufferConfig
from backstory.readers import READERS
from backstory.readers.kind import ReaderKind
from backstory.readers.saved_reading import save_reading
from backstory.runs.run import Run
from backstory.utils.errors import NoDisk, UserError

DATA = (TEXT * 3 + "An odd word, Zyzzyva, and ANOTHER.\n").encode() + b"\xff\0 the end"
READINGS: list[tuple[str, dict[str, Any]]] = [
    ("static", {"batch_size": 3}),
    ("dynamic:rule=nadam,rate=0.01,segment=7+cache:window=9", {}),
    ("static", {}),
    ("dynamic:rule=sgd,rate=0.1,segment=7", {}),
    ("blocks", {}),
]


@pytest.fixture(scope="module")
def run() -> Run:
    return run_of(vocabulary_of("words"), buffer=SpanBufferConfig(size=6, span=2))


@pytest.fixture(scope="module", autouse=True)
def blocks_reader() -> Iterator[None]:
    """A reader that needs blocks of its own."""
    READERS["blocks"] = ReaderKind("blocks", "blocks", lambda context, settings: CountsBlocksHere(context.run.model))
    yield
    del READERS["blocks"]


class CountsBlocksHere(CountsBlocks):
    name = "blocks"

    def snapshot(self) -> Any:
        return {"state": super().snapshot(), "counts": self.counts.clone()}

    def restore(self, snapshot: Any) -> None:
        super().restore(snapshot["state"])
        self.counts = snapshot["counts"].clone()


class Stop(Exception):
    pass


def stops_after(tokens: int) -> Callable[[int, int], None]:
    def progress(done: int, _: int) -> None:
        if done >= tokens:
            raise Stop

    return progress


@pytest.mark.full
@pytest.mark.parametrize(("reader", "how"), READINGS)
def test_a_compression_resumes_from_any_place(
    reader: str, how: dict[str, Any], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, how = tmp_path / "out.bks", {"reader": reader, "save_every": 1e-9, **how}
    code = compress(DATA, run, **how)
    for tokens in range(1, code.tokens - 9, 1 + code.tokens // 40):
        step = tokens // how.get("batch_size", 1)
        monkeypatch.setattr(code_checkpoint, "save_reading", saves_from(step))
        with pytest.raises(Stop):
            compress(DATA, run, out, **how, progress=stops_after(tokens + 9))
        monkeypatch.undo()
        resumed = compress(DATA, run, out, **how | {"save_every": 0}, resume=True)
        assert resumed.data == code.data == out.read_bytes()
        assert (resumed.model_bits, resumed.spelling_bits) == (code.model_bits, code.spelling_bits)
        assert list(tmp_path.iterdir()) == [out]
        out.unlink()
    assert decompress(code.data, run) == DATA


def saves_from(step: int) -> Callable[..., None]:
    """Save once, at the first place from a step on: a checkpoint takes longer than a step."""
    saved: list[int] = []

    def save(folder: Path, number: int, *values: Any) -> None:
        if number >= step and not saved:
            save_reading(folder, number, *values)
            saved.append(number)

    return save


@pytest.mark.full
@pytest.mark.parametrize(("reader", "how"), READINGS[:2])
def test_a_compression_that_is_killed_again_and_again(
    reader: str, how: dict[str, Any], run: Run, tmp_path: Path
) -> None:
    out, kills, data = tmp_path / "out.bks", 0, DATA * 20
    began = time.monotonic()
    expected = compress(data, run, reader=reader, **how).data
    seconds, draw = time.monotonic() - began, random.Random(reader)

    def coded() -> bool:
        """Start a process that compresses, and kill it after a while; return True if it has ended by itself."""
        if not (child := os.fork()):
            try:
                compress(data, run, out, reader=reader, save_every=0.05, resume=True, **how)
                os._exit(0)
            finally:
                os._exit(1)
        end = time.monotonic() + draw.random() * seconds / 5
        while time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                assert status == 0
                return True
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1] == 0

    while not coded():
        kills += 1
        assert kills < 500
    assert kills >= 10
    assert out.read_bytes() == expected
    assert {path.name for path in tmp_path.iterdir()} <= {"out.bks", "out.bks.part"}


def test_a_full_disk_leaves_what_was_coded_to_be_resumed(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    data, out = b"ann saw the tea\n" * 3, tmp_path / "out.bks"
    with monkeypatch.context() as patched:
        patched.setattr("backstory.codec.setting.write_atomically", full)
        with pytest.raises(NoDisk, match=r"make room on that disk, and go on with the same command and --resume$"):
            compress(data, tiny_run, out, save_every=1e-9)
    assert compress(data, tiny_run, out, resume=True).data == compress(data, tiny_run).data == out.read_bytes()
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.full
def test_what_is_not_resumed(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out, model = tmp_path / "text.txt", tmp_path / "text.bks", ["--model", str(tiny_run)]
    file.write_text("ann saw the tea\n" * 9)
    with pytest.raises(UserError, match="nothing to resume: a compression is saved beside its file"):
        bs.compress(file, tiny_run, resume=True)
    with pytest.raises(Stop):
        bs.compress(file, tiny_run, out, save_every=1e-9, progress=stops_after(20))
    (saved,) = (tmp_path / "text.bks.part").iterdir()
    command = ["compress", str(file), *model, "--out", str(out), "--resume"]
    assert main([*command, "--reader", "cache"]) == 2
    assert "was saved with the reader static, not static+cache" in capsys.readouterr().err
    file.write_text("ann saw the cake\n" * 9)
    assert main(command) == 2
    shown = capsys.readouterr().err.strip().splitlines()[-1]
    assert shown == (
        f"backstory: {saved} was saved with another text; give that one, or leave --resume out to start again"
    )
    assert saved.is_dir() and not out.exists()
    assert main([*command[:-1]]) == 0  # from the beginning
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.bks", "text.txt"]


@pytest.mark.full
def test_a_name_too_long_for_its_checkpoints_is_refused(run: Run, tmp_path: Path) -> None:
    (source := tmp_path / "text").write_bytes(DATA)
    longest = tmp_path / ("a" * 250)
    compress(source, run, longest)
    decompress(longest, run, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == DATA
    with pytest.raises(UserError, match=r"name would take 256 bytes, and .* 255; choose a shorter name with --out$"):
        compress(source, run, tmp_path / ("ä" * 125 + "a"))
