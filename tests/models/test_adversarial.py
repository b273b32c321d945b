"""The softmax trained against the worst shift of the target's weights: against logits that are written out and shifted."""

import math
from dataclasses import replace

import pytest
import torch
from catalogue import MODELS, PREDICTIONS, TYPES, mixture, softmax
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from backstory.models import ComposedModel, MixtureOfSoftmaxes, Softmax
from backstory.models.adversarial_shift import largest_shift, shifted, worst_shift
from backstory.models.kernels.linear_log_prob import linear_log_prob

Head = Softmax | MixtureOfSoftmaxes
EPSILONS = [0.005, 0.028, 0.5, 1.0]
BATCH, TIME = 3, 5


def naive_row(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: int, epsilon: float
) -> tuple[Tensor, Tensor]:
    """log p of one target by one softmax, and the same after its logit was lowered: from all the logits, hidden (D,)."""
    logits = weight @ hidden + (0 if bias is None else bias)
    own = weight[target]
    # The worst change of the target's weights is a constant; the state that it is multiplied by is not.
    worst = (-epsilon * own.norm() * hidden / hidden.norm()).detach() * (torch.dot(own, hidden) > 0)
    lowered = logits + torch.dot(worst, hidden) * torch.eye(len(weight), dtype=weight.dtype)[target]
    return torch.log_softmax(logits, 0)[target], torch.log_softmax(lowered, 0)[target]


