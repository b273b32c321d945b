"""The library's own recurrence, in bfloat16 on the CPU, against the equations, torch's LSTM and finite differences."""

import pytest
import torch
from references import lstm_layer
from torch import Tensor

from backstory.models.kernels import recurrence

ROWS, INPUTS = 2, 3


def arguments(units: int = 5, steps: int = 4) -> list[Tensor]:
    """x, h, c, weight_ih, weight_hh and both biases, in float64."""
    torch.manual_seed(0)
    inputs = (ROWS, steps, INPUTS), (ROWS, units), (ROWS, units)
    weights = (4 * units, INPUTS), (4 * units, units), (4 * units,), (4 * units,)
    return [torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in (*inputs, *weights)]


def trained_size() -> list[Tensor]:
    """Arguments in float32 whose weights are about as large as a trained layer's."""
    x, h, c, *weights = (tensor.detach().float() for tensor in arguments(units=32, steps=20))
    return [tensor.requires_grad_() for tensor in (x, h, c, *(0.2 * w for w in weights))]


def segment(
    x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, b: Tensor, a: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return recurrence._LSTMSegment.apply(x, h, c, w, u, b + a, None)


def filled_up(
    x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, b: Tensor, a: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return recurrence._aligned_lstm(x, h, c, [w, u, b, a], 4)


def dropped(x: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return recurrence.lstm_segment(x, h, c, *weights, mask=state_mask(h))  # type: ignore[arg-type]


def state_mask(h: Tensor) -> Tensor:
    """Zeros and others, another row by row."""
    return torch.arange(h.numel(), dtype=h.dtype).view(h.shape).remainder(3)


def naive(x: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    rows = [lstm_layer(x[row], h[row], c[row], *weights) for row in range(len(x))]
    return tuple(torch.stack(part) for part in zip(*rows, strict=True))


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("used", [(0, 1, 2), (0,), (1,), (2,)], ids=["all", "output", "h", "c"])
@pytest.mark.parametrize("run", [segment, recurrence.lstm_segment, filled_up], ids=["own", "library", "filled up"])
def test_values_and_gradients_are_the_equations(run, used: tuple[int, ...], steps: int) -> None:
    given = arguments(steps=steps)
    fast, slow = run(*given), naive(*given)
    for mine, reference in zip(fast, slow, strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-10)
    # With a gradient from each output alone, none can hide behind another's.
    actual, expected = (torch.autograd.grad(sum(out[i].sin().sum() for i in used), given) for out in (fast, slow))
    for mine, reference in zip(actual, expected, strict=True):
        assert mine.dtype == torch.float64
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-10)


@pytest.mark.parametrize("used", [(0, 1, 2), (0,), (1,), (2,)], ids=["all", "output", "h", "c"])
@pytest.mark.parametrize("biases", [1, 2])
def test_a_dropped_state_is_the_equations(used: tuple[int, ...], biases: int) -> None:
    given = arguments()[: 5 + biases]
    x, h, c, *weights = given
    rows = [lstm_layer(x[r], h[r], c[r], *weights, mask=state_mask(h)[r]) for r in range(len(x))]  # type: ignore[arg-type]
    slow, fast = tuple(torch.stack(part) for part in zip(*rows, strict=True)), dropped(*given)
    for mine, reference in zip(fast, slow, strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-10)
    actual, expected = (torch.autograd.grad(sum(out[i].sin().sum() for i in used), given) for out in (fast, slow))
    for mine, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_bias_is_the_sum_of_two(dtype: torch.dtype) -> None:
    *given, one, other = (t.detach().to(dtype) for t in arguments())
    for mine, reference in zip(
        recurrence.lstm_segment(*given, one + other), recurrence.lstm_segment(*given, one, other), strict=True
    ):
        torch.testing.assert_close(mine, reference)


@pytest.mark.full
@pytest.mark.parametrize("run", [segment, dropped])
def test_gradients_are_the_finite_differences(run) -> None:
    assert torch.autograd.gradcheck(run, arguments())


def test_bfloat16_stays_near_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrence, "OWN_FROM", 1)
    given = trained_size()
    expected = recurrence.lstm_segment(*given)
    wanted = torch.autograd.grad(sum(out.sin().sum() for out in expected), given)
    with torch.autocast("cpu", torch.bfloat16):
        actual = recurrence.lstm_segment(*given)
    assert type(actual[0].grad_fn).__name__ == "_LSTMSegmentBackward"
    assert [out.dtype for out in actual] == [torch.bfloat16, torch.float32, torch.float32]
    gradients = torch.autograd.grad(sum(out.float().sin().sum() for out in actual), given)
    for mine, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine.float(), reference, rtol=0, atol=0.02)
    for mine, reference in zip(gradients, wanted, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - reference).norm() < 0.03 * reference.norm()


def test_both_paths_of_bfloat16_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    given, actual = trained_size(), []
    for threshold in (1, 1000):
        monkeypatch.setattr(recurrence, "OWN_FROM", threshold)
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            actual.append(recurrence.lstm_segment(*given))
    for own, library in zip(*actual, strict=True):
        assert own.dtype == library.dtype
        torch.testing.assert_close(own.float(), library.float(), rtol=0, atol=0.02)


def test_a_segment_in_two_pieces_is_the_segment() -> None:
    x, *rest = arguments()
    whole, h, c = segment(x, *rest)
    first, h1, c1 = segment(x[:, :1], *rest)
    second, h2, c2 = segment(x[:, 1:], h1, c1, *rest[2:])
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close((h2, c2), (h, c), rtol=0, atol=1e-12)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_input_and_a_state_of_different_batches_are_refused(which: int) -> None:
    x, h, c, *weights = trained_size()
    given = [x, h, c]
    given[which] = torch.cat([given[which], given[which]])
    with pytest.raises(ValueError, match="does not go with a state"):
        recurrence.lstm_segment(*given, *weights)
