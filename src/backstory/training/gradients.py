"""The gradient of a segment: computed eagerly, or on a GPU replayed from CUDA graphs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from backstory.models import Precision, State, clone, detach, flatten
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
        self.model.train()
        with self.precision.context(text.device):
            prediction, after = self.model(text[:, :-1], detach(state))
            loss, figures = self.objective(prediction, text[:, 1:], answer_mask)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip or math.inf, foreach=True)
        return {LOSS: loss.detach(), NORM: norm, **figures}, detach(after)


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    text: Tensor
    answer_mask: Tensor | None
    figures: Figures


class Recorded:
    """A CUDA graph per segment length: one launch in place of the thousands of small ones of a recurrent step.

    The random number generator advances from replay to replay as it does from step to step, so a resumed run is the same bit
    for bit.
    """

    MOST = 256
    """Most lengths that are recorded; segments of further lengths run eagerly."""

    def __init__(self, eager: Eager) -> None:
        self._eager = eager
        self._recordings: dict[torch.Size, _Recording] = {}
        self._state: State = None
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, text: Tensor, state: State, answer_mask: Tensor | None = None) -> tuple[Figures, State]:
        if text.shape not in self._recordings and len(self._recordings) >= self.MOST:
            # The gradients stay where the graphs write them.
            torch._foreach_zero_([p.grad for p in self._eager.parameters if p.grad is not None])
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
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.random.fork_rng([text.device]), torch.cuda.stream(self._stream):
            self._eager.accumulate(text, clone(self._state), answer_mask)
        torch.cuda.current_stream().wait_stream(self._stream)
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
