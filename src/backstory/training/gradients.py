"""The gradient of a segment: computed operation by operation, or on a GPU replayed from recorded graphs."""

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
    """Fills the parameters' gradients, clipped, from a text (B, T + 1) and the state before it."""

    def __call__(self, text: Tensor, state: State, asked: Tensor | None = None) -> tuple[Figures, State]:
        """The figures of the segment, and the state after it, detached; both hold until the next call.

        `asked` (B, T): the targets that count, always given or never.
        """
        ...


@dataclass
class Eager:
    """One operation after another."""

    model: nn.Module
    """The language model, or what averages its gradients over ranks."""
    parameters: Sequence[nn.Parameter]
    objective: Objective
    precision: Precision
    clip: float
    """Largest norm of the gradient; 0 for no clipping."""

    def __call__(self, text: Tensor, state: State, asked: Tensor | None = None) -> tuple[Figures, State]:
        for p in self.parameters:
            p.grad = None
        return self.accumulate(text, state, asked)

    def accumulate(self, text: Tensor, state: State, asked: Tensor | None = None) -> tuple[Figures, State]:
        """The same, added to the gradients that are there before all is clipped."""
        self.model.train()
        with self.precision.context(text.device):
            prediction, after = self.model(text[:, :-1], detach(state))
            loss, figures = self.objective(prediction, text[:, 1:], asked)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip or math.inf, foreach=True)
        return {LOSS: loss.detach(), NORM: norm, **figures}, detach(after)


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    text: Tensor
    asked: Tensor | None
    figures: Figures


class Recorded:
    """On a GPU, a graph per length of a segment: the thousands of small launches of a recurrent step become one.

    Random numbers go on from replay to replay as they do from step to step, so a resumed run is the same bit for bit.
    """

    MOST = 256
    """Lengths that are recorded; segments of others run eagerly."""

    def __init__(self, eager: Eager) -> None:
        self._eager = eager
        self._recordings: dict[torch.Size, _Recording] = {}
        self._state: State = None
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, text: Tensor, state: State, asked: Tensor | None = None) -> tuple[Figures, State]:
        if text.shape not in self._recordings and len(self._recordings) >= self.MOST:
            # The gradients stay where the graphs write them.
            torch._foreach_zero_([p.grad for p in self._eager.parameters if p.grad is not None])
            return self._eager.accumulate(text, state, asked)
        if self._state is None:
            self._state = clone(state)
        if text.shape not in self._recordings:
            self._recordings[text.shape] = self._record(text, asked)
        recording = self._recordings[text.shape]
        recording.text.copy_(text)
        if asked is not None and recording.asked is not None:
            recording.asked.copy_(asked)
        for mine, given in zip(flatten(self._state).values(), flatten(state).values(), strict=True):
            if mine.data_ptr() != given.data_ptr():
                mine.copy_(given)
        recording.graph.replay()
        return recording.figures, self._state

    def _record(self, text: Tensor, asked: Tensor | None) -> _Recording:
        """Record a length, after a step for nothing in which the libraries choose their kernels and gradients get a place.

        The graphs share their memory, gradients and state excepted: they run one at a time.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.random.fork_rng([text.device]), torch.cuda.stream(self._stream):
            self._eager.accumulate(text, clone(self._state), asked)
        torch.cuda.current_stream().wait_stream(self._stream)
        text, graph = text.clone(), torch.cuda.CUDAGraph()
        asked = None if asked is None else asked.clone()
        gradients = [p.grad for p in self._eager.parameters if p.grad is not None]
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            torch._foreach_zero_(gradients)
            figures, after = self._eager.accumulate(text, self._state, asked)
            for mine, new in zip(flatten(self._state).values(), flatten(after).values(), strict=True):
                mine.copy_(new)
            figures = {name: value.clone() for name, value in figures.items()}
        return _Recording(graph, text, asked, figures)
