"""The Mogrifier against a loop over its equations, finite differences, an LSTM without rounds, and its dropout."""

from typing import Any

import pytest
import torch
from catalogue import mogrifier
from checks import check_bfloat16, check_dropout, nan_in_new_memory
from hypothesis import given
from hypothesis import strategies as st
from references import mogrifier_layer
from torch import Tensor

from backstory.config import LSTMConfig, MogrifierConfig
from backstory.models import dropout, flatten
from backstory.models.cores import LSTM, LSTMState, Mogrifier
from backstory.models.kernels import recurrence
from backstory.models.kernels.recurrence import Round, mogrifier_segment

ROWS, INPUTS, UNITS = 2, 3, 5
DROPOUTS = ("input_dropout", "state_dropout", "round_dropout", "layer_dropout", "output_dropout")
QUIET = dict.fromkeys(DROPOUTS, 0.0)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).mul(0.7).requires_grad_()


def arguments(
    steps: int, rounds: int, rank: int | None, masked: bool
) -> tuple[list[Tensor], list[Round], Tensor | None]:
    """x, h, c, weight_ih, weight_hh and bias; the rounds; and the mask on the state, in float64."""
    torch.manual_seed(0)
    tensors = [leaf(ROWS, steps, INPUTS), leaf(ROWS, UNITS), leaf(ROWS, UNITS)]
    tensors += [leaf(4 * UNITS, INPUTS), leaf(4 * UNITS, UNITS), leaf(4 * UNITS)]
    made = []
    for number in range(rounds):
        gating, gated = (INPUTS, UNITS) if number % 2 else (UNITS, INPUTS)
        inner = rank or gating
        right = None if rank is None else leaf(rank, gating)
        made.append(Round(leaf(gated, inner), right, leaf(gated), mask(ROWS, inner) if masked else None))
    return tensors, made, mask(ROWS, UNITS) if masked else None


def mask(*shape: int) -> Tensor:
    return torch.rand(*shape).gt(0.3).double() / 0.7


def naive(tensors: list[Tensor], rounds: list[Round], mask: Tensor | None) -> tuple[Tensor, ...]:
    x, h, c, *weights = tensors
    rows = []
    for row in range(len(x)):
        mine = [(r.left, r.right, r.bias, None if r.mask is None else r.mask[row]) for r in rounds]
        rows.append(mogrifier_layer(x[row], h[row], c[row], *weights, mine, None if mask is None else mask[row]))
    return tuple(torch.stack(part) for part in zip(*rows, strict=True))


def leaves(tensors: list[Tensor], rounds: list[Round]) -> list[Tensor]:
    return [*tensors, *(part for one in rounds for part in one[:3] if part is not None)]


@given(
    st.sampled_from([(0, 1, 2), (0,), (1,), (2,)]),
    st.integers(1, 3),
    st.integers(1, 6),
    st.none() | st.integers(1, 4),
    st.booleans(),
)
def test_values_and_gradients_are_the_equations(
    used: tuple[int, ...], steps: int, rounds: int, rank: int | None, masked: bool
) -> None:
    tensors, made, dropped = arguments(steps, rounds, rank, masked)
    fast, slow = mogrifier_segment(*tensors, made, dropped), naive(tensors, made, dropped)  # type: ignore[arg-type]
    for mine, reference in zip(fast, slow, strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-10)
    every = leaves(tensors, made)
    actual, expected = (
        torch.autograd.grad(sum(out[i].sin().sum() for i in used), every, allow_unused=True, materialize_grads=True)
        for out in (fast, slow)
    )
    for mine, reference in zip(actual, expected, strict=True):
        assert mine.dtype == torch.float64
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-10)


@pytest.mark.full
@pytest.mark.parametrize(("rounds", "rank"), [(1, None), (4, 2)])
def test_gradients_are_the_finite_differences(rounds: int, rank: int | None) -> None:
    tensors, made, dropped = arguments(2, rounds, rank, masked=True)

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        left = iter(given[6:])
        mine = [Round(next(left), None if one.right is None else next(left), next(left), one.mask) for one in made]
        return mogrifier_segment(*given[:6], mine, dropped)  # type: ignore[call-arg]

    assert torch.autograd.gradcheck(run, leaves(tensors, made))


def test_a_segment_in_two_pieces_is_the_segment() -> None:
    (x, h, c, *weights), made, dropped = arguments(5, 4, 2, masked=True)
    whole, *after = mogrifier_segment(x, h, c, *weights, made, dropped)  # type: ignore[call-arg]
    first, h, c = mogrifier_segment(x[:, :2], h, c, *weights, made, dropped)  # type: ignore[call-arg]
    second, *later = mogrifier_segment(x[:, 2:], h, c, *weights, made, dropped)  # type: ignore[call-arg]
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(later, after, rtol=0, atol=1e-12)


