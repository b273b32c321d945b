"""Foreign runs: pipes, devices, huge files and links in place of a run's files."""

import contextlib
import io
import os
import resource
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

from calling import call
from rich.console import Console
from runs import tiny_config, tiny_corpus

from backstory.config import to_yaml
from backstory.training import train

SECONDS, GIBIBYTES = 20, 2
"""Time limit of a command in seconds, and limit of the memory beyond that at its start."""
MADE = (
    ("evaluate", "{run}"),
    ("generate", "{run}", "--tokens", "5", "--save"),
    ("reader", "statistics", "{run}", "--batch-size", "5"),
    ("reader", "tune", "{run}", "--reader", "cache", "--tokens", "100", "--grid", "theta=0.3,0.5"),
    ("explain", "surprisal", "{run}", "--words", "10"),
    ("examine", "{run}", "--experiment", "truncate", "--targets", "10", "--maximum-context", "8"),
)
"""Commands that write into a run."""
EVALUATE, GENERATE, STATISTICS, TUNE, EXPLAIN, EXAMINE = MADE
AGAIN = (*EXAMINE, "--again")
CACHE, DYNAMIC = (("evaluate", "{run}", "--reader", reader) for reader in ("cache", "dynamic"))
REPORT, RESUME = ("report", "{run}", "--out", "{page}"), ("train", "{settings}", "--resume", "--out", "{run}")
COPY = ("recipe", "check", "{run}")
HELD = {
    "config.yaml": (REPORT, RESUME, COPY),
    "metrics.jsonl": (REPORT, RESUME),
    "result.json": (REPORT, RESUME),
    "run.json": (RESUME,),
    "checkpoints": (EVALUATE, REPORT, RESUME),
    "checkpoints/{best}": (EVALUATE,),
    "checkpoints/{best}/manifest.json": (EVALUATE, GENERATE),
    "checkpoints/{best}/model.json": (EVALUATE, EXPLAIN),
    "checkpoints/{best}/vocabulary.json": (EVALUATE, EXAMINE),
    "readers": (CACHE, DYNAMIC, TUNE, STATISTICS),
    "readers/cache.json": (CACHE,),
    "readers/statistics": (DYNAMIC,),
    "readers/statistics/manifest.json": (DYNAMIC,),
    "evaluate-test": (EVALUATE, REPORT),
    "evaluate-test/result.json": (EVALUATE, REPORT),
    "sample": (GENERATE, REPORT),
    "sample/result.json": (GENERATE, REPORT),
    "{explained}": (EXPLAIN, REPORT),
    "{examined}": (EXAMINE, AGAIN, REPORT),
    "{examined}/result.json": (EXAMINE, REPORT),
}
"""Files of a run, with the commands that read it or write it."""


def run(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """Each trial replaces one file or folder by such an object, and runs the commands that meet it."""
    with patch.dict(os.environ, {"BACKSTORY_CACHE": str(folder / "cache")}):
        names = _made(folder)
        for number in trials:
            held, kind = list(TRIALS)[number]
            copy, outside = folder / "copy", folder / "outside"
            shutil.copytree(folder / "run", copy)
            outside.mkdir()
            try:
                for problem in _trial(copy, outside, held.format(**names), kind, HELD[held]):
                    yield f"{kind} in the place of {held}: {problem}"
            finally:
                shutil.rmtree(copy)
                shutil.rmtree(outside)


def _made(folder: Path) -> dict[str, str]:
    """A run that has been read in every way, and the names in it that are not predictable."""
    config = tiny_config(tiny_corpus(folder / "corpus", lines=20))
    (folder / "settings.yaml").write_text(to_yaml(config))
    place = folder / "run"
    train(config, place, console=Console(file=io.StringIO()))
    for command in MADE:
        ended = call([part.format(run=place) for part in command], 120)
        assert ended.code == 0, ended
    return {
        "best": next((place / "checkpoints").glob("best-*")).name,
        "explained": next(place.glob("explain-*")).name,
        "examined": next(place.glob("examine-*")).name,
    }


def _trial(run: Path, outside: Path, held: str, kind: str, commands: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    KINDS[kind](run / held, outside / "there")
    before = _contents(outside)
    for command in commands:
        places = {"run": run, "page": run.parent / "page.html", "settings": run.parent / "settings.yaml"}
        with _memory():
            ended = call([part.format(**places) for part in command], SECONDS)
        shown = command == REPORT  # names what it leaves out, and reads no checkpoint
        problem = ended.problem((2,) if kind in FOLLOWED and not shown else (0, 2))
        if shown and kind in FOLLOWED and "not shown: " not in ended.err and held != "checkpoints":
            problem = problem or f"followed: {ended.err!r}"
        if problem or _contents(outside) != before:
            yield f"{command[:2]}: {problem or 'written outside'}"
        places["page"].unlink(missing_ok=True)


@contextlib.contextmanager
def _memory() -> Iterator[None]:
    """Limit the memory to this much above the present use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (GIBIBYTES << 30), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): b"" if p.is_dir() or p.is_symlink() else p.read_bytes()
        for p in sorted(folder.rglob("*"))
    }


# --- what is put in the place of a file or folder ---


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _instead(make: Callable[[Path], object]) -> Callable[[Path, Path], None]:
    def put(path: Path, _: Path) -> None:
        _remove(path)
        make(path)

    return put


def _socket(path: Path) -> None:
    """Bound by a short name, as long ones are not taken."""
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


def _huge(path: Path) -> None:
    """A file of a TiB that takes no space."""
    with open(path, "wb") as file:
        file.truncate(1 << 40)


def _moved(path: Path, there: Path) -> None:
    shutil.move(path, there)
    path.symlink_to(there)


def _nowhere(path: Path, there: Path) -> None:
    _remove(path)
    path.symlink_to(there)


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "a pipe": _instead(os.mkfifo),
    "a device": _instead(lambda path: path.symlink_to("/dev/zero")),
    "a socket": _instead(_socket),
    "a file of a TiB": _instead(_huge),
    "a folder": _instead(Path.mkdir),
    "a link in a circle": _instead(lambda path: path.symlink_to(path.name)),
    "a link to outside": _moved,
    "a link to nowhere": _nowhere,
}
FOLLOWED = ("a link to outside",)
"""Kinds of links that are always refused: there is something outside of the run to follow it to."""
TRIALS = [(held, kind) for kind in KINDS for held in HELD]
