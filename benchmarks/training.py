"""Tokens per second and peak memory of a training step and of a plain reference step, in the same run.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/training.py [--steps 10] [--sizes S P MoS]
    python benchmarks/training.py --device cuda [--precisions float32]

Both steps are taken in float32 and in bfloat16 (the plain one under autocast). Each has a process of its own, because
allocator settings are per process. They take turns step by step, so that other load on the machine affects all equally.
The table gives medians and the ratios of ours to the plain step: float32 to float32, bfloat16 to bfloat16, and bfloat16
to float32, which is the gain of `backstory train` over the usual plain step. With --out it is also written as JSON.
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
    from torch import nn

    from backstory.config import AuxiliarySoftmaxConfig, SpanBufferConfig


@dataclass(frozen=True)
class Size:
    """A training step: recipe, vocabulary, and the row length and count."""

    recipe: str
    types: int
    batch: int
    segment: int


PRECISIONS = ("float32", "bfloat16")

SIZES = {
    "S": Size("ptb-small", 10_000, 20, 35),
    "P": Size("ptb-awd-lstm", 10_000, 20, 70),
    "MoS": Size("ptb-mos", 10_000, 12, 70),
}


def ours(
    size: Size,
    on: str,
    precision: str,
    buffer: "SpanBufferConfig | AuxiliarySoftmaxConfig | None" = None,
    parallel: "Callable[[nn.Module], nn.Module] | None" = None,
) -> Callable[[], None]:
    """The step of `backstory train`, including its allocator settings; optionally with an auxiliary prediction.

    `parallel` wraps the model of one of several ranks, so that gradients are averaged.
    """
    import torch

    from backstory.config import recipes
    from backstory.models import build_model, choose_precision
    from backstory.models.devices import keep_freed_memory
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
    objective = build_objective(config, config.model.head.adversarial)
    model.embedding.noise = config.model.embedding.noise
    called = model if parallel is None else parallel(model)
    eager = Eager(called, parameters, objective, choose_precision(precision, device), settings.clip)
    gradient = Recorded(eager) if on == "cuda" else eager
    text = torch.randint(size.types, (size.batch, size.segment + 1), device=device)

    def step() -> None:
        nonlocal state
        figures, state = gradient(text, state)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3
        optimizer.step()
        figures[LOSS].item()  # as `backstory train` does, which reads every loss

    return step


def reference(size: Size, on: str, precision: str) -> Callable[[], None]:
    """The plain step; in bfloat16 under autocast."""
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
        with torch.autocast(on, torch.bfloat16, enabled=precision == "bfloat16"):
            loss, state = model(text[:-1], text[1:], state)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.25, foreach=False)
        unfused_sgd(parameters, 1e-3, 1.2e-6)
        loss.item()

    return step


def ratios(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """Ratios of ours to the plain step by the precisions of both, as `float32 : float32`, as far as measured."""
    speeds = {name: figures["tokens_per_second"] for name, figures in found.items()}
    return {
        f"{mine} : {other}": speeds[f"backstory, {mine}"] / speeds[f"plain, {other}"]
        for mine, other in (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"))
        if {f"backstory, {mine}", f"plain, {other}"} <= speeds.keys()
    }


def worker(make: Callable[..., Callable[[], None]], on: str, arguments: tuple, pipe: Connection) -> None:
    """Take a step on request, and reply with its seconds and the device's peak memory (GiB) so far.

    With one thread on the CPU, seconds are processor time, without waiting.
    """
    import torch

    step = make(*arguments)
    clock = time.process_time if on == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    while pipe.recv():
        began = clock()
        step()
        if on == "cuda":
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() / 2**30
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        pipe.send((clock() - began, peak))


Contenders = dict[str, tuple[Callable[..., Callable[[], None]], tuple]]
"""Constructors of steps with their arguments, by name."""


def compare(contenders: Contenders, tokens: int, steps: int, on: str, warm_up: int = 2) -> dict[str, dict[str, float]]:
    """Median tokens per second and peak GiB of each contender's steps of this many tokens, taking turns."""
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
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = {}
    for name in given.sizes:
        size = SIZES[name]
        steps: Contenders = {
            f"{kind}, {precision}": (make, (size, given.device, precision))
            for kind, make in (("plain", reference), ("backstory", ours))
            for precision in given.precisions
        }
        found = compare(steps, size.batch * size.segment, given.steps, given.device)
        rows[name] = {"steps": found, "ratios": ratios(found)}
        for step, figures in found.items():
            print(f"{name:<4} {step:<20} {figures['tokens_per_second']:>10,.0f}/s {figures['peak_gib']:>7.2f} GiB")
        print(*(f"{name:<4} {pair}: {ratio:.2f}" for pair, ratio in rows[name]["ratios"].items()), sep="\n", flush=True)
    if given.out:
        write(given.out, "training", given.device, rows=rows)


if __name__ == "__main__":
    main()
