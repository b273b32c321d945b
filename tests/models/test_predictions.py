"""Contract of every kind of prediction: sum to one, quote itself, select, temper, and interpolate."""

import math
from collections.abc import Callable

import pytest
import torch
from catalogue import PREDICTIONS, TYPES, activations, interpolation, leaf, mixture, softmax
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from backstory.models import Interpolation, Prediction, Tempered
from backstory.models import prediction as module
from backstory.models.positions import all_positions
from backstory.models.prediction import Pointer

BATCH, TIME = 2, 5


@pytest.fixture(params=PREDICTIONS)
def prediction(request: pytest.FixtureRequest) -> Prediction:
    torch.manual_seed(0)
    return PREDICTIONS[request.param](BATCH, TIME)


@pytest.fixture
def targets() -> Tensor:
    return torch.randint(TYPES, (BATCH, TIME), generator=torch.Generator().manual_seed(2))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_prediction_is_equal_to_itself_alone(prediction: Prediction, request: pytest.FixtureRequest) -> None:
    """Tensors have no one answer to whether they are equal."""
    other = PREDICTIONS[request.node.callspec.params["prediction"]](BATCH, TIME)
    assert prediction == prediction and prediction != other and len({prediction, other}) == 2


def test_sums_to_one(prediction: Prediction) -> None:
    actual = prediction.log_probs()
    assert actual.shape == (BATCH, TIME, TYPES)
    close(actual.exp().sum(2), torch.ones(BATCH, TIME, dtype=torch.float64))


