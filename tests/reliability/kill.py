"""A training that is repeatedly killed at random times and resumed ends like an undisturbed one."""

import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from phases import Phase
from processes import Running, Zygote, newest_step, zygote
from runs import outcome, tiny_corpus
from small_runs import recipes, write_recipe

from backstory.config import RunConfig


def kill(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """A trial is one kill. Also yields a line if many of them left an activity out that a process spends its time on."""
    landed: Counter[str] = Counter()
    with zygote(folder) as started:
        for index, (name, config) in enumerate(recipes(tiny_corpus(folder / "corpus")).items()):
            mine = trials[index::3]
            if mine:
                chain = Chain(started, config, folder / str(index), landed)
                yield from (f"{name}, {failure}" for failure in chain.run(mine))
    print("  killed during: " + ", ".join(f"{what} {count}" for what, count in landed.most_common()), flush=True)
    saving = landed["save"] + landed["rotation"] + landed["best"]
    if len(trials) >= 100 and min(saving, landed["start-up"], landed["step"] + landed["between steps"]) < 10:
        yield f"too few kills came while it started, trained or saved to say anything: {dict(landed)}"


class Chain:
    """Runs of one recipe, each killed and resumed until it is finished."""

    def __init__(
        self, started: Zygote, config: RunConfig, folder: Path, landed: Counter[str], begin: Sequence[object] = ()
    ) -> None:
        folder.mkdir()
        self.begin = begin
        self.zygote, self.folder, self.landed, self.phase = started, folder, landed, Phase(folder / "phase")
        self.recipe, self.out = write_recipe(config, folder / "recipe.yaml"), folder / "run"
        began, running = time.monotonic(), self.start()
        while self.phase.now() == "start-up" and not running.ended(0.001):
            pass
        self.start_up = time.monotonic() - began
        if running.wait() != 0:
            raise RuntimeError(f"the run that nothing happens to ended with {running.code}: {running.said()}")
        self.expected = outcome(self.out)

    def start(self) -> Running:
        """Start the run, or resume it, as a person would."""
        stands = (self.out / "config.yaml").exists()
        # One that was killed before its first save has nothing of the run that it begins with.
        again = stands and bool(self.begin) and not any((self.out / "checkpoints").glob("last-*"))
        self.resumed = stands and not again
        how = ["--resume"] if self.resumed else ["--overwrite", *self.begin] if again else self.begin
        # A cache of its own, so that the corpus is prepared by processes that may be killed over it.
        cache = {"BACKSTORY_CACHE": str(self.folder / "cache")}
        return self.zygote.start("train", self.recipe, "--out", self.out, *how, before=[self.phase.call()], **cache)

    def begin_again(self) -> None:
        for place in (self.out, self.folder / "cache"):
            shutil.rmtree(place, ignore_errors=True)

    def run(self, trials: Sequence[int]) -> Iterator[str]:
        self.begin_again()
        for number in trials:
            chosen = random.Random(number)
            steps = 0 if chosen.random() < 0.2 else chosen.randint(1, 12)
            delay = chosen.random() * (0.1 if steps else self.start_up)
            while (running := self.killed_after(steps, delay)) is not None:
                yield from (f"kill {number}: {problem}" for problem in self.finished(running))
                self.begin_again()
                steps, delay = steps // 2, delay / 2  # the machine may be faster now than when it was measured
            self.landed[self.phase.now()] += 1
        running = self.start()
        running.wait()
        yield from (f"after kill {trials[-1]}: {problem}" for problem in self.finished(running))

    def killed_after(self, steps: int, seconds: float) -> Running | None:
        """Start, kill so many seconds after so many steps were saved; what was started, if it ended by itself before."""
        checkpoints = self.out / "checkpoints"
        begun_at, running = newest_step(checkpoints), self.start()
        if steps:
            running.reach(checkpoints, begun_at + steps)
        if running.ended(seconds):
            return running
        running.send(signal.SIGKILL)
        return None if running.wait() == -signal.SIGKILL else running

    def finished(self, running: Running) -> list[str]:
        """Return what is wrong with a run whose last process ended by itself."""
        said = running.said()
        if running.code != 0:
            return [f"ended with {running.code}: {said[-300:]}"]
        problems = [f"{what} differs" for what in different(outcome(self.out), self.expected)]
        problems += [f"{path.name} was left behind" for path in self.out.rglob(".*")]
        problems += [line for line in said.splitlines() if "warning" in line]
        told = re.findall(
            rf"^(?:resuming {re.escape(str(self.out))} |{re.escape(str(self.out))} is finished).*", said, re.M
        )
        if len(told) != self.resumed:
            problems.append(f"it did not say in one line where it goes on: {said[:300]}")
        return problems


def different(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Return the parts of an outcome that differ from the expected ones."""
    return sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
