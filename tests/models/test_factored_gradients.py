"""Gradients in factors against whole ones: of a matrix, of the kernels that leave them, and of a model with tied weights."""

import pytest
import torch
from torch import Tensor

from backstory.config import EmbeddingConfig, LSTMConfig, ModelConfig, SoftmaxConfig
from backstory.models import Softmax, build_model
from backstory.models.kernels import linear_log_prob as log_probs
from backstory.models.kernels import recurrence
from backstory.models.kernels.factored_gradients import FactoredGradients, collector, embedding, factoring, whole


def test_a_gradient_is_the_sum_of_its_parts_however_it_is_cut() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(7, 3)
    parts = [(torch.randn(k, 7), torch.randn(k, 3)) for k in (5, 2)]
    numbers, rows, rest = torch.tensor([6, 0, 6]), torch.randn(3, 3), torch.randn(7, 3)
    expected = sum(left.t() @ right for left, right in parts) + rest
    expected.index_add_(0, numbers, rows)
    gradients = FactoredGradients([matrix])
    gradient = gradients.begin(matrix)
    for left, right in parts:
        gradient.add_product(left, right)
    gradient.add_rows(numbers, rows)
    gradient.rest = rest
    torch.testing.assert_close(whole(gradients.of(matrix)), expected)
    for size in (1, 2, 7):
        pieces = []
        for first in range(0, 7, size):
            pieces.append(torch.full((min(size, 7 - first), 3), torch.nan))  # what was there before does not matter
            gradient.write(first, pieces[-1])
        torch.testing.assert_close(torch.cat(pieces), expected)


def test_only_the_matrix_itself_is_taken() -> None:
    matrix = torch.randn(4, 4, requires_grad=True)
    gradients = FactoredGradients([matrix])
    assert gradients.takes(matrix) and gradients.takes(matrix.detach())
    assert not gradients.takes(matrix * 1) and not gradients.takes(matrix.t()) and not gradients.takes(matrix[:2])
    assert gradients.of(matrix) is None
    with pytest.raises(RuntimeError), factoring(gradients):
        assert collector() is gradients
        raise RuntimeError
    assert collector() is None


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_model_leaves_factors_of_its_whole_gradients(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tied matrix gets products from the softmax and rows from the embedding; a repeated token adds up."""
    monkeypatch.setattr(recurrence, "OWN_FROM", 1)
    torch.manual_seed(0)
    config = ModelConfig(EmbeddingConfig(size=6), LSTMConfig(layers=2, hidden=5), head=SoftmaxConfig(tied=tied))
    model = build_model(config, 11).eval()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    tokens, targets = torch.tensor([[3, 1, 3, 10], [0, 3, 9, 9]]), torch.tensor([[1, 3, 10, 0], [3, 9, 9, 2]])

    def gradients(factors: FactoredGradients | None) -> list[Tensor | None]:
        with factoring(factors):
            loss = -model(tokens, model.start(2))[0].log_prob(targets).mean()
        return list(torch.autograd.grad(loss, matrices, allow_unused=True))

    expected, factors = gradients(None), FactoredGradients(matrices)
    assert gradients(factors) == [None] * len(matrices)
    for matrix, grad in zip(matrices, expected, strict=True):
        torch.testing.assert_close(whole(factors.of(matrix)), grad, rtol=1e-5, atol=1e-7)


def test_rows_of_an_embedding_that_does_not_learn_are_not_left() -> None:
    weight = torch.randn(5, 2)
    factors = FactoredGradients([weight])
    with factoring(factors):
        rows = embedding(torch.tensor([[1, 4]]), weight)
    torch.testing.assert_close(rows, weight[[1, 4]][None])
    assert not rows.requires_grad and factors.of(weight) is None


@pytest.mark.usefixtures("torch_passes")
def test_a_score_is_not_computed_again_to_learn_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    computed, residuals = [], log_probs._residuals
    monkeypatch.setattr(log_probs, "_residuals", lambda *a: computed.append(1) or residuals(*a))
    torch.manual_seed(0)
    hidden, weight = torch.randn(2, 2, 3, requires_grad=True), torch.randn(9, 3, requires_grad=True)
    across = hidden.transpose(0, 1)  # as the layers of few positions return it: to flatten it is to copy it
    targets, others = torch.tensor([[1, 8], [0, 1]]), torch.tensor([[1, 8], [0, 2]])

    def learned(prediction: Softmax, targets: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(prediction.log_prob(targets).sum(), [hidden, weight])

    expected = [learned(Softmax(None, across, weight, None), t) for t in (targets, others)]
    prediction = Softmax(None, across, weight, None)
    with torch.no_grad():
        prediction.log_prob(targets).zero_()  # the caller's own
        scored = prediction.log_prob(targets)
        plain = torch.log_softmax(across @ weight.t(), 2).gather(2, targets[..., None])[..., 0]
    torch.testing.assert_close(scored, plain)
    for words, wanted, count in ((targets, expected[0], 0), (others, expected[1], 1)):
        computed.clear()
        assert all(
            torch.equal(mine, reference) for mine, reference in zip(learned(prediction, words), wanted, strict=True)
        )
        assert len(computed) == count
    targets[1, 1] = 2  # what was scored are the targets as they stood then
    assert all(torch.equal(a, b) for a, b in zip(learned(prediction, targets), expected[1], strict=True))
