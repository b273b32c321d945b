"""The trellis network against loops over its equations, what its levels let it see, and its dropout."""

from typing import Any

import pytest
import torch
from catalogue import MIXTURE, TYPES, trellis
from checks import check_bfloat16, check_dropout
from hypothesis import given
from hypothesis import strategies as st
from references import trellis as naive
from torch import Tensor

from backstory.config import TrellisConfig
from backstory.models import MixtureOfSoftmaxes, Softmax, dropout, flatten
from backstory.models.cores import Trellis
from backstory.utils.errors import UserError

ROWS, INPUTS, UNITS = 2, 3, 4
DROPOUTS = ("input_dropout", "layer_dropout", "output_dropout", "weight_drop")
QUIET = dict.fromkeys(DROPOUTS, 0.0)


def core(output: int = UNITS, **settings: Any) -> Trellis:
    torch.manual_seed(0)
    chosen: dict[str, Any] = {"hidden": UNITS}
    made = Trellis(TrellisConfig(**chosen | settings), INPUTS, output).double()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn_like(p) * 0.5)
    return made


def embedded(steps: int) -> Tensor:
    return torch.randn(ROWS, steps, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, UNITS),
    st.booleans(),
    st.none() | st.integers(1, 3),
    st.sampled_from([0.0, 0.3]),
)
def test_values_and_gradients_are_the_equations(
    levels: int, steps: int, output: int, weight_norm: bool, auxiliary: int | None, probability: float
) -> None:
    made = core(
        output,
        levels=levels,
        weight_norm=weight_norm,
        auxiliary=auxiliary,
        **dict.fromkeys(DROPOUTS, probability),
    ).train()
    drawn: list[Tensor] = []
    xs, draw = embedded(steps).requires_grad_(), dropout.keep_mask
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dropout, "keep_mask", lambda *a: drawn.append(draw(*a)) or drawn[-1])
        actual = made(xs, made.start(ROWS))
    inner = [] if auxiliary is None else list(range(auxiliary, levels, auxiliary))
    if probability:
        first, into, across, level, *outputs = drawn
    else:
        first, level, into, across = (
            torch.ones(ROWS, 1, INPUTS),
            torch.ones(ROWS, UNITS),
            torch.ones(()),
            torch.ones(()),
        )
        outputs = [torch.ones(())] * (len(inner) + 1)
    weights, slow = dict(made.named_parameters()), []
    for row in range(ROWS):
        masks = {"input": first[row, 0], "level": level[row], "weight_ih": into, "weight_hh": across}
        slow.append(naive(levels, weights, xs[row], masks))
    assert len(actual.layers) == len(outputs) == len(inner) + 1
    for number, mask, mine, dropped in zip(
        [*inner, levels], outputs, actual.layers, [*actual.inner_levels, actual.dropped], strict=True
    ):
        expected = torch.stack([torch.stack(slow[row][number - 1]) for row in range(ROWS)])[:, :, UNITS - output :]
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(dropped, expected * mask, rtol=0, atol=1e-10)
    every = [xs, *(p for p in made.parameters() if p.requires_grad)]
    gradients = (
        torch.autograd.grad(y.sin().sum(), every, allow_unused=True, materialize_grads=True)
        for y in (actual.layers[-1], expected)
    )
    for mine, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-10)


@given(st.integers(1, 6), st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_a_text_in_pieces_is_the_text(levels: int, sizes: list[int]) -> None:
    made, text = core(levels=levels).eval(), embedded(sum(sizes))
    whole, state, pieces = made(text, made.start(ROWS)), made.start(ROWS), []
    for piece in text.split(sizes, 1):
        output = made(piece, state)
        state = output.state
        pieces.append(output.dropped)
    torch.testing.assert_close(torch.cat(pieces, 1), whole.dropped, rtol=0, atol=1e-12)
    torch.testing.assert_close(flatten(state), flatten(whole.state), rtol=0, atol=1e-12)


@pytest.mark.parametrize("levels", [1, 4])
def test_each_level_sees_one_token_further_back(levels: int) -> None:
    made, steps = core(levels=levels).eval(), 9
    first, other = embedded(steps), embedded(steps)
    other[:, 1] += 1
    changed = (made(first, made.start(ROWS)).dropped != made(other, made.start(ROWS)).dropped).any(2).all(0)
    assert changed.tolist() == [0 < t <= 1 + levels for t in range(steps)]


@pytest.mark.parametrize("levels", [1, 2])
def test_weights_that_no_level_reads_are_not_trained(levels: int) -> None:
    """Processes that share a batch wait for the gradient of every weight that is."""
    model = trellis(levels=levels).train()
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert ("core.weight_hh" in trained) == ("core.scale_hh" in trained) == (levels > 1)
    tokens = torch.randint(TYPES, (2, 5))
    model(tokens, model.start(2))[0].log_prob(tokens).mean().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == trained


def test_inner_levels_predict_in_training_with_the_same_head() -> None:
    tokens = torch.randint(TYPES, (2, 5))
    for model, kind in ((trellis(auxiliary=4), Softmax), (trellis(MIXTURE, auxiliary=5), MixtureOfSoftmaxes)):
        prediction, _ = model.train()(tokens, model.start(2))
        assert prediction.activations is not None
        actual = prediction.activations.inner_predictions
        assert len(actual) == 2 and all(isinstance(one, kind) and one.weight is model.head.weight for one in actual)
        assert not torch.equal(actual[0].log_probs(), actual[1].log_probs())
        assert not model.eval()(tokens, model.start(2))[0].activations.inner_predictions  # type: ignore[union-attr]


def test_weights_begin_with_rows_near_one_half() -> None:
    for units in (10, 200):
        made = Trellis(TrellisConfig(hidden=units, levels=2), units, units).eval()
        assert made.scale_hh is not None and 0.35 < made.scale_hh.mean() < 0.65
        torch.testing.assert_close(made._weight(made.weight_hh, made.scale_hh), made.weight_hh)


def test_bfloat16_stays_near_float32() -> None:
    check_bfloat16(lambda: Trellis(TrellisConfig(hidden=32, levels=10, **QUIET), 24, 24), 0.02, 0.03)


@pytest.mark.parametrize("name", DROPOUTS)
def test_every_dropout_alone_makes_training_differ_from_evaluation(name: str) -> None:
    check_dropout(trellis, DROPOUTS, name)


def test_an_output_larger_than_a_level_is_refused() -> None:
    with pytest.raises(UserError, match=r"model\.core\.hidden must be at least 6, not 5"):
        trellis(hidden=5)
