"""Estimate of the memory that a training run needs, and a check against what is free, before anything is allocated."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from backstory.config import ModelConfig, RunConfig, SpanBufferConfig, TrainingConfig
from backstory.jobs.ranks import Ranks
from backstory.models import Precision, count_parameters, outline
from backstory.models.cores import CORES
from backstory.models.devices import available
from backstory.models.kernels.linear_log_prob import CHUNK
from backstory.utils.errors import NoMemory, UserError, off
from backstory.utils.free_memory import shown_bytes

MARGIN = 1.3
"""Share of the free memory that an estimate must exceed to be refused, chosen so that a run that fits is never refused."""
BUFFERS = 4
"""Copies that a training step holds of the states in a span buffer's reach, with everything computed from each."""
SCORES = 4
"""Numbers held for each pair of a position and a word of the buffer (or a span, if it holds only spans)."""
DUAL = 3
"""Copies that a training step holds of the core's outputs that a dual connection reads, with everything computed from them."""
USUAL_TYPES = 50_000
"""Usual vocabulary size, in place of a default of `text.maximum_size`."""

Sizes = tuple[int, ...]
"""One of a setting, or one of each layer."""


@dataclass(frozen=True)
class Text:
    """Sizes of a text that the memory of a run depends on."""

    types: int
    tokens: int
    """Tokens of the training split."""


