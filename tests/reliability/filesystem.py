"""A training is killed, or the disk fails, at each of its file system calls."""

import random
import shutil
import signal
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults import KINDS
from kill import different
from processes import Call, Running, Zygote, zygote
from runs import outcome, tiny_corpus, with_training
from small_runs import recipes, write_recipe

from backstory.storage.checkpoint import newest_checkpoint

Point = tuple[str, int, str]
"""Scenario, number of the call, kind of the fault."""


def filesystem(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """A trial is one fault. Also yields a line if all trials are fewer than there are points to fail at."""
    with zygote(folder) as started:
        bench = Bench(started, folder)
        points = [(name, number, kind) for name in bench.scenarios for number, kind in bench.faults(name)]
        random.Random(0).shuffle(points)  # so that any part of the list covers all kinds
        print(f"  {len(points)} points at {sum(map(len, bench.calls.values()))} calls", flush=True)
        if len(trials) >= 500 and len(points) > len(trials):
            yield f"there are {len(points)} points to fail at, more than {len(trials)} trials"
        for number in trials:
            name, call, kind = points[number % len(points)]
            for problem in bench.trial(name, call, kind):
                yield f"{name}, {kind} at call {call}, {bench.calls[name][call]}: {problem}"


def size_limit(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """A trial is one limit in bytes on the size of files, enforced by the system."""
    with zygote(folder) as started:
        bench = Bench(started, folder)
        for number in trials:
            largest = random.Random(number).randrange(1_500, 16_000)
            for problem in bench.failed("resume", [("faults", "limit_size", {"largest": largest})]):
                yield f"files of {largest} bytes at most: {problem}"


@dataclass
class Scenario:
    """Run that a command finds, and the command."""

    before: Path | None
    """Copied to the run's folder."""
    flags: tuple[str, ...]


class Bench:
    """A run of two epochs, stopped in the second and resumed: saves, rotates, and finds better weights."""

    def __init__(self, started: Zygote, folder: Path) -> None:
        self.zygote, self.out = started, folder / "run"
        config = recipes(tiny_corpus(folder / "corpus"))["mixture, Adam"]
        config = with_training(config, epochs=2, batch_size=12, save_minutes=10.0)
        self.recipe, self.cache = write_recipe(config, folder / "recipe.yaml"), str(folder / "cache")
        finished, stopped = folder / "finished", folder / "stopped"
        self.end(self.start("--out", finished), 0)
        self.expected = outcome(finished)
        middle = 3 * self.expected["progress"]["step"] // 4
        self.end(self.start("--out", self.out, before=[("faults", "stop_at", {"step": middle})]), 143)
        shutil.copytree(self.out, stopped)
        self.scenarios = {
            "resume": Scenario(stopped, ("--resume",)),
            "new": Scenario(None, ()),
            "overwrite": Scenario(finished, ("--overwrite",)),
        }
        self.names = {p.name for f in (finished, stopped) for p in (f / "checkpoints").iterdir()}
        self.calls = {name: self.record(name, folder / "calls") for name in self.scenarios}

    def start(self, *arguments: object, before: list[Call] | None = None) -> Running:
        return self.zygote.start("train", self.recipe, *arguments, before=before or [], BACKSTORY_CACHE=self.cache)

    def end(self, running: Running, code: int) -> None:
        if running.wait() != code:
            raise RuntimeError(f"ended with {running.code}: {running.said()}")

    def prepare(self, name: str) -> tuple[Any, ...]:
        """Put the run's folder into place; the arguments of the command."""
        shutil.rmtree(self.out, ignore_errors=True)
        scenario = self.scenarios[name]
        if scenario.before is not None:
            shutil.copytree(scenario.before, self.out)
        return "--out", self.out, *scenario.flags

    def record(self, name: str, path: Path) -> list[str]:
        """The calls that the command makes; of what begins a run those before its first checkpoint."""
        options = {"folder": str(self.out), "number": -1, "kind": "", "record": str(path)}
        self.end(self.start(*self.prepare(name), before=[("faults", "arrange", options)]), 0)
        calls = path.read_text().splitlines()
        first = next(i for i, call in enumerate(calls) if call.startswith("save_file"))
        return calls if name == "resume" else calls[:first]

    def faults(self, name: str) -> Iterator[tuple[int, str]]:
        for number, call in enumerate(self.calls[name]):
            written = call.startswith(("file.write ", "save_file "))
            yield from ((number, kind) for kind in KINDS if written or not kind.startswith("short write"))

    def trial(self, name: str, number: int, kind: str) -> list[str]:
        options = {"folder": str(self.out), "number": number, "kind": kind}
        return self.failed(name, [("faults", "arrange", options)], kill="kill" in kind)

    def failed(self, name: str, before: list[Call], kill: bool = False) -> list[str]:
        """Run the command into the fault and continue as a person would. Return broken promises."""
        running = self.start(*self.prepare(name), before=before)
        code = running.wait()
        problems = [] if kill and code == -signal.SIGKILL else told(code, running.said())
        if name == "resume":
            problems += self.session_state()
        problems += [] if code == 0 else self.gone_on(name)
        problems += [f"{what} differs" for what in different(outcome(self.out), self.expected)] if not problems else []
        return problems + [f"{path.name} was left behind" for path in self.out.rglob(".*") if code]

    def session_state(self) -> list[str]:
        """The newest checkpoint of each kind is whole and one that there was or was to be."""
        problems = []
        for prefix in ("last", "best"):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    found = newest_checkpoint(self.out / "checkpoints", prefix)
                except UserWarning as warning:
                    problems.append(str(warning))
                    continue
            if found is None or found.path.name not in self.names:
                problems.append(f"the newest {prefix} is {found and found.path.name}")
        return problems

    def gone_on(self, name: str) -> list[str]:
        """Start once more."""
        flags = ("--resume",) if (self.out / "config.yaml").exists() else ()
        if name == "overwrite":
            flags = ("--overwrite",)
        running = self.start("--out", self.out, *flags)
        return [] if running.wait() == 0 else [f"going on ended with {running.code}: {running.said()[-300:]}"]


def told(code: int, said: str) -> list[str]:
    """Return faults in the message of a command that met a fault. It may succeed if the call was dispensable."""
    lines = [line for line in said.splitlines() if line.startswith("backstory: ") and "warning: " not in line]
    if code not in (0, 2) or len(lines) != (code == 2) or "Traceback" in said:
        return [f"ended with {code}: {said[-400:]}"]
    return []
