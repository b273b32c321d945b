"""Refused resumes: one line, exit code 2, nothing changed; allowed differences must be accepted by name."""

import contextlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from unittest.mock import patch

from calling import call, listing
from stopped_runs import newest, sign, stopped_run

from backstory.storage.lock import locked
from backstory.utils.errors import UserError

FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Refusal:
    """A difference between a resume and its run, and the expected message."""

    says: str
    """A part of the line."""
    change: Callable[[Path, Path], object] = lambda run, corpus: None
    """Done to the run and the corpus."""
    flags: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    """Names that must be accepted for it to go on; without any it never does."""
    vain: tuple[str, ...] = ("config", "corpus", "metrics")
    """Names of which none is enough by itself."""
    held: bool = False
    """True if another process trains in the folder."""


def run(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """Each trial makes one such difference."""
    with patch.dict(os.environ, {"BACKSTORY_CACHE": str(folder / "cache")}):
        original, settings = stopped_run("averaged", folder)
        for number in trials:
            name = list(REFUSALS)[number]
            shutil.copytree(folder / "corpus", folder / "kept")
            shutil.copytree(original, folder / "run")
            try:
                problem = _trial(REFUSALS[name], folder / "run", settings, folder / "corpus")
            finally:
                shutil.rmtree(folder / "run", ignore_errors=True)
                shutil.rmtree(folder / "corpus")
                (folder / "kept").rename(folder / "corpus")
            if problem:
                yield f"refusal {name}: {problem}"


def _trial(refusal: Refusal, run: Path, settings: Path, corpus: Path) -> str:
    refusal.change(run, corpus)
    line = ["train", str(settings), "--resume", "--out", str(run), *refusal.flags]
    vain = [name for name in refusal.vain if name not in refusal.accept]
    with _training(run) if refusal.held else contextlib.nullcontext():
        for accepted in ([], *([name] for name in vain)):
            before = listing(run)
            ended = call([*line, *(["--accept", *accepted] if accepted else [])])
            if ended.code != 2 or ended.err.count("\n") != 1 or refusal.says not in ended.err:
                return f"--accept {accepted}: exit code {ended.code}: {ended.err[-300:]!r} {ended.raised}"
            if listing(run) != before:
                return f"--accept {accepted}: the run was changed"
    if refusal.accept:
        ended = call([*line, "--accept", *refusal.accept])
        if ended.code != 0:
            return f"--accept {refusal.accept} does not go on: {ended.err[-300:]!r} {ended.raised}"
    return ""


@contextlib.contextmanager
def _training(folder: Path) -> Iterator[None]:
    """Another process holds the folder for the block."""
    ready, done = FORK.Event(), FORK.Event()
    process = FORK.Process(target=_hold, args=(folder, ready, done))
    process.start()
    try:
        if not ready.wait(30):
            raise UserError("the other process has not begun")
        yield
    finally:
        done.set()
        process.join()


def _hold(folder: Path, ready: Event, done: Event) -> None:
    with locked(folder, "training", "--out"):
        ready.set()
        done.wait(60)


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _other_text(run: Path, corpus: Path) -> None:
    """The same words and as many of them, in another order."""
    lines = (corpus / "train.txt").read_text().splitlines(keepends=True)
    (corpus / "train.txt").write_text("".join(reversed(lines)))


def _other_words(run: Path, corpus: Path) -> None:
    with open(corpus / "train.txt", "a") as file:
        file.write("words that were never there\n")


def _other_schema(run: Path, corpus: Path) -> None:
    for checkpoint in (run / "checkpoints").glob("last-*"):
        _edit(checkpoint / "manifest.json", '"schema": 1', '"schema": 2')


def _other_version(run: Path, corpus: Path) -> None:
    path = newest(run, "last") / "progress.json"
    data = json.loads(path.read_bytes())
    data["progress"]["mood"] = 1
    path.write_text(json.dumps(data))
    sign(path.parent)


def _shorter(run: Path, corpus: Path) -> None:
    raw = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(raw[:-1])


def _another_log(run: Path, corpus: Path) -> None:
    raw = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(raw.replace(b'"event": "epoch"', b'"event": "other"'))


def _linked_log(run: Path, corpus: Path) -> None:
    shutil.move(run / "metrics.jsonl", run.parent / "elsewhere.jsonl")
    (run / "metrics.jsonl").symlink_to(run.parent / "elsewhere.jsonl")


def _damaged(run: Path, corpus: Path) -> None:
    for path in (run / "checkpoints").glob("last-*/weights.safetensors"):
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1
        path.write_bytes(raw)


def _no_run(run: Path, corpus: Path) -> None:
    (run / "config.yaml").rename(run / "notes.yaml")


REFUSALS = {
    "another corpus": Refusal("text.corpus", flags=("--corpus", "stdlib"), vain=("corpus", "metrics")),
    "other text in the same place": Refusal("trained on other text", _other_text, accept=("corpus",)),
    "other words in the same place": Refusal("trained on other text", _other_words, vain=("config",)),
    "other words, accepted": Refusal("does not fit", _other_words, flags=("--accept", "corpus"), vain=()),
    "another learning rate": Refusal(
        "--training.learning-rate", flags=("--training.learning-rate", "1"), accept=("config",)
    ),
    "another model": Refusal("model.core.hidden", flags=("--model.core.hidden", "11"), vain=("corpus",)),
    "another model, accepted": Refusal(
        "does not fit", flags=("--model.core.hidden", "11", "--accept", "config"), vain=()
    ),
    "another vocabulary": Refusal("--text.minimum-count", flags=("--text.minimum-count", "9"), vain=("corpus",)),
    "settings edited in the run": Refusal(
        "config.yaml is not what",
        lambda run, corpus: _edit(run / "config.yaml", "clip: 1.0", "clip: 2.0"),
        flags=("--training.clip", "2"),
        accept=("config",),
    ),
    "another schema": Refusal("schema this version does not read", _other_schema),
    "progress of another version": Refusal("saved by another version", _other_version),
    "a missing log": Refusal(
        "metrics.jsonl is missing", lambda run, corpus: (run / "metrics.jsonl").unlink(), accept=("metrics",)
    ),
    "a shorter log": Refusal("metrics.jsonl is shorter", _shorter, accept=("metrics",)),
    "another log": Refusal("metrics.jsonl does not record the 1 epochs", _another_log, accept=("metrics",)),
    "a log that is a link": Refusal("metrics.jsonl is a link", _linked_log),
    "no checkpoint that verifies": Refusal("weights.safetensors does not have the SHA-256", _damaged),
    "no run": Refusal("holds no run to resume", _no_run),
    "no folder": Refusal("holds no run to resume", lambda run, corpus: shutil.rmtree(run)),
    "a folder in use": Refusal("another training is running", held=True),
}
"""Differences by what they are."""
