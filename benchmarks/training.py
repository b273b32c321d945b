"""Tokens per second and peak memory of a training step, against a plain reference step in the same run.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/training.py [--steps 10] [--sizes S P MoS]
    python benchmarks/training.py --device cuda [--precision float32]

Each contender is a process of its own (the allocator's settings belong to a process); they take turns step by step, so
that whatever else the machine does meets both alike. The table gives medians and their ratio; with --out it is also
written as JSON.
"""

import argparse
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from figures import write

if TYPE_CHECKING:
    from backstory.config import SecondSoftmaxConfig, SpanBufferConfig


@dataclass(frozen=True)
class Size:
    """A training step: recipe, vocabulary, and the row length and count."""

    recipe: str
    types: int
    batch: int
    segment: int


SIZES = {
    "S": Size("ptb-small", 10_000, 20, 35),
    "P": Size("ptb-awd-lstm", 10_000, 20, 70),
    "MoS": Size("ptb-mos", 10_000, 12, 70),
}


def ours(
    size: Size, on: str, precision: str, buffer: "SpanBufferConfig | SecondSoftmaxConfig | None" = None
) -> Callable[[], None]:
    """The step that `backstory train` takes, allocator settings included; with a second prediction if one is given."""
    import torch

    from backstory.config import recipes
    from backstory.models import build_model, choose_precision
    from backstory.models.allocator import keep_freed_memory
    from backstory.training.gradients import LOSS, Eager, Recorded
    from backstory.training.objectives import build_objective
    from backstory.training.optimizers import build_optimizer

    keep_freed_memory()
    config, device = recipes.load(size.recipe), torch.device(on)
    if buffer is not None:
        config = replace(config, model=replace(config.model, buffer=buffer))
    model = build_model(config.model, size.types).to(device).train()
    optimizer = build_optimizer(model.parameters(), config.training)
    state, parameters = model.start(size.batch), list(model.parameters())
    settings = config.training
    objective = build_objective(config, settings.adversarial)
    model.embedding.noise = settings.embedding_noise
    eager = Eager(model, parameters, objective, choose_precision(precision, device), settings.clip)
    gradient = Recorded(eager) if on == "cuda" else eager
    text = torch.randint(size.types, (size.batch, size.segment + 1), device=device)

    def step() -> None:
        nonlocal state
        figures, state = gradient(text, state)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3
        optimizer.step()
        figures[LOSS].item()  # as `backstory train` does, which looks at every loss

    return step


def reference(size: Size, on: str, precision: str) -> Callable[[], None]:
    """The plain step; float32 whatever `precision`."""
    import torch
    from reference import PlainModel, unfused_sgd
    from torch import nn

    from backstory.config import LSTMConfig, MixtureConfig, recipes

    model_config = recipes.load(size.recipe).model
    core, embedding, head = model_config.core, model_config.embedding, model_config.head
    assert isinstance(core, LSTMConfig)
    experts = head.experts if isinstance(head, MixtureConfig) else 0
    sizes = [embedding.size, *[core.hidden] * (core.layers - 1), core.output or embedding.size]
    drops = {
        "word": embedding.dropout,
        "input": core.input_dropout,
        "layer": core.layer_dropout,
        "output": core.output_dropout,
        "weight": core.weight_drop,
        "latent": head.latent_dropout if isinstance(head, MixtureConfig) else 0.0,
    }
    model = PlainModel(size.types, embedding.size, sizes, experts, drops).to(on)
    text = torch.randint(size.types, (size.segment + 1, size.batch), device=on)
    state = [tuple(torch.zeros(1, size.batch, h, device=on) for _ in "hc") for h in sizes[1:]]
    parameters = list(model.parameters())

    def step() -> None:
        nonlocal state
        model.zero_grad(set_to_none=True)
        loss, state = model(text[:-1], text[1:], state)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.25, foreach=False)
        unfused_sgd(parameters, 1e-3, 1.2e-6)
        loss.item()

    return step


def worker(make: Callable[..., Callable[[], None]], on: str, arguments: tuple, pipe: Connection) -> None:
    """Take a step whenever told to, and answer with its seconds and the peak memory (GiB, of the device) so far."""
    import torch

    step = make(*arguments)
    while pipe.recv():
        began = time.perf_counter()
        step()
        if on == "cuda":
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() / 2**30
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        pipe.send((time.perf_counter() - began, peak))


Contenders = dict[str, tuple[Callable[..., Callable[[], None]], tuple]]
"""By name, what makes a step and its arguments."""


def compare(contenders: Contenders, tokens: int, steps: int, on: str, warm_up: int = 2) -> dict[str, dict[str, float]]:
    """Median tokens per second and peak GiB of each contender's steps of so many tokens, taking turns."""
    return {
        name: {"tokens_per_second": tokens / statistics.median(times), "peak_gib": peak}
        for name, (times, peak) in timed(contenders, steps, on, warm_up).items()
    }


def timed(contenders: Contenders, steps: int, on: str, warm_up: int = 2) -> dict[str, tuple[list[float], float]]:
    """The seconds of each contender's steps, turn by turn, and its peak memory in GiB; each is a process of its own."""
    context = multiprocessing.get_context("spawn")
    pipes, times, peaks = {}, {name: [] for name in contenders}, {}
    processes = []
    for name, (make, arguments) in contenders.items():
        pipes[name], theirs = context.Pipe()
        processes.append(context.Process(target=worker, args=(make, on, arguments, theirs), daemon=True))
        processes[-1].start()
    for turn in range(warm_up + steps):
        for name, pipe in pipes.items():
            pipe.send(True)
            seconds, peaks[name] = pipe.recv()
            if turn >= warm_up:
                times[name].append(seconds)
    for pipe in pipes.values():
        pipe.send(False)
    for process in processes:
        process.join()
    return {name: (times[name], peaks[name]) for name in contenders}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    print(f"{'step':<5} {'reference':>12} {'backstory':>12} {'ratio':>7}   peak memory, GiB", flush=True)
    rows = {}
    for name in given.sizes:
        size, how = SIZES[name], (SIZES[name], given.device, given.precision)
        both: Contenders = {"reference": (reference, how), "backstory": (ours, how)}
        rows[name] = found = compare(both, size.batch * size.segment, given.steps, given.device)
        plain, fast = found["reference"], found["backstory"]
        found["ratio"] = ratio = fast["tokens_per_second"] / plain["tokens_per_second"]  # type: ignore[assignment]
        print(
            f"{name:<5} {plain['tokens_per_second']:>10,.0f}/s {fast['tokens_per_second']:>10,.0f}/s {ratio:>7.2f}"
            f"   {plain['peak_gib']:.2f} -> {fast['peak_gib']:.2f}",
            flush=True,
        )
    if given.out:
        write(given.out, "training", given.device, rows=rows)


if __name__ == "__main__":
    main()