@pytest.fixture(params=[0, recurrence.SMALL], ids=["rounds in bfloat16", "rounds in float32"])
def of_rounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either of what the rounds of a layer in bfloat16 multiply in."""
    monkeypatch.setattr(recurrence, "SMALL", request.param)


@pytest.mark.usefixtures("of_rounds")
@pytest.mark.parametrize("rank", [None, 16])
def test_bfloat16_stays_near_float32(rank: int | None) -> None:
    actual = check_bfloat16(lambda: Mogrifier(MogrifierConfig(hidden=32, rank=rank, **QUIET), 24, 24), 0.02, 0.03)
    assert actual.dropped.dtype == torch.bfloat16


@pytest.mark.usefixtures("of_rounds")
@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
@pytest.mark.parametrize("rank", [None, 24])
def test_what_memory_held_before_changes_nothing(rank: int | None, rounds: int) -> None:
    torch.manual_seed(0)
    # Rows and units that wide products in bfloat16 read in tiles, the last of them past the units.
    layer = Mogrifier(MogrifierConfig(layers=1, hidden=100, rank=rank, rounds=rounds), 100)
    x, state = torch.randn(20, 3, 100, requires_grad=True), layer.start(20)
    with torch.autocast("cpu", torch.bfloat16), nan_in_new_memory():
        actual = layer(x, state)
        actual.dropped.float().sum().backward()
    assert actual.dropped.isfinite().all() and all(part.isfinite().all() for part in flatten(actual.state).values())
    assert x.grad is not None and all(p.grad is not None and p.grad.isfinite().all() for p in (x, *layer.parameters()))


def test_without_rounds_it_is_an_lstm() -> None:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"layers": 2, "hidden": 8, "state_dropout": 0.3} | {"input_dropout": 0.2}
    ours = Mogrifier(MogrifierConfig(rounds=0, **settings), 6, 6)
    lstm = LSTM(LSTMConfig(biases=1, weight_drop=0.0, layer_dropout=0.5, output_dropout=0.5, **settings), 6, 6)
    lstm.load_state_dict({name.replace("bias", "bias_ih"): p for name, p in ours.state_dict().items()})
    embedded, actual = torch.randn(3, 7, 6), []
    for core in (ours, lstm):
        torch.manual_seed(1)
        actual.append(core(embedded, core.start(3)))
    for mine, other in zip(*actual, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)


def test_a_layer_begins_near_an_lstm() -> None:
    """Biases of zero and small products make gates of about 1, so that rounds disturb no training at its start."""
    torch.manual_seed(0)
    core = Mogrifier(MogrifierConfig(hidden=64, rank=8, **QUIET), 64, 64)
    for layer in core.layers:
        for weights in layer.rounds.values():  # type: ignore[union-attr, operator]
            right = weights.right  # type: ignore[union-attr]
            gate = 2 * torch.sigmoid(torch.randn(100, 64) @ right.t() @ weights.left.t() + weights.bias)  # type: ignore[union-attr, operator]
            assert 0.05 < (gate - 1).std() < 0.5 and abs(gate.mean() - 1) < 0.05


@pytest.mark.full
@pytest.mark.parametrize("rank", [None, 3])
@given(rounds=st.integers(0, 5), layers=st.integers(1, 3))
def test_training_is_the_equations_with_the_same_masks(rank: int | None, rounds: int, layers: int) -> None:
    torch.manual_seed(0)
    sizes = [6, *[8] * (layers - 1), 7]
    config = MogrifierConfig(layers=layers, hidden=8, rounds=rounds, rank=rank, **dict.fromkeys(DROPOUTS, 0.3))
    core = Mogrifier(config, 6, 7).double().train()
    embedded = torch.randn(ROWS, 3, 6, dtype=torch.float64, requires_grad=True)
    state = LSTMState(*(tuple(torch.randn(ROWS, n, dtype=torch.float64) for n in sizes[1:]) for _ in range(2)))
    masks: list[Tensor] = []
    draw = dropout.keep_mask
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dropout, "keep_mask", lambda *a: masks.append(draw(*a)) or masks[-1])
        fast = core(embedded, state)
    x, left = embedded * masks[0], masks[1:]
    for number, layer in enumerate(core.layers):
        if number:
            x = x * left.pop(0)
        of_state = left.pop(0)
        assert of_state.shape == (ROWS, sizes[number + 1])
        weights = [layer.weight_ih, layer.weight_hh, layer.bias]
        made = [Round(r.left, r.right, r.bias, left.pop(0)) for r in layer.rounds.values()]  # type: ignore[union-attr, operator]
        h, c = state.hidden[number], state.cell[number]
        x, h, c = naive([x, h, c, *weights], made, of_state)  # type: ignore[list-item]
        torch.testing.assert_close(fast.layers[number], x, rtol=0, atol=1e-10)
        torch.testing.assert_close(fast.state.hidden[number], h, rtol=0, atol=1e-10)
        torch.testing.assert_close(fast.state.cell[number], c, rtol=0, atol=1e-10)
    torch.testing.assert_close(fast.dropped, x * left.pop(0), rtol=0, atol=1e-10)
    assert not left
    every = [embedded, *core.parameters()]
    actual, expected = (torch.autograd.grad(y.sin().sum(), every) for y in (fast.layers[-1], x))
    for mine, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", DROPOUTS)
def test_every_dropout_alone_makes_training_differ_from_evaluation(name: str) -> None:
    check_dropout(mogrifier, DROPOUTS, name)
