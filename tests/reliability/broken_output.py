"""Standard output and error that cannot be written from the first line on: the work is done and its result saved."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from processes import zygote
from runs import outcome, tiny_config, tiny_corpus
from small_runs import write_recipe

BROKEN = list(product(("train", "evaluate", "generate"), ([1], [2], [1, 2]), ("full", "unread", "closed")))
"""Commands, broken streams, and kind of break."""


def broken_output(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """A trial is one command with one break; the bounded part is spread over all."""
    recipe = write_recipe(tiny_config(tiny_corpus(folder / "corpus")), folder / "recipe.yaml")
    run, out = folder / "run", folder / "out"
    commands = {
        "train": ["train", recipe, "--out", out],
        "evaluate": ["evaluate", run, "--audit-seed", "1", "--out", out],
        "generate": ["generate", out, "--tokens", "20", "--save"],
    }
    with zygote(folder) as started:
        if (code := started.start("train", recipe, "--out", run).wait()) != 0:
            yield f"the run that nothing happens to ended with {code}"
            return
        expected: dict[str, Any] = {}
        for number in [*range(-3, 0), *(trial * len(BROKEN) // len(trials) for trial in trials)]:
            verb, streams, how = BROKEN[number % len(BROKEN)] if number >= 0 else (list(commands)[number], [], "")
            shutil.rmtree(out, ignore_errors=True)
            if verb == "generate":
                shutil.copytree(run, out)
            before = [("broken_output", "break_streams", {"streams": streams, "how": how})]
            running = started.start(*commands[verb], before=before)
            code, said = running.wait(), running.said()
            if number < 0:
                expected[verb] = found(verb, out)
                continue
            what = f"{verb} with {how} {streams}"
            if code != (2 if how == "full" and 1 in streams else 0):
                yield f"{what} ended with {code}: {said[-300:]}"
            if "Traceback" in said or "Exception ignored" in said:
                yield f"{what} said {said[-300:]}"
            if found(verb, out) != expected[verb]:
                yield f"{what} has another result"


def found(verb: str, out: Path) -> Any:
    """Return the part of a result that is compared."""
    if verb == "train":
        return outcome(out)
    result = out / ("sample/result.json" if verb == "generate" else "result.json")
    return json.loads(result.read_text(encoding="utf-8"))["figures"]


def break_streams(streams: list[int], how: str) -> None:
    """Break streams of this process as if a shell had started it so."""
    for number in streams:
        if how == "closed":
            os.close(number)
            setattr(sys, {1: "stdout", 2: "stderr"}[number], None)
            continue
        if how == "full":
            there = os.open("/dev/full", os.O_WRONLY)
        else:
            ours, there = os.pipe()
            os.close(ours)
        os.dup2(there, number)
        os.close(there)
