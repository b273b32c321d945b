"""The chunked log-softmax at the targets: values, gradients and memory against the plain one."""

import functools

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from backstory.models import MixtureOfSoftmaxes, Softmax, Tempered
from backstory.models import prediction as predictions
from backstory.models.kernels import linear_log_prob as kernel
from backstory.models.kernels.linear_log_prob import linear_log_prob

N, SIZE, TYPES = 7, 4, 11


def arguments(count: int = N) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    numbers = (
        torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((count, SIZE), (TYPES, SIZE), (TYPES,))
    )
    return *numbers, torch.randint(TYPES, (count,))


def plain(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    logits = hidden @ weight.t() + (0 if bias is None else bias)
    return torch.log_softmax(logits, 1).gather(1, targets[:, None])[:, 0]


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("chunk", [1, TYPES, 3 * TYPES, N * TYPES - 1, N * TYPES, 1 << 24])
def test_values_and_gradients_are_those_of_a_log_softmax(chunk: int, biased: bool) -> None:
    hidden, weight, bias, targets = arguments()
    leaves = [hidden, weight, bias] if biased else [hidden, weight]
    actual = linear_log_prob(hidden, weight, bias if biased else None, targets, chunk)
    expected = plain(hidden, weight, bias if biased else None, targets)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    for mine, reference in zip(
        torch.autograd.grad(actual.sin().sum(), leaves), torch.autograd.grad(expected.sin().sum(), leaves), strict=True
    ):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [TYPES, 1 << 24], ids=["recomputed", "kept"])
def test_gradients_are_the_finite_differences(chunk: int) -> None:
    hidden, weight, bias, targets = arguments()
    assert torch.autograd.gradcheck(lambda h, w, b: linear_log_prob(h, w, b, targets, chunk), (hidden, weight, bias))


def test_a_backward_pass_can_be_repeated() -> None:
    hidden, weight, bias, targets = arguments()
    actual = linear_log_prob(hidden, weight, bias, targets).sum()
    first = torch.autograd.grad(actual, [hidden, weight, bias], retain_graph=True)
    again = torch.autograd.grad(actual, [hidden, weight, bias])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_negative_target_counts_from_the_end(dtype: torch.dtype) -> None:
    """Not below the check that spares a GPU: an index there would be taken for another word."""
    h, w, targets = torch.ones(2, 4, dtype=dtype), torch.ones(5, 4, dtype=dtype), torch.tensor([1, -1])
    with pytest.raises((RuntimeError, IndexError)):
        kernel._residuals(h, w, None, targets)


def test_no_positions() -> None:
    hidden, weight, bias, targets = arguments(0)
    actual = linear_log_prob(hidden, weight, bias, targets)
    assert actual.shape == (0,)
    actual.sum().backward()
    assert hidden.grad is not None and hidden.grad.shape == (0, SIZE)
    assert weight.grad is not None and not weight.grad.any()


def test_extreme_logits_stay_finite() -> None:
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0], [0.0]], requires_grad=True)
    actual = linear_log_prob(hidden, weight, None, torch.tensor([1, 1]))
    assert actual.tolist() == [-2e4, 0.0]
    actual.sum().backward()
    assert hidden.grad is not None and hidden.grad.isfinite().all()
    assert weight.grad is not None and weight.grad.isfinite().all()


