"""Heads of an external memory at each word: which words they read, how sharply, and by which addressing."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from backstory.evaluation.opening import EvalSetup
from backstory.evaluation.token_scores import TokenScores
from backstory.explanations.explained_text import Explanation, PassageTask, Span, led_by, shown
from backstory.explanations.passage_reading import (
    after,
    expected_layer,
    figures_of,
    nats_of,
    note_on,
    part_name,
    read_parts,
    surprisal_layer,
    weights_layer,
)
from backstory.models.cores.external_memory import ExternalMemory, memory_of
from backstory.models.memory import Addressing, AddressingTrace, Machine, TuringMachine
from backstory.models.memory.addressing import window_mask
from backstory.results.explanation_record import HeadMeans, MemoryExplanation, MemorySettings, MemoryWeights
from backstory.results.passage import Layer, Numbers
from backstory.utils.errors import UserError
from backstory.utils.terminal import ProgressCallback

BEFORE = 500
"""Maximum number of tokens before a passage whose words are traced; earlier text counts as a single word."""
WINDOW = 257
"""Size of the window that is measured for a memory without one, as in Lee et al. (2020)."""
MOST_ROWS, MOST_TOKENS = 64, 400
"""Largest number of slots and of tokens in the picture."""
DIGITS = 3
"""Digits of a weight in the picture."""
READS = "read weights"


def check_memory(opened: EvalSetup) -> None:
    """Raise UserError unless the run has an external memory, and its reader adds no prediction to the model's."""
    reader = opened.reader
    if memory_of(opened.run.model) is None:
        folder = opened.run.argument
        raise UserError(f"{folder} has no external memory; train one with --model.core.kind ntm, dnc or mdm")
    if reader.name != "static":
        raise UserError(f"`explain memory` shows the model's own memory; leave the reader {reader.name} out")


class Attribution:
    """Words that wrote each of N slots: a mixture of words, or nothing for a slot that was not written."""

    def __init__(self, slots: int, words: int) -> None:
        self._shares = torch.zeros(slots, words, dtype=torch.float64)

    def clear(self) -> None:
        """Reset the memory, so that no slot is written."""
        self._shares.zero_()

    def write(self, word: int, weights: Tensor, left: Tensor) -> None:
        """Write a word with weights (N,); the earlier contents of the slots are scaled by `left` (N,).

        Words must be written in order.
        """
        shares = self._shares[:, : word + 1]
        shares *= left.unsqueeze(1)
        shares[:, word] += weights

    def read(self, weights: Tensor) -> Tensor:
        """Return the weight (words,) that weights (N,) put on each word; unwritten slots have none."""
        total = self._shares.sum(1)
        return torch.where(total > 0, weights / total, 0) @ self._shares


def measured(trace: AddressingTrace, how: Addressing) -> dict[str, np.ndarray]:
    """Return measures of each head (T, 1 + R), the write head first, at T steps (in the dimension of the batch).

    `entropy` of the weights in bits, the `largest` weight, `negative` (1 if all cosines are negative), and `window`, the mass
    inside the window of localized addressing. The entropy of weights that are all zero, and the window where all cosines are
    negative, are nan.
    """
    total = trace.weights.sum(2, keepdim=True)
    entropy = torch.special.entr(trace.weights / total).sum(2) / math.log(2)
    negative = trace.cosines.amax(2) < 0
    # A memory without a window is measured by its content weights: the mass that a window would keep.
    weights = trace.content if how.selected is None else trace.weights
    inside = window_mask(trace.cosines, replace(how, selected=window_of(how, trace.cosines.shape[2])))
    mass = (weights * inside).sum(2).masked_fill(negative, torch.nan)
    measures = {"entropy": entropy, "largest": trace.weights.amax(2), "negative": negative.double(), "window": mass}
    return {name: values.numpy() for name, values in measures.items()}


def window_of(how: Addressing, slots: int) -> int:
    """Return the size of a memory's window; without one, that of the usual window, odd and within the memory."""
    return how.selected or min(WINDOW, slots - 1 + slots % 2)