def naive(head: Head, targets: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Position by position, expert by expert."""
    pairs = []
    for b in range(targets.shape[0]):
        for t in range(targets.shape[1]):
            target = int(targets[b, t])
            if isinstance(head, Softmax):
                pairs.append(naive_row(head.hidden[b, t], head.weight, head.bias, target, epsilon))
                continue
            each = [naive_row(h, head.weight, head.bias, target, epsilon) for h in head.latents[b, t]]
            both = [torch.stack(scores) + head.log_prior[b, t] for scores in zip(*each, strict=True)]
            pairs.append(tuple(torch.logsumexp(scores, 0) for scores in both))
    plain, lowered = (torch.stack(scores).view(targets.shape) for scores in zip(*pairs, strict=True))
    return plain, lowered


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("lstm")])
def test_values_and_gradients_are_those_of_shifted_logits(name: str, epsilon: float) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().double().eval()
    assert isinstance(model, ComposedModel)
    with torch.no_grad():
        for weight in {model.embedding.weight, model.head.weight}:
            weight.mul_(20)  # so that the shifts matter, and the angles are of both kinds
    # Every other type or so, so that targets repeat.
    text, targets = torch.randint(TYPES, (BATCH, TIME)), (torch.arange(BATCH * TIME) % 9).view(BATCH, TIME)
    head, _ = model(text, model.start(BATCH))
    assert isinstance(head, Softmax | MixtureOfSoftmaxes)
    actual, expected = head.shifted_log_prob(targets, epsilon), naive(head, targets, epsilon)
    lowered = actual[0] - actual[1]
    assert lowered.max() > epsilon / 10
    if isinstance(head, Softmax):
        assert lowered.min() == 0  # where the angle is obtuse
    parameters = list(model.parameters())
    for mine, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-12)
        gradients = (torch.autograd.grad(x.sin().sum(), parameters, retain_graph=True) for x in (mine, reference))
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


@given(st.lists(st.integers(0, 3), min_size=BATCH * TIME, max_size=BATCH * TIME), st.floats(0, 1), st.integers(0, 99))
@pytest.mark.parametrize("make", [softmax, mixture])
def test_every_occurrence_of_a_target_has_its_own_shift(make, chosen: list[int], epsilon: float, seed: int) -> None:
    torch.manual_seed(seed)
    head, targets = make(BATCH, TIME), torch.tensor(chosen).view(BATCH, TIME)
    plain, lowered = head.shifted_log_prob(targets, epsilon)
    assert torch.equal(plain, head.log_prob(targets))
    assert (lowered <= plain).all()
    torch.testing.assert_close(lowered, naive(head, targets, epsilon)[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "name", [name for name in PREDICTIONS if name.startswith(("softmax", "mixture")) and "tempered" not in name]
)
def test_no_radius_is_the_plain_likelihood_bit_for_bit(name: str) -> None:
    torch.manual_seed(0)
    head, targets = PREDICTIONS[name](BATCH, TIME), torch.randint(TYPES, (BATCH, TIME))
    assert isinstance(head, Softmax | MixtureOfSoftmaxes)
    plain, lowered = head.shifted_log_prob(targets, 0.0)
    assert torch.equal(plain, lowered) and torch.equal(plain, head.log_prob(targets))


def test_a_row_at_a_right_or_an_obtuse_angle_is_not_shifted() -> None:
    hidden = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 0.0]])
    weight = torch.tensor([[3.0, 4.0], [0.0, 5.0], [-3.0, 4.0]])
    assert worst_shift(hidden, weight, torch.tensor([0, 1, 2, 0]), 0.5).tolist() == [5.0, 0.0, 0.0, 0.0]


@given(st.integers(0, 999), st.floats(0.001, 1.0))
def test_nothing_in_the_ball_lowers_the_logit_further(seed: int, epsilon: float) -> None:
    torch.manual_seed(seed)
    hidden, weight = torch.randn(4, dtype=torch.float64), torch.randn(1, 4, dtype=torch.float64)
    shift = worst_shift(hidden, weight, torch.tensor(0), epsilon)
    radius = epsilon * weight.norm()
    worst = -radius * hidden / hidden.norm()
    logit = weight[0] @ hidden
    assert shift.item() == (pytest.approx((-worst @ hidden).item()) if logit > 0 else 0)
    inside = torch.nn.functional.normalize(torch.randn(50, 4, dtype=torch.float64)) * radius
    assert ((weight[0] + inside) @ hidden >= logit + worst @ hidden - 1e-12).all()


@pytest.mark.parametrize("make", [softmax, mixture])
def test_the_gradient_of_a_state_is_that_of_the_worst_loss(make) -> None:
    """Danskin's theorem: by finite differences, in which the worst change follows the state."""
    torch.manual_seed(0)
    head, targets = make(BATCH, TIME), torch.randint(TYPES, (BATCH, TIME))
    name = "hidden" if isinstance(head, Softmax) else "latents"
    vectors = getattr(head, name).detach().requires_grad_()
    assert vectors.dtype == torch.float64

    def loss(moved: Tensor) -> Tensor:
        return replace(head, **{name: moved}).shifted_log_prob(targets, 0.5)[1]

    assert torch.autograd.gradcheck(loss, (vectors,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_shift_is_right_where_the_target_is_certain(dtype: torch.dtype) -> None:
    """There 1 - p is rounded off; the loss of the shift is not lost with it."""
    hidden, weight = torch.full((1, 9), 4.0, dtype=dtype), torch.full((2, 9), 3.0, dtype=dtype)
    shift = worst_shift(hidden, weight, torch.tensor([0]), 1.0)
    assert shift.item() == pytest.approx(largest_shift(dtype)) and shift.dtype == dtype
    log_prob = -torch.logspace(-18, 0, 50, dtype=torch.float64)
    exact = log_prob - torch.log1p(-torch.expm1(log_prob) * torch.expm1(shift.double()))
    torch.testing.assert_close(shifted(log_prob.to(dtype), shift).double(), exact, rtol=1e-4, atol=0.03)


@given(st.floats(-700, -1e-9), st.floats(0, largest_shift(torch.float64)))
def test_a_shift_divides_the_odds(log_prob: float, shift: float) -> None:
    actual = shifted(torch.tensor(log_prob, dtype=torch.float64), torch.tensor(shift, dtype=torch.float64)).item()
    expected = log_prob - math.log(math.exp(log_prob) - math.expm1(log_prob) * math.exp(shift))
    assert actual == pytest.approx(expected, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("chunk", [TYPES, 1 << 24], ids=["recomputed", "kept"])
def test_gradients_are_the_finite_differences(chunk: int) -> None:
    torch.manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*s, dtype=torch.float64).requires_grad_() for s in ((7, 4), (TYPES, 4), (TYPES,))
    )
    targets, shift = torch.randint(TYPES, (7,)), torch.rand(7, dtype=torch.float64) * 5
    assert torch.autograd.gradcheck(
        lambda h, w, b: shifted(linear_log_prob(h, w, b, targets, chunk), shift), (hidden, weight, bias)
    )


@pytest.mark.parametrize("length", [1e-30, 1.0, 1e3, 1e6])
def test_extreme_logits_stay_finite(length: float) -> None:
    hidden = torch.tensor([[[length, 0.0]], [[-length, 0.0]], [[0.0, 0.0]]], requires_grad=True)
    weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.5, 1.0]], requires_grad=True)
    plain, lowered = Softmax(None, hidden, weight, None).shifted_log_prob(torch.tensor([[0], [0], [2]]), 1.0)
    assert lowered.isfinite().all() and (lowered <= plain).all()
    lowered.sum().backward()
    assert hidden.grad is not None and hidden.grad.isfinite().all()
    assert weight.grad is not None and weight.grad.isfinite().all()


@pytest.mark.parametrize("epsilon", [0.005, 0.028])
@pytest.mark.parametrize("experts", [0, 3])
def test_bfloat16_stays_near_float32(experts: int, epsilon: float) -> None:
    torch.manual_seed(0)
    shape = (2, 20, experts, 32) if experts else (2, 20, 32)
    hidden, weight, bias = (torch.randn(*s).requires_grad_() for s in (shape, (1000, 32), (1000,)))
    prior = torch.log_softmax(torch.randn(2, 20, experts), 2)
    targets, actual = torch.randint(1000, (2, 20)), []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            narrow = hidden.bfloat16() if enabled else hidden
            head = (
                MixtureOfSoftmaxes(None, narrow, prior, weight, bias)
                if experts
                else Softmax(None, narrow, weight, bias)
            )
            plain, lowered = head.shifted_log_prob(targets, epsilon)
        assert lowered.dtype == torch.float32
        gradients = torch.autograd.grad(lowered.sum(), [hidden, weight, bias])
        actual.append((plain - lowered, gradients))
    (expected, reference), (shift, gradients) = actual
    assert expected.max() > 10 * epsilon
    assert (shift - expected).norm() < 0.02 * expected.norm()
    for mine, other in zip(gradients, reference, strict=True):
        assert (mine - other).norm() < 0.03 * other.norm()
