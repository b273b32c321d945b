"""SIGTERM, SIGINT and SIGHUP at random points of a training, and while it saves: whole checkpoints, correct codes."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from kill import different
from phases import Phase
from processes import Running, Zygote, zygote
from runs import outcome, tiny_corpus, with_training
from small_runs import recipes, write_recipe

from backstory.storage.checkpoint import newest_checkpoint

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
KINDS = ("training", "again while saving", "start-up", "training", "again while saving", "interpreter")
"""Where the signals of a trial go; `interpreter` is a process that is not forked, from its first line on."""


def signals(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """A trial is one stop, of one signal or of two, and the resumed run."""
    config = recipes(tiny_corpus(folder / "corpus"))["averaged and fine-tuned"]
    # Saved at every fourth step or so, so that there is a save to wait for and a step to be interrupted.
    recipe = write_recipe(with_training(config, save_minutes=5e-4), folder / "recipe.yaml")
    with zygote(folder) as started:
        trial = Trial(started, recipe, folder)
        for number in trials:
            kind = KINDS[number % 6]
            yield from (f"{kind} {number}: {problem}" for problem in trial.run(kind, random.Random(number)))
    print("  " + ", ".join(f"{what}: {count}" for what, count in trial.landed.items()), flush=True)


class Trial:
    """Stops of one recipe."""

    def __init__(self, started: Zygote, recipe: Path, folder: Path) -> None:
        self.zygote, self.recipe, self.out = started, recipe, folder / "run"
        self.phase, self.landed, self.folder = Phase(folder / "phase"), Counter[str](), folder
        began, running = time.monotonic(), self.start()
        while self.phase.now() == "start-up" and not running.ended(0.001):
            pass
        self.start_up = time.monotonic() - began
        if running.wait() != 0:
            raise RuntimeError(running.said())
        self.expected = outcome(self.out)
        self.steps = self.expected["progress"]["step"]

    def command(self) -> list[str]:
        resume = ["--resume"] if (self.out / "config.yaml").exists() else []
        return ["train", str(self.recipe), "--out", str(self.out), *resume]

    def start(self) -> Running:
        return self.zygote.start(*self.command(), before=[self.phase.call()])

    def run(self, kind: str, chosen: random.Random) -> Iterator[str]:
        shutil.rmtree(self.out, ignore_errors=True)
        first, second, where = chosen.choice(NUMBERS), chosen.choice(NUMBERS), chosen.random()
        if kind == "interpreter":
            code, said = self.from_its_first_line(first, where)
        else:
            running = self.start()
            if kind == "start-up":
                running.ended(self.start_up * where)
            else:
                running.reach(self.out / "checkpoints", chosen.randrange(self.steps - 15))
                running.ended(0.05 * where)
            running.send(first)
            if kind == "again while saving":
                while (now := self.phase.now()) not in ("save", "rotation") and not running.ended(0.0):
                    pass
                running.send(second)
                self.landed[f"second signal during {now}"] += 1
            code, said = running.wait(), running.said()
        yield from self.stopped(code, said, {first, second} if kind == "again while saving" else {first})
        yield from self.gone_on()

    def from_its_first_line(self, number: signal.Signals, where: float) -> tuple[int, str]:
        """A process of its own, from the start of the interpreter: its exit code, as a shell has it, and what it said."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        # A command in the background of a script would ignore SIGINT, and what it starts with it.
        process = subprocess.Popen(
            [sys.executable, "-m", "backstory", *self.command()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        time.sleep(0.15 + 6.0 * where)
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
        # A shell has the same number for a process that a signal ended. Python ends itself so where it met the interrupt inside
        # another module's first lines, though it was caught.
        return (128 - process.returncode if process.returncode < 0 else process.returncode), said

    def stopped(self, code: int, said: str, sent: set[signal.Signals]) -> Iterator[str]:
        """Return what is wrong with how it stopped; of two signals that wait to be handled, either may be the first."""
        told = [line for line in said.splitlines() if re.match("backstory: (?!training )", line)]
        if code == 0 and (self.out / "result.json").exists():
            self.landed["finished before"] += 1
        elif code - 128 in sent and len(told) == 1 and "Traceback" not in said:
            saved = "is stopped and saved" in told[0]
            self.landed["stopped and saved" if saved else "interrupted before it trained"] += 1
            if saved != ("stopping after this step" in said):
                yield f"it did not say that it heard: {said[-300:]}"
            if saved and newest_checkpoint(self.out / "checkpoints", "last") is None:
                yield "it said that it saved, and there is no checkpoint"
        elif code - 128 in sent and not told and not re.search(r'cli/main.py", line \d+, in (?!<module>)', said):
            self.landed["ended while Python was loading"] += 1
        else:
            yield f"ended with {code} after {sent}: {said[-600:]}"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                newest_checkpoint(self.out / "checkpoints", "last")
            except UserWarning as warning:
                yield str(warning)

    def gone_on(self) -> Iterator[str]:
        running = self.start()
        if running.wait() != 0:
            yield f"going on ended with {running.code}: {running.said()[-300:]}"
            return
        yield from (f"{what} differs" for what in different(outcome(self.out), self.expected))
