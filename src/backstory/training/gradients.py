"""The gradient of a segment: computed eagerly, or on a GPU replayed from CUDA graphs."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from backstory.config import RunConfig
from backstory.models import Precision, State, clone, detach, flatten, unflatten
from backstory.models.state import map_state
from backstory.training.objectives import Objective

LOSS, NORM = "loss", "norm of the gradient"
Figures = dict[str, Tensor]
"""Scalars by name: LOSS, NORM before clipping, and the objective's own."""


class Gradient(Protocol):
    """Computes the clipped gradients of the parameters from a text (B, T + 1) and the state before it."""

    def __call__(self, text: Tensor, state: State, answer_mask: Tensor | None = None) -> tuple[Figures, State]:
        """Return the figures of the segment and the state after it, detached; both are valid until the next call.

        `answer_mask` (B, T) marks the targets that count; None for all. It is a mask at every call, or at none.
        """
        ...


@dataclass
class Eager:
    """Forward and backward pass, one operation after another."""

    model: nn.Module
    """The language model, or its DistributedDataParallel wrapper."""
    parameters: Sequence[nn.Parameter]
    objective: Objective
    precision: Precision
    clip: float
    """Largest norm of the gradient; 0 for no clipping."""

    def __call__(self, text: Tensor, state: State, answer_mask: Tensor | None = None) -> tuple[Figures, State]:
        for p in self.parameters:
            p.grad = None
        return self.accumulate(text, state, answer_mask)

    def accumulate(self, text: Tensor, state: State, answer_mask: Tensor | None = None) -> tuple[Figures, State]:
        """Do the same, but add to the present gradients before they are clipped."""
        figures, after = self.backward(text, state, answer_mask)
        return figures | {NORM: self.clipped()}, after

    def backward(
        self, text: Tensor, state: State, answer_mask: Tensor | None = None, weight: float = 1.0
    ) -> tuple[Figures, State]:
        """Add `weight` times the gradients of the loss to the present ones."""
        self.model.train()
        with self.precision.context(text.device):
            prediction, after = self.model(text[:, :-1], detach(state))
            loss, figures = self.objective(prediction, text[:, 1:], answer_mask)
        (loss if weight == 1.0 else loss * weight).backward()
        return {LOSS: loss.detach(), **figures}, detach(after)

    def without_reduction(self) -> AbstractContextManager[object]:
        """Keep the gradients that the block adds from the other ranks, until a backward pass outside of it."""
        return self.model.no_sync() if isinstance(self.model, DistributedDataParallel) else nullcontext()

    def clipped(self) -> Tensor:
        """Clip the present gradients; return their norm before that."""
        return nn.utils.clip_grad_norm_(self.parameters, self.clip or math.inf, foreach=True)


@dataclass
class Accumulated:
    """Gradient of a batch computed in parts of its rows, with the activations of one part in memory at a time.

    The parts have dropout masks and weight drops of their own. The loss of the batch is the mean over its tokens, so that of
    a part counts by its rows.
    """

    eager: Eager
    parts: int
    """Maximum number of parts; fewer for fewer rows."""

    def __call__(self, text: Tensor, state: State, answer_mask: Tensor | None = None) -> tuple[Figures, State]:
        for p in self.eager.parameters:
            p.grad = None
        sums: Figures = {}
        states: list[dict[str, Tensor]] = []
        for rows in torch.arange(len(text)).tensor_split(min(self.parts, len(text))):
            part, share = slice(int(rows[0]), int(rows[-1]) + 1), len(rows) / len(text)
            before = map_state(lambda tensor, part=part: tensor[part], state)
            mask = None if answer_mask is None else answer_mask[part]
            # Ranks add up their gradients once per step, with the last part.
            is_last = part.stop == len(text)
            with nullcontext() if is_last else self.eager.without_reduction():
                figures, after = self.eager.backward(text[part], before, mask, share)
            states.append(flatten(after))
            for name, value in figures.items():
                sums[name] = sums.get(name, torch.zeros_like(value)) + share * value
        after = {name: torch.cat([part[name] for part in states]) for name in states[0]}
        return {LOSS: sums.pop(LOSS), NORM: self.eager.clipped(), **sums}, unflatten(state, after)


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    text: Tensor
    answer_mask: Tensor | None
    figures: Figures


def build_gradient(eager: Eager, device: torch.device, config: RunConfig) -> Gradient:
    """Return the gradient for the settings: in parts, replayed on a GPU, or else eager.

    The number of words in a sampled softmax differs from step to step, which no CUDA graph can hold. Ranks add up their
    gradients eagerly.
    """
    if (parts := config.training.accumulate) > 1:
        return Accumulated(eager, parts)
    fixed = not config.model.head.sampled and not isinstance(eager.model, DistributedDataParallel)
    return Recorded(eager) if device.type == "cuda" and fixed else eager


class Recorded:
    """A CUDA graph per segment length: one launch in place of the thousands of small ones of a recurrent step.

    The random number generator advances from replay to replay as it does from step to step, so a resumed run is the same bit
    for bit.
    """

    MOST = 256
    """Maximum number of recorded lengths; segments of further lengths run eagerly."""

    def __init__(self, eager: Eager) -> None:
        self._eager = eager
        self._recordings: dict[torch.Size, _Recording] = {}
        self._state: State = None
        self._stream = torch.cuda.Stream(eager.parameters[0].device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, text: Tensor, state: State, answer_mask: Tensor | None = None) -> tuple[Figures, State]:
        if text.shape not in self._recordings and len(self._recordings) >= self.MOST:
            # The gradients stay where the graphs write them.
            if gradients := [p.grad for p in self._eager.parameters if p.grad is not None]:
                torch._foreach_zero_(gradients)
            return self._eager.accumulate(text, state, answer_mask)
        if self._state is None:
            self._state = clone(state)
        if text.shape not in self._recordings:
            self._recordings[text.shape] = self._record(text, answer_mask)
        recording = self._recordings[text.shape]
        recording.text.copy_(text)
        if answer_mask is not None and recording.answer_mask is not None:
            recording.answer_mask.copy_(answer_mask)
        for recorded, new in zip(flatten(self._state).values(), flatten(state).values(), strict=True):
            if recorded.data_ptr() != new.data_ptr():
                recorded.copy_(new)
        recording.graph.replay()
        return recording.figures, self._state

    def _record(self, text: Tensor, answer_mask: Tensor | None) -> _Recording:
        """Record a length, after a warm-up step in which the libraries choose their kernels and gradients are allocated.

        The graphs run one at a time and share their memory, except for gradients and state.
        """
        self._stream.wait_stream(torch.cuda.current_stream(text.device))
        with torch.random.fork_rng([text.device]), torch.cuda.stream(self._stream):
            self._eager.accumulate(text, clone(self._state), answer_mask)
        torch.cuda.current_stream(text.device).wait_stream(self._stream)
        text, graph = text.clone(), torch.cuda.CUDAGraph()
        answer_mask = None if answer_mask is None else answer_mask.clone()
        gradients = [p.grad for p in self._eager.parameters if p.grad is not None]
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            torch._foreach_zero_(gradients)
            figures, after = self._eager.accumulate(text, self._state, answer_mask)
            for recorded, new in zip(flatten(self._state).values(), flatten(after).values(), strict=True):
                recorded.copy_(new)
            figures = {name: value.clone() for name, value in figures.items()}
        return _Recording(graph, text, answer_mask, figures)
