"""Non-finite numbers in loss, gradient, weights and validation, and from a learning rate that is too high."""

import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from processes import zygote
from runs import events, tiny_corpus
from small_runs import SAVE_OFTEN, recipes, write_recipe

from backstory.storage.checkpoint import newest_checkpoint

PLACES = ("loss", "gradient", "weights", "validation", "absurd rate", "absurd rate later")
"""Of what breaks down; the last two by a real rate of learning, from the first step on and on resuming."""
RATE = ("--training.learning-rate", "0.001", "--accept", "config")


def nonfinite(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """A trial is a place and a value, at a random step of a run that saves after every step or after every epoch."""
    base = recipes(tiny_corpus(folder / "corpus"))["mixture, Adam"]
    recipe = write_recipe(base, folder / "recipe.yaml")
    with zygote(folder) as started:
        for number in trials:
            chosen = random.Random(number)
            place, value = PLACES[number % 6], ("nan", "inf")[number // 6 % 2]
            often = SAVE_OFTEN if number % 4 < 2 else 10.0
            step = chosen.randrange(15, 20)
            out, arguments = folder / str(number), ["train", recipe, "--out", folder / str(number)]
            arguments += ["--training.save-minutes", often, "--training.epochs", 2]
            told = f"{place}, {value}, step {step}, a save every {often} minutes"

            if place.startswith("absurd"):
                first = ["--training.learning-rate", "1e38"]
                if place == "absurd rate later":
                    stopped = started.start(*arguments, before=[("faults", "stop_at", {"step": step})])
                    if stopped.wait() != 143:
                        yield f"{told}: stopping ended with {stopped.code}: {stopped.said()[-300:]}"
                    first += ["--resume", "--accept", "config"]
                running = started.start(*arguments, *first)
            else:
                hook = ("nonfinite", "break_down", {"place": place, "value": value, "step": step})
                running = started.start(*arguments, before=[hook])
            yield from (f"{told}: {problem}" for problem in stopped_well(running.wait(), running.said(), out))

            flags = (
                [*RATE, "--resume"]
                if "--resume" in running.said()
                else ["--training.learning-rate", "0.001", "--overwrite"]
            )
            running = started.start(*arguments, *flags)
            if running.wait() != 0 or not all(math.isfinite(e["valid_nats"]) for e in events(out, "epoch")):
                yield f"{told}: going on ended with {running.code}: {running.said()[-400:]}"


def stopped_well(code: int, said: str, out: Path) -> Iterator[str]:
    lines = [line for line in said.splitlines() if line.startswith("backstory: ")]
    if code != 3 or len(lines) != 1 or "Traceback" in said:
        yield f"ended with {code}: {said[-400:]}"
    for prefix in ("last", "best"):
        found = newest_checkpoint(out / "checkpoints", prefix)
        if found and not all(t.isfinite().all() for t in found.tensors["weights"].values()):
            yield f"{found.path.name} holds weights that are not finite"
    if (out / "checkpoints").exists() and "--resume" in said and not newest_checkpoint(out / "checkpoints", "last"):
        yield "there is nothing to resume from"


def break_down(place: str, value: str, step: int) -> None:
    """Make something non-finite at that step of this process's training, after which no update may follow."""
    from backstory.training import loop, validation_reading

    number = float(value)
    original, updates = loop.Trainer._step, [0]

    def stepped(trainer: Any, *arguments: Any) -> Any:
        updates[0] += 1
        if updates[0] == step and place == "gradient":
            trainer.parameters[-1].register_hook(lambda gradient: gradient * number)
        if updates[0] == step and place == "loss":
            inner = trainer.gradient.objective
            trainer.gradient.objective = lambda *given: ((found := inner(*given))[0] * number, found[1])
        result = original(trainer, *arguments)
        if updates[0] >= step and place in ("gradient", "loss"):
            raise AssertionError("the update was made")
        if updates[0] == step and place == "weights":
            with torch.no_grad():
                trainer.parameters[0][0, 0] = number
        return result

    loop.Trainer._step = stepped  # type: ignore[method-assign]
    if place == "validation":
        reading = validation_reading.StreamReading

        def broken(reader: Any, *arguments: Any, **options: Any) -> Any:
            if updates[0] >= step:
                with torch.no_grad():
                    reader.model.head.bias.fill_(number)
            return reading(reader, *arguments, **options)

        validation_reading.StreamReading = broken  # type: ignore[assignment,misc]