def test_quotes_the_distribution(prediction: Prediction, targets: Tensor) -> None:
    close(prediction.log_prob(targets), prediction.log_probs().gather(2, targets[..., None])[..., 0])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t + 0.7, "targets must be a tensor of whole numbers, not torch.float32"),
        (lambda t: t > 2, "targets must be a tensor of whole numbers, not torch.bool"),
        (
            lambda t: t.to(torch.uint8),
            r"targets must be of torch.int64 or torch.int32, not torch.uint8; use targets.long\(\)",
        ),
        (lambda t: t.to("meta"), "targets must be on cpu, as the model is, not on meta"),
    ],
)
def test_refuses_targets_that_torch_would_round_or_not_read(
    prediction: Prediction, targets: Tensor, spoil: Callable[[Tensor], Tensor], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        prediction.log_prob(spoil(targets))


@pytest.mark.parametrize("spoil", [torch.t, torch.flatten, lambda targets: targets[:1]])
def test_refuses_targets_of_another_shape_although_they_may_be_as_many(
    prediction: Prediction, targets: Tensor, spoil: Callable[[Tensor], Tensor]
) -> None:
    if prediction.activations is None:
        pytest.skip("it does not know its shape")
    with pytest.raises(ValueError, match=r"targets must be of shape \(2, 5\), not \("):
        prediction.log_prob(spoil(targets))


def test_gradients_of_both_paths_agree(prediction: Prediction, targets: Tensor) -> None:
    def gradients(scores: Tensor) -> list[Tensor]:
        return torch.autograd.grad(scores.cos().sum(), leaves(prediction))

    for cheap, full in zip(
        gradients(prediction.log_prob(targets)),
        gradients(prediction.log_probs().gather(2, targets[..., None])[..., 0]),
        strict=True,
    ):
        torch.testing.assert_close(cheap, full, rtol=1e-8, atol=1e-10)
        assert cheap.abs().max() > 0


def leaves(prediction: Prediction) -> list[Tensor]:
    """The tensors that a prediction was made of and that take a gradient."""
    actual = []
    for value in vars(prediction).values():
        if isinstance(value, Prediction):
            actual += leaves(value)
        elif isinstance(value, Tensor) and value.requires_grad:
            actual.append(value)
    return actual


@given(st.lists(st.tuples(st.integers(0, BATCH - 1), st.integers(0, TIME - 1)), min_size=1, max_size=8))
@pytest.mark.parametrize("name", PREDICTIONS)
def test_selecting_is_indexing(name: str, places: list[tuple[int, int]]) -> None:
    torch.manual_seed(0)
    prediction = PREDICTIONS[name](BATCH, TIME)
    rows, times = (torch.tensor(index) for index in zip(*places, strict=True))
    targets = torch.arange(len(places))[:, None] % TYPES
    selected = prediction.select(rows, times)
    close(selected.log_probs(), prediction.log_probs()[rows, times].unsqueeze(1))
    close(selected.log_prob(targets), prediction.log_probs()[rows, times].gather(1, targets))
    if prediction.activations is None:
        assert selected.activations is None
    else:
        assert selected.activations is not None
        assert torch.equal(selected.activations.head_input[:, 0], prediction.activations.head_input[rows, times])
        assert torch.equal(selected.activations.layers[0][:, 0], prediction.activations.layers[0][rows, times])


@pytest.mark.parametrize("other", ["rows", "times"])
def test_an_index_on_another_device_is_refused(prediction: Prediction, other: str) -> None:
    index = {name: torch.tensor([0, 1], device="meta" if name == other else "cpu") for name in ("rows", "times")}
    with pytest.raises(ValueError, match=f"{other} must be on cpu, as the model is, not on meta"):
        prediction.select(**index)


@pytest.mark.parametrize("rows", [0, 1, 3, 100])
def test_tables_are_the_distributions_at_the_positions_in_turn(
    prediction: Prediction, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TABLE", rows * TYPES)
    at = torch.tensor([1, 0, 1, 1, 0]), torch.tensor([2, 0, 2, 0, 1])
    pieces = list(prediction.tables(*at))
    assert max(len(table) for _, _, table in pieces) <= max(1, rows)
    r, t, tables = (torch.cat(values) for values in zip(*pieces, strict=True))
    assert torch.equal(r, at[0]) and torch.equal(t, at[1])
    close(tables, prediction.log_probs()[at])
    assert not list(prediction.tables(at[0][:0], at[1][:0]))


def test_all_positions_come_row_after_row() -> None:
    assert [index.tolist() for index in all_positions(torch.zeros(2, 3, 5))] == [
        [0, 0, 0, 1, 1, 1],
        [0, 1, 2, 0, 1, 2],
    ]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_tempering_is_a_power_of_the_distribution(prediction: Prediction, targets: Tensor, temperature: float) -> None:
    tempered = prediction.tempered(temperature)
    power = prediction.log_probs().exp() ** (1 / temperature)
    expected = (power / power.sum(2, keepdim=True)).log()
    close(tempered.log_probs(), expected)
    close(tempered.log_prob(targets), expected.gather(2, targets[..., None])[..., 0])
    assert tempered.activations is prediction.activations


def test_a_tempered_mixture_scores_in_chunks(monkeypatch: pytest.MonkeyPatch, targets: Tensor) -> None:
    torch.manual_seed(0)
    whole = mixture(BATCH, TIME).tempered(2.0)
    expected = whole.log_prob(targets)
    sizes, compute = [], module.MixtureOfSoftmaxes.log_probs

    def note(self: module.MixtureOfSoftmaxes) -> Tensor:
        sizes.append(len(self.latents))
        return compute(self)

    monkeypatch.setattr(module.MixtureOfSoftmaxes, "log_probs", note)
    monkeypatch.setattr(module, "TABLE", 3 * TYPES)
    close(whole.log_prob(targets), expected)
    assert max(sizes) == 3


def test_the_parts_of_an_interpolation_recombine(prediction: Prediction, targets: Tensor) -> None:
    parts = prediction.parts()
    if isinstance(prediction, Tempered):
        power = parts["p"].log_probs().exp() ** (1 / parts["temperature"])
        close(prediction.log_probs().exp(), power / power.sum(2, keepdim=True))
        return
    if not isinstance(prediction, Interpolation):
        assert parts == {}
        return
    gates = (parts["gate_logits"] / parts["temperature"]).exp()
    share = gates[..., 0] / gates.sum(2)
    p, q = parts["p"].log_prob(targets).exp(), parts["q"].log_prob(targets).exp()
    close(prediction.log_prob(targets), ((1 - share) * p + share * q).log())


@pytest.mark.parametrize("shut", [0, 1])
@pytest.mark.parametrize("temperature", [0.01, 1.0])
def test_a_gate_of_minus_infinity_shuts_a_part_off_exactly(targets: Tensor, shut: int, temperature: float) -> None:
    torch.manual_seed(0)
    p, q, gates = softmax(BATCH, TIME), mixture(BATCH, TIME), leaf(BATCH, TIME, 2)
    closed = gates.detach().clone()
    closed[..., shut] = -math.inf
    closed.requires_grad_()
    mixed, open_part, shut_part = Interpolation(None, p, q, closed, temperature), (p, q)[shut], (q, p)[shut]
    assert torch.equal(mixed.log_prob(targets), open_part.log_prob(targets))
    assert torch.equal(mixed.log_probs(), open_part.log_probs())
    for scores in (mixed.log_prob(targets), mixed.log_probs()):
        *actual, at_gate = torch.autograd.grad(scores.sum(), [*leaves(shut_part), *leaves(open_part), closed])
        assert all(gradient.isfinite().all() for gradient in [*actual, at_gate])
        assert all((gradient == 0).all() for gradient in actual[: len(leaves(shut_part))])
        assert any(gradient.abs().max() > 0 for gradient in actual[len(leaves(shut_part)) :])
        assert (at_gate == 0).all()


def test_a_shut_part_inside_a_nested_interpolation(targets: Tensor) -> None:
    torch.manual_seed(0)
    p, q, outer = softmax(BATCH, TIME), mixture(BATCH, TIME), softmax(BATCH, TIME)
    gates = torch.tensor([-math.inf, 0.0], dtype=torch.float64).expand(BATCH, TIME, 2)
    nested = interpolation(Interpolation(None, p, q, gates), outer, BATCH, TIME)
    plain = Interpolation(None, p, outer, nested.gate_logits)
    assert torch.equal(nested.log_prob(targets), plain.log_prob(targets))


def test_low_precision_gates_and_logits_are_summed_in_float32(targets: Tensor) -> None:
    torch.manual_seed(0)
    given = activations(BATCH, TIME)
    hidden, weight = (torch.randn(*shape).bfloat16() for shape in ((BATCH, TIME, 6), (TYPES, 6)))
    part = module.Softmax(given, hidden, weight, None)
    both = Interpolation(given, part, part, torch.randn(BATCH, TIME, 2).bfloat16())
    for prediction in (part, both):
        assert prediction.log_probs().dtype == prediction.log_prob(targets).dtype == torch.float32
        torch.testing.assert_close(prediction.log_probs().exp().sum(2), torch.ones(BATCH, TIME), rtol=0, atol=1e-5)


def test_a_pointer_gives_nothing_to_a_word_that_it_has_nowhere_to_point_to() -> None:
    weights = torch.softmax(leaf(1, 2, 3), 2)
    words, targets = torch.tensor([[[0, 1, 0], [2, 2, 2]]]), torch.tensor([[3, 2]])
    q = Pointer(None, weights, words, TYPES)
    assert q.log_prob(targets)[0, 0] == -torch.inf and q.log_prob(targets)[0, 1] == 0
    assert torch.equal(q.log_probs()[0, 1].exp(), torch.eye(TYPES, dtype=torch.float64)[2])
    p, gates = softmax(1, 2), leaf(1, 2, 2)
    for score in (lambda b: b.log_prob(targets), lambda b: b.log_probs()):
        gradients = torch.autograd.grad(
            score(Interpolation(None, p, q, gates)).sum(), [gates, weights], retain_graph=True
        )
        assert all(g.isfinite().all() and g.abs().max() > 0 for g in gradients)