def memory(task: PassageTask, progress: ProgressCallback) -> Explanation:
    """Return layers read weights, entropies, masses, surprisal and candidates, from the first word that the passage reads.

    Raises UserError if there is another reader to compare with.
    """
    if task.against is not None:
        raise UserError("`explain memory` has nothing to compare its memory with; leave --against out")
    core = memory_of(task.reader.model)
    assert core is not None
    begin = max(0, task.start - BEFORE)
    words = led_by(task.vocabulary, task.ids[begin : task.start], int(task.ids[task.start]), task.spans)
    trace, part = _Trace(core, task, words), part_name(task.reader)

    def after_block(done: int, total: int) -> None:
        trace.add(steps)
        steps.clear()
        progress(done, total)

    with core.traced() as steps:
        scores = read_parts(task, after_block, lambda prediction: {part: prediction})
    return _explained(task, trace, scores[part], words)


class _Trace:
    """Links and measures of the steps that read a context and a passage."""

    def __init__(self, core: ExternalMemory, task: PassageTask, words: Sequence[Span]) -> None:
        self.machine, self.start, self.end = core.machine, task.start, len(task.ids)
        # The start token is read first, so a step reads the token before the one that it predicts.
        self.resets = {1 + int(token) for token in np.flatnonzero(task.ids == core.reset_token)}
        self.starts = {span.start for span in task.spans}
        self.owner = {token: i for i, span in enumerate(words) for token in range(span.start, span.end)}
        # Word 0 is all text before the words.
        self.written = Attribution(self.machine.slots, 1 + len(words))
        self.step = 0
        self.links: list[dict[int, float]] = []
        self.older: list[float] = []
        self.measures: list[dict[str, np.ndarray]] = []
        self.weights: list[Tensor] = []

    def add(self, traces: Sequence[AddressingTrace]) -> None:
        """Add the steps of a block; steps beyond the end of the text are left out."""
        traces = traces[: max(0, self.end - self.step)]
        if not traces:
            return
        steps = AddressingTrace(*(torch.cat(part).cpu().double() for part in zip(*traces, strict=True)))
        first = max(0, self.start - self.step)
        for time in range(len(traces)):
            token = self.step - self.start
            if self.step in self.resets:
                self.written.clear()
            self.written.write(1 + self.owner.get(token - 1, -1), steps.weights[time, 0], steps.left[time])
            if token in self.starts:
                mass = self.written.read(steps.weights[time, 1:].mean(0)).tolist()
                self.older.append(mass[0])
                self.links.append({word: weight for word, weight in enumerate(mass[1:]) if weight > 0})
            self.step += 1
        if first < len(traces):
            self.measures.append(measured(AddressingTrace(*(part[first:] for part in steps)), self.machine.addressing))
            room = MOST_TOKENS - sum(map(len, self.weights))
            self.weights.append(steps.weights[first : first + room])

    def measure(self, name: str) -> np.ndarray:
        """Return a measure of each head at each token of the passage (tokens, 1 + R)."""
        return np.concatenate([block[name] for block in self.measures])


def _explained(task: PassageTask, trace: _Trace, scores: TokenScores, words: Sequence[Span]) -> Explanation:
    lead = len(words) - len(task.spans)
    note = (
        "How much is read of each earlier word: the read weights (mean of the heads) of the slots that it wrote, times its "
        "share in each slot. Words too far back to show are counted in ‘read of older words’."
    )
    reads = weights_layer(READS, [{}] * lead + trace.links, note)
    # Show only the words before the passage from the first one that is read.
    cut = min((j for of in reads.links for j, _ in of if j < lead), default=lead)
    links = tuple(tuple((j - cut, weight) for j, weight in of) for of in reads.links[cut:])
    lead -= cut
    nats = nats_of(task, scores)
    layers: list[Layer] = [replace(reads, links=links)]
    layers += [after(lead, layer) for layer in _numbers(trace, task, nats)]
    if task.top:
        layers.append(after(lead, expected_layer(task, {part_name(task.reader): scores})))
    strongest = [max(of.values(), default=0.0) for of in trace.links]
    first = 0 if trace.links[0] else int(np.argmax(strongest))
    return Explanation(
        _figures(task, trace, scores),
        tuple(layers),
        note_on(task, "weights and candidates"),
        words=tuple(span.word for span in words[cut:]),
        chosen=lead + first,
        record=MemoryExplanation,
    )


