"""Speed of training and reading a recipe on random text on this machine, and of a step's matrix products alone."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backstory.config import RunConfig
from backstory.evaluation.reading_loop import StreamReading
from backstory.models import ComposedModel, Precision, build_model, choose_device, choose_precision, count_parameters
from backstory.models.devices import keep_freed_memory, restored_threads
from backstory.models.thread_timing import median_seconds, on_threads
from backstory.readers import StaticReader
from backstory.storage.provenance import commit, processor, versions
from backstory.training.gradients import LOSS, Eager, build_gradient
from backstory.training.matrix_products import fastest_run, step_products
from backstory.training.objectives import build_objective
from backstory.training.optimizers import build_optimizer, parameter_groups
from backstory.utils.process import cpu_cores
from backstory.utils.terminal import ProgressCallback

READING_SECONDS = 2.0
"""Seconds for which a model reads."""
STAGES = 3
"""Measurements of a recipe: training, products, evaluation."""


@dataclass(frozen=True)
class RecipeSpeed:
    """Speed of one recipe, in tokens per second."""

    recipe: str
    parameters: int
    training: dict[int, float]
    """Training steps, by number of threads; of a GPU one number."""
    products: float | None
    """Steps of nothing but the matrix products of a training step, on one thread and in the processor's own time, which other
    programs do not count in; on a GPU in time that passes. None for a model whose products are not listed."""
    share: float | None
    """The speed of training as a share of that, both measured in the same way."""
    evaluation: float
    """Reading of one row, as `backstory evaluate` does it, on the fastest number of threads of training."""
    peak_gib: float | None
    """Highest memory of the process up to the end of this recipe, or of the GPU, in GiB; None where it is unknown."""

    @property
    def scaling(self) -> float | None:
        """Speed with the most threads, as a multiple of that with one; None where only one was tried."""
        return self.training[max(self.training)] / self.training[1] if len(self.training) > 1 else None


@dataclass(frozen=True)
class MachineSpeed:
    """Speed of several recipes, and the machine that they were measured on."""

    device: str
    cores: int
    load: float | None
    """Programs that wanted a core in the last minute, before the measurement; None where the system does not know."""
    precision: str
    precision_reason: str
    versions: dict[str, str]
    commit: str | None
    seconds: float
    recipes: tuple[RecipeSpeed, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**vars(self), "recipes": [vars(s) | {"scaling": s.scaling} for s in self.recipes]}


def measure_speed(
    configs: Mapping[str, RunConfig], types: int, device_name: str, precision_name: str, progress: ProgressCallback
) -> MachineSpeed:
    """Measure the recipes, which are given by name, on random text of `types` word types. Raises UserError."""
    device = choose_device(device_name)
    precision = choose_precision(precision_name, device)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    keep_freed_memory()
    began, done, speeds = time.perf_counter(), 0, []

    def advance() -> None:
        nonlocal done
        done += 1
        progress(done, STAGES * len(configs))

    progress(0, STAGES * len(configs))
    for name, config in configs.items():
        with restored_threads(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(config.seed)
            speeds.append(_recipe_speed(name, config, types, device, precision, advance))
    return MachineSpeed(
        device=processor() if device.type == "cpu" else torch.cuda.get_device_name(device),
        cores=cpu_cores(),
        load=load,
        precision=precision.name,
        precision_reason=precision.reason,
        versions=versions(),
        commit=commit(),
        seconds=round(time.perf_counter() - began, 1),
        recipes=tuple(speeds),
    )


def _recipe_speed(
    name: str, config: RunConfig, types: int, device: torch.device, precision: Precision, advance: Callable[[], None]
) -> RecipeSpeed:
    model = build_model(config.model, types).to(device)
    text = random_text(config.training.batch_size, config.training.segment + 1, types).to(device)
    tokens = text[:, 1:].numel()
    step = training_step(model, config, text, precision)
    usual = torch.get_num_threads() if device.type == "cpu" else 1
    counts = tuple(sorted({min(2**power, usual) for power in range(usual.bit_length() + 1)}))
    for _ in range(2):  # allocates, and on a GPU records
        step()
    seconds = median_seconds({count: on_threads(step, count) for count in counts})
    advance()
    speed = share = None
    if (listed := step_products(config, text[:, 1:], types)) is not None:
        torch.set_num_threads(1)
        products = fastest_run(listed, device, precision)
        products()
        clock = time.process_time if device.type == "cpu" else time.perf_counter
        alone = median_seconds({"training": step, "products": products}, clock)
        speed, share = tokens / alone["products"], alone["products"] / alone["training"]
    advance()
    torch.set_num_threads(min(seconds, key=seconds.__getitem__))
    evaluation = _reading_speed(model, types, precision)
    advance()
    training = {count: tokens / time_ for count, time_ in seconds.items()}
    return RecipeSpeed(name, count_parameters(model), training, speed, share, evaluation, _peak(device))


def random_text(batch_size: int, length: int, types: int) -> Tensor:
    """Return tokens (B, length), independent, of which the k-th most frequent has a probability proportional to 1 / k (Zipf).

    A sampled softmax takes as long as words are different: for 700 tokens of 10,000 types about as many as in Penn Treebank.
    """
    shares = 1 / torch.arange(1, types + 1)
    return torch.multinomial(shares, batch_size * length, replacement=True).view(batch_size, length)


def training_step(model: ComposedModel, config: RunConfig, text: Tensor, precision: Precision) -> Callable[[], None]:
    """Return a step of `backstory train` on a segment of text (B, T + 1), its update included."""
    settings, parameters = config.training, list(model.parameters())
    objective = build_objective(config, config.model.head.adversarial, model.core.auxiliary_weight)
    optimizer, state = build_optimizer(parameter_groups(model), settings), model.start(settings.batch_size)
    eager = Eager(model, parameters, objective, precision, settings.clip)
    gradient = build_gradient(eager, text.device, config)
    mask = torch.ones_like(text[:, 1:], dtype=torch.bool) if settings.answer_loss_only else None

    def step() -> None:
        nonlocal state
        figures, state = gradient(text, state, mask)
        for group in optimizer.param_groups:
            group["lr"] = 1e-6
        optimizer.step()
        figures[LOSS].item()

    return step


def _reading_speed(model: ComposedModel, types: int, precision: Precision) -> float:
    """Return the tokens per second at which the model reads one row; the first block is not counted."""
    reader = StaticReader(model, precision)
    ids = np.random.default_rng(0).integers(types, size=1000 * reader.block)
    stream = StreamReading(reader, ids, 0)
    tokens, began = 0, time.perf_counter()
    for number, block in enumerate(stream.remaining()):
        stream.score(block)
        stream.observe(block)
        if number == 0:
            began = time.perf_counter()
            continue
        tokens += reader.block
        if time.perf_counter() - began > READING_SECONDS:
            break
    return tokens / (time.perf_counter() - began)


def _peak(device: torch.device) -> float | None:
    """Return the highest memory so far, in GiB: of the process, or on a GPU of PyTorch."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    try:
        import resource
    except ImportError:  # Windows
        return None
    # macOS counts bytes, Linux KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