@pytest.mark.parametrize("chunk", [3000, 1 << 24], ids=["recomputed", "kept"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
def test_bfloat16_stays_near_float32(scale: float, chunk: int) -> None:
    torch.manual_seed(0)
    hidden, weight, bias = (torch.randn(*s).requires_grad_() for s in ((40, 32), (1000, 32), (1000,)))
    with torch.no_grad():
        hidden.mul_(scale / 32**0.5)
    targets = torch.randint(1000, (40,))
    expected = plain(hidden, weight, bias, targets)
    with torch.autocast("cpu", torch.bfloat16):
        actual = linear_log_prob(hidden, weight, bias, targets, chunk)
    assert actual.dtype == torch.float32
    assert actual.isfinite().all() and (actual <= 0).all()
    # A bfloat16 has 8 significant bits, so a logit of size x is known to x / 256.
    assert (actual - expected).abs().max() < 0.02 + expected.abs().max() / 128
    leaves = [hidden, weight, bias]
    for mine, reference in zip(
        torch.autograd.grad(actual.sum(), leaves), torch.autograd.grad(expected.sum(), leaves), strict=True
    ):
        assert mine.dtype == torch.float32
        assert (mine - reference).norm() < (0.02 + 0.01 * scale) * reference.norm()


# --- scored once ---


def predicted(mixture: bool) -> Softmax | MixtureOfSoftmaxes:
    """A prediction at 2 x 3 positions, of which something may be learned."""
    torch.manual_seed(0)
    weight, bias = torch.randn(TYPES, SIZE).requires_grad_(), torch.randn(TYPES).requires_grad_()
    if not mixture:
        return Softmax(None, torch.randn(2, 3, SIZE).requires_grad_(), weight, bias)
    prior = torch.randn(2, 3, 2).log_softmax(2)
    return MixtureOfSoftmaxes(None, torch.randn(2, 3, 2, SIZE).requires_grad_(), prior, weight, bias)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each product with the output weights."""
    rows, usual = [], kernel._products
    monkeypatch.setattr(kernel, "_products", lambda h, *rest: (rows.append(len(h)), usual(h, *rest))[1])
    return rows


@pytest.mark.parametrize("mixture", [False, True], ids=["softmax", "mixture"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_targets_that_were_scored_are_not_multiplied_again(
    mixture: bool, dtype: torch.dtype, products: list[int]
) -> None:
    prediction, targets = predicted(mixture), torch.randint(TYPES, (2, 3))
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        first = prediction.log_prob(targets)
        expected = first.clone()
        first += 1  # what is returned is the caller's
        assert torch.equal(prediction.log_prob(targets.clone()), expected) and len(products) == 1
        others = (targets + 1) % TYPES
        there = prediction.log_probs().gather(2, others[..., None])[..., 0]
        torch.testing.assert_close(prediction.log_prob(others), there, atol=0.05, rtol=0)
        assert len(products) == 2
    with torch.no_grad():
        exact = prediction.log_probs().gather(2, others[..., None])[..., 0]
        torch.testing.assert_close(prediction.log_prob(others), exact, atol=1e-5, rtol=0)
    assert len(products) == (2 if dtype == torch.float32 else 3)


@pytest.mark.parametrize("mixture", [False, True], ids=["softmax", "mixture"])
def test_learning_from_scored_targets_needs_no_logits(mixture: bool, products: list[int]) -> None:
    targets = torch.randint(TYPES, (2, 3))
    fresh, scored = predicted(mixture), predicted(mixture)
    with torch.no_grad():
        scored.log_prob(targets)
    assert len(products) == 1
    actual = scored.log_prob(targets)
    assert len(products) == 1
    expected = fresh.log_prob(targets)
    torch.testing.assert_close(actual, expected)
    for prediction, log_prob in ((scored, actual), (fresh, expected)):
        log_prob.sum().backward()
        assert prediction.weight.grad is not None
    torch.testing.assert_close(scored.weight.grad, fresh.weight.grad)


@pytest.mark.parametrize("mixture", [False, True], ids=["softmax", "mixture"])
def test_scores_that_a_caller_changes_do_not_change_what_is_learned(mixture: bool) -> None:
    targets = torch.randint(TYPES, (2, 3))
    scored, expected = predicted(mixture), predicted(mixture).log_prob(targets)
    with torch.no_grad():
        scored.log_prob(targets).add_(1)
    torch.testing.assert_close(scored.log_prob(targets), expected)


def test_a_tempered_mixture_is_scored_once(products: list[int]) -> None:
    prediction, targets = Tempered(None, predicted(mixture=True), 2.0), torch.randint(TYPES, (2, 3))
    learned = prediction.log_prob(targets)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        first = prediction.log_prob(targets)
        expected = first.clone()
        first += 1  # what is returned is the caller's
        patch.setattr(MixtureOfSoftmaxes, "log_probs", None)
        assert torch.equal(prediction.log_prob(targets.clone()), expected)
        with pytest.raises(TypeError):
            prediction.log_prob((targets + 1) % TYPES)
        with pytest.raises(TypeError), torch.autocast("cpu", torch.bfloat16):
            prediction.log_prob(targets)
    torch.testing.assert_close(learned.detach(), expected)
    assert learned.requires_grad and prediction.log_prob(targets).requires_grad


def test_a_selection_of_a_scored_prediction_is_scored_by_itself() -> None:
    prediction, targets = predicted(mixture=False), torch.randint(TYPES, (2, 3))
    with torch.no_grad():
        whole = prediction.log_prob(targets)
        rows = torch.tensor([1, 0])
        part = prediction.select(rows, rows).log_prob(targets[rows, rows, None])
    torch.testing.assert_close(part[:, 0], whole[rows, rows])


# --- memory ---


class Allocations(TorchDispatchMode):
    """The most elements of any tensor with a dimension of the vocabulary's size that came out of an operation."""

    def __init__(self, types: int) -> None:
        super().__init__()
        self.types, self.largest = types, 0

    def __torch_dispatch__(self, operation, kinds, arguments=(), options=None):
        made = operation(*arguments, **(options or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor) and self.types in tensor.shape:
                self.largest = max(self.largest, tensor.numel())
        return made


VOCABULARY, CHUNK_ROWS = 997, 4


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Elements of a chunk that holds a few rows of logits."""
    chunk = CHUNK_ROWS * VOCABULARY
    monkeypatch.setattr(predictions, "linear_log_prob", functools.partial(linear_log_prob, chunk=chunk))
    monkeypatch.setattr(predictions, "TABLE", chunk)
    return chunk


def softmax(batch: int, time: int) -> Softmax:
    hidden, weight, bias = (
        torch.randn(*s).requires_grad_() for s in ((batch, time, 3), (VOCABULARY, 3), (VOCABULARY,))
    )
    return Softmax(None, hidden, weight, bias)


def mixture(batch: int, time: int) -> MixtureOfSoftmaxes:
    latents, weight, bias = (
        torch.randn(*s).requires_grad_() for s in ((batch, time, 5, 3), (VOCABULARY, 3), (VOCABULARY,))
    )
    return MixtureOfSoftmaxes(None, latents, torch.log_softmax(torch.randn(batch, time, 5), 2), weight, bias)


@pytest.mark.parametrize("make", [softmax, mixture])
def test_scoring_and_learning_hold_one_chunk_of_logits(make, small_chunks: int) -> None:
    prediction, targets = make(4, 10), torch.randint(VOCABULARY, (4, 10))
    with Allocations(VOCABULARY) as watched:
        prediction.log_prob(targets).sum().backward()
    # The largest tensor of all is that chunk; weights and their gradients (V, 3) are smaller.
    assert watched.largest == small_chunks
    with Allocations(VOCABULARY) as watched:
        prediction.shifted_log_prob(targets, 0.01)[1].sum().backward()
    assert watched.largest == small_chunks
    with Allocations(VOCABULARY) as watched:
        prediction.log_probs()
    assert watched.largest == 40 * VOCABULARY  # the watch sees what it should


def test_tempering_a_mixture_holds_one_chunk(small_chunks: int) -> None:
    with Allocations(VOCABULARY) as watched, torch.no_grad():
        mixture(4, 10).tempered(2.0).log_prob(torch.randint(VOCABULARY, (4, 10)))
    assert watched.largest == small_chunks


def test_without_gradients_bfloat16_scores_are_those_of_the_whole_distribution() -> None:
    """Exponentials in bfloat16 are a thousandth off, more than an audit of the distribution could then see."""
    torch.manual_seed(0)
    prediction = Softmax(None, torch.randn(1, 50, 32), torch.randn(1000, 32), torch.randn(1000))
    targets = torch.randint(1000, (1, 50))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        listed = prediction.log_probs().gather(2, targets[..., None])[..., 0]
        apart = prediction.log_prob(targets) - listed
        warmer = (
            prediction.tempered(1.3).log_prob(targets)
            - Tempered(None, prediction, 1.3).log_probs().gather(2, targets[..., None])[..., 0]
        )
    # A logit may be rounded to the next number, where products of different shapes differ: the median tells.
    assert apart.abs().median() < 1e-5 and warmer.abs().median() < 1e-5
