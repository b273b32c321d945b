"""The sampled softmax against the whole softmax and a loop over its definition."""

import math

import pytest
import torch
from torch import Tensor

from backstory.config import ModelConfig, RunConfig, SoftmaxConfig, TrainingConfig
from backstory.models import MixtureOfSoftmaxes, Softmax
from backstory.models.sampled_softmax import sampled_softmax
from backstory.training.objectives import Likelihood, build_objective

BATCH, TIME, UNITS, TYPES, EXPERTS, FREQUENT = 2, 6, 4, 40, 3, 5
Kind = type[Softmax] | type[MixtureOfSoftmaxes]
KINDS = pytest.mark.parametrize("kind", [Softmax, MixtureOfSoftmaxes])


def prediction(kind: Kind, bias: bool = True) -> tuple[Softmax | MixtureOfSoftmaxes, list[Tensor], Tensor]:
    """Return a prediction, the tensors it is made of, and targets."""
    torch.manual_seed(0)
    shape = (BATCH, TIME, UNITS) if kind is Softmax else (BATCH, TIME, EXPERTS, UNITS)
    hidden, weight = (torch.randn(s, dtype=torch.float64).requires_grad_() for s in (shape, (TYPES, UNITS)))
    offset = torch.randn(TYPES, dtype=torch.float64).requires_grad_() if bias else None
    targets = torch.randint(TYPES, (BATCH, TIME))
    leaves = [hidden, weight, *([] if offset is None else [offset])]
    if kind is Softmax:
        return Softmax(None, hidden, weight, offset), leaves, targets
    prior = torch.randn(BATCH, TIME, EXPERTS, dtype=torch.float64).log_softmax(2)
    return MixtureOfSoftmaxes(None, hidden, prior, weight, offset), leaves, targets


@KINDS
@pytest.mark.parametrize("bias", [True, False])
def test_drawing_every_word_is_the_whole_softmax_in_values_and_gradients(kind: Kind, bias: bool) -> None:
    whole, leaves, targets = prediction(kind, bias)
    part, positions = sampled_softmax(whole, targets, FREQUENT, TYPES)
    expected, log_prob = whole.log_prob(targets), part.log_prob(positions)
    torch.testing.assert_close(log_prob, expected, rtol=0, atol=1e-12)
    for mine, reference in zip(*(torch.autograd.grad(x.sum(), leaves) for x in (log_prob, expected)), strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-12)


def test_a_drawn_word_counts_for_those_it_stands_for() -> None:
    whole, leaves, targets = prediction(Softmax)
    hidden, weight, bias = (x.detach() for x in leaves)
    torch.manual_seed(3)
    part, positions = sampled_softmax(whole, targets, FREQUENT, 7)
    certain = set(range(FREQUENT)) | set(targets.flatten().tolist())
    others = [word for word in range(TYPES) if word not in certain]
    torch.manual_seed(3)
    drawn = [others[i] for i in torch.randperm(len(others))[:7].tolist()]
    for b in range(BATCH):
        for t in range(TIME):
            logit = [float(weight[word] @ hidden[b, t] + bias[word]) for word in range(TYPES)]
            total = sum(math.exp(logit[word]) for word in certain)
            total += len(others) / 7 * sum(math.exp(logit[word]) for word in drawn)
            expected = logit[targets[b, t]] - math.log(total)
            assert part.log_prob(positions)[b, t].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.full
def test_the_normaliser_is_unbiased() -> None:
    whole, (hidden, weight, bias), targets = prediction(Softmax)
    logits = (hidden @ weight.t() + bias).detach()
    at_target = logits.gather(2, targets[..., None])[..., 0]
    sums = torch.zeros(BATCH, TIME, dtype=torch.float64)
    draws = 4000
    with torch.no_grad():
        for _ in range(draws):
            part, positions = sampled_softmax(whole, targets, FREQUENT, 10)
            sums += (at_target - part.log_prob(positions)).exp()
    torch.testing.assert_close(sums / draws, logits.exp().sum(2), rtol=0.02, atol=0)


def test_training_samples_and_validation_does_not() -> None:
    head = SoftmaxConfig(sampled=10, frequent=FREQUENT)
    objective = build_objective(RunConfig(model=ModelConfig(head=head), training=TrainingConfig()), 0.0)
    assert objective.sampled == (10, FREQUENT)
    whole, _, targets = prediction(Softmax)
    plain = Likelihood()(whole, targets)[0]
    estimate = Likelihood()
    estimate.sampled = (10, FREQUENT)
    assert estimate(whole, targets)[0] != plain
    estimate.sampled = (TYPES, FREQUENT)
    torch.testing.assert_close(estimate(whole, targets)[0], plain, rtol=0, atol=1e-12)


def test_no_negative_target_counts_from_the_end() -> None:
    prediction = Softmax(None, torch.ones(1, 2, 4), torch.ones(5, 4), None)
    with pytest.raises((RuntimeError, IndexError)):
        sampled_softmax(prediction, torch.tensor([[1, -1]]), 2, 2)


def test_a_prediction_without_output_words_cannot_be_sampled() -> None:
    mixture, _, targets = prediction(MixtureOfSoftmaxes)
    objective = Likelihood()
    objective.sampled = (10, FREQUENT)
    with pytest.raises(ValueError, match="sampled softmax needs a softmax or a mixture of them, not Tempered"):
        objective(mixture.tempered(2.0), targets)
