"""The likelihood with AR and TAR against loops over their definitions."""

import pytest
import torch
from torch import Tensor

from backstory.models import Activations, Blend, Softmax
from backstory.training import Likelihood
from backstory.training.objectives import likelihood

BATCH, TIME, UNITS, TYPES = 2, 4, 3, 5


def prediction(time: int = TIME) -> tuple[Softmax, Tensor]:
    torch.manual_seed(0)
    raw, dropped = (torch.randn(BATCH, time, UNITS, dtype=torch.float64).requires_grad_() for _ in range(2))
    first = torch.randn(BATCH, time, 7, dtype=torch.float64)
    weight = torch.randn(TYPES, UNITS, dtype=torch.float64)
    made = Softmax(Activations(first, (first, raw), dropped, dropped), dropped, weight, None)
    return made, torch.randint(TYPES, (BATCH, time))


def naive(made: Softmax, targets: Tensor, alpha: float, beta: float) -> Tensor:
    assert made.activations is not None
    raw, dropped = made.activations.last_raw, made.activations.last_dropped
    likelihood, ar, tar, time = torch.zeros(()), torch.zeros(()), torch.zeros(()), targets.shape[1]
    for b in range(BATCH):
        for t in range(time):
            logits = [(row * dropped[b, t]).sum() for row in made.weight]
            total = sum(logit.exp() for logit in logits)
            likelihood = likelihood - (logits[targets[b, t]].exp() / total).log()
            for unit in range(UNITS):
                ar = ar + dropped[b, t, unit] ** 2
                if t:
                    tar = tar + (raw[b, t, unit] - raw[b, t - 1, unit]) ** 2
    loss = likelihood / (BATCH * time) + alpha * ar / (BATCH * time * UNITS)
    return loss + beta * tar / (BATCH * (time - 1) * UNITS) if time > 1 else loss


@pytest.mark.parametrize("time", [1, TIME])
@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (2.0, 0.0), (0.0, 1.0), (2.0, 1.0)])
def test_loss_and_gradients_are_the_definition(alpha: float, beta: float, time: int) -> None:
    made, targets = prediction(time)
    assert made.activations is not None
    loss, _ = Likelihood(alpha, beta)(made, targets)
    # The regularizers are computed in float32, as they are in training.
    tolerance = 1e-12 if alpha == beta == 0 else 1e-6
    torch.testing.assert_close(loss, naive(made, targets, alpha, beta), rtol=0, atol=tolerance, check_dtype=False)
    leaves = [made.activations.last_raw, made.activations.last_dropped]
    expected = naive(made, targets, alpha, beta)
    for mine, reference in zip(gradients(loss, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=tolerance)


def gradients(loss: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


def test_the_figures_are_the_likelihood_alone() -> None:
    made, targets = prediction()
    _, figures = Likelihood(2.0, 1.0)(made, targets)
    torch.testing.assert_close(figures["nats"], -made.log_prob(targets).mean())
    assert not figures["nats"].requires_grad


def test_regularizers_need_activations() -> None:
    made, targets = prediction()
    bare = Softmax(None, made.hidden, made.weight, None)
    with pytest.raises(ValueError, match="activations"):
        Likelihood(1.0)(bare, targets)
    with pytest.raises(ValueError, match="activations"):
        Likelihood(0.0, 1.0)(bare, targets)
    assert torch.equal(Likelihood()(bare, targets)[0], Likelihood()(made, targets)[0])


def test_adversarial_training_shifts_what_is_trained_and_not_the_figures() -> None:
    made, targets = prediction()
    plain, figures = Likelihood(2.0, 1.0)(made, targets)
    loss, told = Likelihood(2.0, 1.0, 0.3)(made, targets)
    true, lowered = made.shifted_log_prob(targets, 0.3)
    assert told.keys() == figures.keys() and torch.equal(told["nats"], figures["nats"])
    assert not told["nats"].requires_grad
    torch.testing.assert_close(loss - plain, (true - lowered).mean(), rtol=0, atol=1e-6)
    assert loss > plain


def test_without_a_radius_nothing_is_computed_twice() -> None:
    made, targets = prediction()
    log_prob, trained = likelihood(made, targets, 0.0)
    assert log_prob is trained and torch.equal(trained, made.log_prob(targets))


def test_a_prediction_without_logits_of_its_own_cannot_be_shifted() -> None:
    made, targets = prediction()
    blend = Blend(None, made, made, torch.zeros(BATCH, TIME, 2))
    Likelihood()(blend, targets)
    with pytest.raises(ValueError, match="needs a softmax or a mixture of them, not Blend"):
        Likelihood(adversarial=0.1)(blend, targets)
