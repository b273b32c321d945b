"""A session that is killed at random times and resumed after the lines it had read equals an undisturbed one."""

import io
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from killed_readings import READERS
from processes import Running, Zygote, zygote
from rich.console import Console
from runs import sentences, tiny_config, tiny_corpus

from backstory.readers.saved_reading import load_reading
from backstory.training import train


def killed_sessions(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """A trial is one kill."""
    run, landed = folder / "run", Counter[str]()
    train(tiny_config(tiny_corpus(folder / "corpus")), run, console=Console(file=io.StringIO()))
    with zygote(folder) as started:
        for index, (name, (words, flags)) in enumerate(READERS.items()):
            mine = trials[index :: len(READERS)]
            words //= 4
            if mine:
                place = folder / name
                place.mkdir()
                chain = Chain(started, run, place, sentences(words // 10, 7), flags, landed)
                yield from (f"{name}, {failure}" for failure in chain.run(mine))
    print("  killed: " + ", ".join(f"{what} {count}" for what, count in landed.most_common()), flush=True)
    if len(trials) >= 20 and landed["saved within a line"] < 3:
        yield f"too few kills came when the session was saved within a line to say anything: {dict(landed)}"


def type_in(path: str) -> None:
    """Make a file the standard input of this process."""
    os.dup2(os.open(path, os.O_RDONLY), 0)


class Chain:
    """Sessions over one text by one reader, each killed and gone on with until the text has ended."""

    def __init__(
        self, started: Zygote, run: Path, place: Path, text: str, flags: list[str], landed: Counter[str]
    ) -> None:
        self.zygote, self.session, self.typed, self.landed = started, place / "session", place / "typed", landed
        self.lines, self.command = text.splitlines(keepends=True), ["read", run, "--session", self.session]
        self.flags = [*flags, "--save-every", "0.03"]
        began, running = time.monotonic(), self.start()
        if running.wait() != 0:
            raise RuntimeError(f"the session that nothing happens to ended with {running.code}: {running.said()}")
        self.seconds, self.expected = time.monotonic() - began, self.at()
        shutil.rmtree(self.session)

    def at(self) -> dict[str, Any]:
        saved = load_reading(self.session) if self.session.exists() else None
        return {"lines": 0} if saved is None else saved.progress

    def start(self) -> Running:
        at = self.at()
        self.typed.write_text("".join(self.lines[at["lines"] :]), encoding="utf-8")
        flags = [*self.flags, *(["--resume"] if "tokens" in at else [])]
        return self.zygote.start(
            *self.command, *flags, before=[("killed_sessions", "type_in", {"path": str(self.typed)})]
        )

    def run(self, trials: Sequence[int]) -> Iterator[str]:
        for number in trials:
            delay = random.Random(number).random() * self.seconds
            while True:
                running = self.start()
                if not running.ended(delay):
                    running.send(signal.SIGKILL)
                    if running.wait() == -signal.SIGKILL:
                        break
                yield from (f"kill {number}: {problem}" for problem in self.finished(running))
                shutil.rmtree(self.session, ignore_errors=True)
                delay /= 2
            at = self.at()
            kind = "before anything was saved" if "tokens" not in at else "saved after a line"
            self.landed["saved within a line" if at.get("begun_ids") else kind] += 1
        running = self.start()
        running.wait()
        yield from (f"after kill {trials[-1]}: {problem}" for problem in self.finished(running))

    def finished(self, running: Running) -> Iterator[str]:
        if running.code != 0:
            yield f"ended with {running.code}: {running.said()[-300:]}"
            return
        found = self.at()
        yield from (
            f"{key}: {found.get(key)}, not {value}" for key, value in self.expected.items() if found.get(key) != value
        )