def _figures(task: PassageTask, trace: _Trace, scores: TokenScores) -> dict[str, Any]:
    """Return the measured fields of `MemoryExplanation`."""
    machine = trace.machine
    return {
        "settings": MemorySettings.of(
            {
                "kind": type(machine).__name__,
                "slots": machine.slots,
                "width": machine.width,
                "heads": machine.heads,
                "addressing": str(machine.addressing),
            }
        ),
        **figures_of(task, scores),
        "entropy_bits": _by_head(trace.measure("entropy")),
        "largest_percent": _by_head(100 * trace.measure("largest")),
        "fall_back_percent": _by_head(100 * trace.measure("negative")),
        "window": window_of(machine.addressing, machine.slots),
        "windows": machine.addressing.windows,
        "window_percent": _by_head(100 * trace.measure("window")),
        "older_percent": 100 * float(np.mean(trace.older)),
        "weights": _picture(task, torch.cat(trace.weights)),
    }


def _by_head(values: np.ndarray) -> HeadMeans:
    """Return the mean of a measure (tokens, 1 + R) for each head, without nan; None if all values are nan."""
    means = [_mean(of) for of in values.T]
    return HeadMeans(write=means[0], read=tuple(means[1:]))


def _mean(values: np.ndarray) -> float | None:
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if len(numbers) else None


def _numbers(trace: _Trace, task: PassageTask, nats: np.ndarray) -> list[Numbers]:
    first, machine = [span.start for span in task.spans], trace.machine
    bits = max(1.0, math.log2(machine.slots))

    def of(measure: str, heads: slice, scale: float = 1.0) -> tuple[float | None, ...]:
        means = (_mean(at[heads]) for at in trace.measure(measure)[first])
        return tuple(None if value is None else scale * value for value in means)

    def percent(kind: Literal["sequential", "plain"], name: str, measure: str, heads: slice, **look: Any) -> Numbers:
        return Numbers(kind, name, of(measure, heads, 100), "%", high=100.0, **look)

    negative = "Heads whose cosines are all negative: no window, all slots have a weight."
    layers: list[Numbers] = []
    for head, heads in (("read", slice(1, None)), ("write", slice(0, 1))):
        layers += [
            Numbers("sequential", f"entropy, {head}", of("entropy", heads), "bits", high=bits, note="Of the weights."),
            percent("sequential", f"largest, {head}", "largest", heads, note="The weight of the slot that has most."),
            percent("sequential", f"window, {head}", "window", heads, note=_window_note(machine, head)),
            percent("plain", f"fall-back, {head}", "negative", heads, note=negative, digits=0),
        ]
    older = tuple(100 * mass for mass in trace.older)
    return [
        *layers,
        Numbers("plain", "read of older words", older, "%", high=100.0),
        surprisal_layer("surprisal", nats, task.vocabulary),
    ]


def _window_note(machine: Machine, head: str) -> str:
    """Return a note on the mass inside and outside the window."""
    how = machine.addressing
    slots = f"{window_of(how, machine.slots):,} slots around the largest cosine"
    if how.windows > 1:
        slots = f"{how.windows} windows of {slots}s"
    if how.selected is None:
        return f"What content alone has within {slots}: what localized addressing would leave of it."
    if how.kind == "window":
        return f"What the weights have within {slots}: all of them."
    elsewhere = "links lead" if head == "read" else "the memory is free, or is not written"
    if isinstance(machine, TuringMachine):
        elsewhere = "locations lead"
    return f"What the weights have within {slots}; the rest is where {elsewhere}."


def _picture(task: PassageTask, weights: Tensor) -> MemoryWeights:
    """Return the weights (T, 1 + R, N) of the slots with the largest sums, over the tokens of the passage."""
    write, read = weights[:, 0], weights[:, 1:].mean(1)
    most = (write + read).sum(0).topk(min(MOST_ROWS, weights.shape[2])).indices.sort().values
    ids = task.ids[task.start : task.start + len(weights)]

    def panel(values: Tensor) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(float(f"{weight:.{DIGITS}g}") for weight in slot) for slot in values[:, most].T.tolist())

    return MemoryWeights(
        slots=tuple(most.tolist()),
        of=weights.shape[2],
        heads=weights.shape[1] - 1,
        tokens=tuple(shown(task.vocabulary, token) for token in ids.tolist()),
        write=panel(write),
        read=panel(read),
    )