def check_memory(
    config: RunConfig, text: Text, precision: Precision, device: torch.device, ranks: Ranks | None = None
) -> None:
    """Raise UserError, which names the setting to lower, when a training step cannot fit; nothing is allocated.

    Each of several ranks has its share of the batch. On a CPU, those of one machine share its memory.

    Tests hold the estimate to 0.6 to 1.3 times the measured memory (the same step takes up to a third more in some
    processes, depending on the allocator's heap), so a run is refused from 1.3 times the free memory.
    """
    free, ranks = available(device), ranks or Ranks()
    if free is not None and device.type == "cpu":
        free //= ranks.here
    share = dataclasses.replace(config.training, batch_size=max(1, config.training.batch_size // ranks.world))
    needed = estimate(dataclasses.replace(config, training=share), text, precision)
    if free is None or (total := sum(needed.values())) <= MARGIN * free:
        return
    largest = max(needed, key=needed.__getitem__)
    name, value = _to_lower(config, text, precision)
    most = (
        f"about {shown_bytes(total)}, most of it for {largest}"
        if total < math.inf
        else "more memory than can be counted"
    )
    options = "".join(f", or set {off(option)}" for option in _to_turn_off(config, text, precision, total / 2))
    raise NoMemory(f"this run needs {most}, and {shown_bytes(free)} are free; lower {name} ({value}){options}")


def estimate(config: RunConfig, text: Text, precision: Precision) -> dict[str, float]:
    """Return the bytes that a training step takes, by purpose; infinite if no tensor can be that large, and empty for a
    model that cannot be built without memory (`outline`).

    Raises UserError when the parts of the model do not fit together.
    """
    settings = config.training
    try:
        model = outline(config.model, text.types)
    except OverflowError:
        return {"weights": math.inf}
    if model is None:  # building it reports any fault
        return {}
    parameters, width = count_parameters(model), model.head.weight.shape[1]
    embedding, item = model.embedding.weight.numel(), precision.dtype.itemsize
    cast = item if item < 4 else 0
    # Whatever a core or a head computes of a token, most of it is outputs of its matrices and functions of these.
    core, head = (sum(p.shape[0] for p in part.parameters() if p.dim() == 2) for part in (model.core, model.head))
    longest = _longest(settings, text.tokens)
    core += model.core.extra_activations(longest)
    core *= 0.5 + item / 4  # kept partly in the precision of products
    dual = 0 if model.dual is None else DUAL * (model.head_size + model.core.output_size)
    own = head - sum(p.shape[0] for p in model.head.parameters() if p is model.head.weight)
    rows = math.ceil(settings.batch_size / settings.accumulate)
    tokens = rows * longest
    logits = min(tokens * getattr(config.model.head, "experts", 1) * text.types, max(CHUNK, text.types))
    moments = {"sgd": 0, "adam": 2, "adamw": 2, "nadam": 2}[settings.optimizer]
    buffer = config.model.buffer
    words = (
        0
        if not isinstance(buffer, SpanBufferConfig)
        else buffer.size // (buffer.span if buffer.alignment == "fixed" else 1)
    )
    averages = settings.averaging != "none" or settings.finetune_epochs > 0
    return {
        # A copy, cast or laid out for the kernels, of all but the embedding: the output layer counts its own below.
        "weights": parameters * 4.0 + (parameters - embedding) * item,
        "gradients": parameters * 4.0,
        "the optimizer": parameters * 4.0 * (moments + averages),
        "activations": 4.0 * tokens * (core + dual + 6 * own + 8 * config.model.embedding.size + 14 * model.head_size),
        # States before the segment and what is made of them; scores and weights of every position for each of them.
        "the buffer": 4.0 * words * (BUFFERS * rows * model.head_size + SCORES * tokens),
        # Logits in the precision of products; in float32 nearly twice, and once more with a gate.
        "the output layer": ((7.0 if model.gated is None else 11.0) + item) * logits
        + (4.0 + cast) * text.types * width,
    }


def _longest(settings: TrainingConfig, tokens: int) -> int:
    """Return tokens of a segment of three standard deviations above the mean, or of a whole row if that is shorter."""
    row = max(1, tokens // settings.batch_size - 1)
    if settings.segment_deviation >= row:
        return row
    return min(row, max(settings.minimum_segment, settings.segment + int(3 * settings.segment_deviation)))


def _to_turn_off(config: RunConfig, text: Text, precision: Precision, most: float) -> Iterator[str]:
    """Yield the options of the core without which a step takes less than this many bytes."""
    core: Any = config.model.core
    kind: Any = CORES[type(core)]
    for option in kind.memory_options(core):
        model = dataclasses.replace(config.model, core=dataclasses.replace(core, **{option: False}))
        if sum(estimate(dataclasses.replace(config, model=model), text, precision).values()) < most:
            yield f"model.core.{option}"


def _to_lower(config: RunConfig, text: Text, precision: Precision) -> tuple[str, str]:
    """Return the name and value of the setting to lower: the furthest above its default that saves a fifth."""
    total, candidates = sum(estimate(config, text, precision).values()), []
    for name, values, usual, (halved, of) in _halved(config, text):
        try:
            needed = sum(estimate(halved, of, precision).values())
        except UserError:  # parts that would not fit together
            continue
        candidates.append((needed <= 0.8 * total, sum(values) / sum(usual), name, values))
    _, _, name, values = max(candidates)
    return name, " ".join(map(str, values))


def _halved(config: RunConfig, text: Text) -> Iterator[tuple[str, Sizes, Sizes, tuple[RunConfig, Text]]]:
    """Yield every size of the model and of a step, its default, and the settings, or text, with half of it."""
    for part in ("embedding", "core", "dual", "head", "buffer"):
        settings = getattr(config.model, part)
        for name, value in vars(settings).items():
            if max(sizes := _sizes(value), default=0) > 1:
                half = tuple(max(1, size // 2) for size in sizes)
                changed: dict[str, Any] = {
                    part: dataclasses.replace(settings, **{name: half if isinstance(value, tuple) else half[0]})
                }
                model: ModelConfig = dataclasses.replace(config.model, **changed)
                usual = _sizes(getattr(type(settings)(), name))
                usual = usual if any(usual) else sizes  # 0 or none by default: as large as need be
                yield f"model.{part}.{name}", sizes, usual, (dataclasses.replace(config, model=model), text)
    for name, most in (("batch_size", text.tokens), ("segment", text.tokens // config.training.batch_size)):
        value, usual = getattr(config.training, name), getattr(TrainingConfig(), name)
        # A segment longer than a row of the text takes what the row takes.
        training = dataclasses.replace(config.training, **{name: max(1, min(value, most) // 2)})
        yield f"training.{name}", (value,), (usual,), (dataclasses.replace(config, training=training), text)
    small = dataclasses.replace(text, types=max(1, text.types // 2))
    yield "text.maximum_size", (text.types,), (USUAL_TYPES,), (config, small)


def _sizes(value: Any) -> Sizes:
    """Return a size, or those of the layers; none where a setting is another thing."""
    values = value if isinstance(value, tuple) else (value,)
    return values if all(type(size) is int for size in values) else ()
