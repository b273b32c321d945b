"""Checks that the tests of several cores share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from catalogue import TYPES

from backstory.models import ComposedModel, flatten
from backstory.models.cores import Core, CoreOutput


def check_dropout(make: Callable[..., ComposedModel], dropouts: Sequence[str], name: str) -> None:
    """Check that this dropout alone makes a core's training differ from evaluation."""
    actual = {}
    for probability in (0.0, 0.5):
        torch.manual_seed(0)
        model = make(**dict.fromkeys(dropouts, 0.0) | {name: probability})
        model.embedding.dropout = 0.0
        tokens = torch.randint(TYPES, (2, 6))
        passes = [model.train(training)(tokens, model.start(2))[0].log_probs() for training in (True, False)]
        actual[probability] = torch.equal(*passes)
    assert actual == {0.0: True, 0.5: False}


def check_bfloat16(make: Callable[[], Core], off: float, gradients_off: float) -> CoreOutput:
    """A core of words of 24 numbers is near float32, and its state and gradients stay float32; what it puts out.

    `off`: how far each number may be, `gradients_off` the share of its length by which a gradient may.
    """
    torch.manual_seed(0)
    core = make()
    embedded = torch.randn(4, 20, 24, requires_grad=True)
    every = [embedded, *core.parameters()]
    expected = core(embedded, core.start(4)).dropped
    wanted = torch.autograd.grad(expected.sin().sum(), every)
    with torch.autocast("cpu", torch.bfloat16):
        actual = core(embedded, core.start(4))
    assert {t.dtype for t in flatten(actual.state).values() if t.is_floating_point()} == {torch.float32}
    gradients = torch.autograd.grad(actual.dropped.float().sin().sum(), every)
    torch.testing.assert_close(actual.dropped.float(), expected, rtol=0, atol=off)
    for mine, reference in zip(gradients, wanted, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - reference).norm() < gradients_off * reference.norm()
    return actual


@contextmanager
def nan_in_new_memory() -> Iterator[None]:
    """Fill empty tensors with NaN, which reveals reads before writes."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
