"""An evaluation that is killed at random times and restarted gives the figures of an undisturbed one."""

import io
import json
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from processes import Running, Zygote, zygote
from rich.console import Console
from runs import contents, sentences, tiny_config, tiny_corpus

from backstory.training import train

READERS = {
    "static": (10_000, ["--reader", "static"]),
    "adaptive": (2_000, ["--reader", "dynamic:rule=sgd,rate=0.1", "--reader", "cache:theta=0.1"]),
}
"""Approximate number of words in the text, and its reader."""


def killed_readings(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """A trial is one kill. Every fourth start begins anew, the others go on from what was saved."""
    run, landed = folder / "run", Counter[str]()
    train(tiny_config(tiny_corpus(folder / "corpus")), run, console=Console(file=io.StringIO()))
    with zygote(folder) as started:
        for index, (name, (words, flags)) in enumerate(READERS.items()):
            mine = trials[index :: len(READERS)]
            if mine:
                place = folder / name
                place.mkdir()
                (place / "text.txt").write_text(sentences(words // 10, 7), encoding="utf-8")
                yield from (f"{name}, {failure}" for failure in Chain(started, run, place, flags, landed).run(mine))
    print("  killed: " + ", ".join(f"{what} {count}" for what, count in landed.most_common()), flush=True)
    if len(trials) >= 20 and landed["with something saved"] < 5:
        yield f"too few kills came while something was saved to say anything: {dict(landed)}"


class Chain:
    """Evaluations of one text by one reader, each killed and started again until it ends."""

    def __init__(self, started: Zygote, run: Path, folder: Path, flags: list[str], landed: Counter[str]) -> None:
        self.zygote, self.source, self.out, self.landed = started, run, folder / "out", landed
        self.command = ["evaluate", run, folder / "text.txt", *flags, "--out", self.out, "--save-every", "0.02"]
        # The figures of two evaluations, the audit's too, are compared.
        self.command += ["--audit-places", "2", "--audit-seed", "1"]
        self.hashes = contents(run)
        began, running = time.monotonic(), self.start(resume=False)
        if running.wait() != 0:
            raise RuntimeError(f"the reading that nothing happens to ended with {running.code}: {running.said()}")
        self.seconds, self.expected = time.monotonic() - began, self.figures()
        shutil.rmtree(self.out)

    def start(self, resume: bool) -> Running:
        return self.zygote.start(*self.command, *(["--resume"] if resume else []))

    def figures(self) -> dict[str, Any]:
        return json.loads((self.out / "result.json").read_text(encoding="utf-8"))["figures"]

    def run(self, trials: Sequence[int]) -> Iterator[str]:
        for number in trials:
            delay = random.Random(number).random() * self.seconds
            while (running := self.killed_after(delay, resume=number % 8 < 6)) is not None:
                yield from (f"kill {number}: {problem}" for problem in self.finished(running))
                shutil.rmtree(self.out)
                delay /= 2
            saved = any(self.out.glob("reading-*"))
            self.landed["with something saved" if saved else "before anything was saved"] += 1
        running = self.start(resume=True)
        running.wait()
        yield from (f"after kill {trials[-1]}: {problem}" for problem in self.finished(running))

    def killed_after(self, seconds: float, resume: bool) -> Running | None:
        """Start, and kill after so many seconds; what was started, if it ended by itself before."""
        running = self.start(resume)
        if running.ended(seconds):
            return running
        running.send(signal.SIGKILL)
        return None if running.wait() == -signal.SIGKILL else running

    def finished(self, running: Running) -> Iterator[str]:
        """Return what is wrong with a reading whose last process ended by itself."""
        if running.code != 0:
            yield f"ended with {running.code}: {running.said()[-300:]}"
            return
        found = self.figures()
        yield from (f"{key} differs" for key in self.expected if found.get(key) != self.expected[key])
        yield from (f"{path.name} was left behind" for path in self.out.iterdir() if path.name != "result.json")
        if contents(self.source) != self.hashes:
            yield "the run that was read is changed"
