"""Per-token figures against a loop over the whole distribution in float64."""

import math

import pytest
import torch
from torch import Tensor

from backstory.evaluation import token_scores
from backstory.models import Interpolation, MixtureOfSoftmaxes, Prediction, Softmax
from backstory.models import prediction as predictions

BATCH, TIME, TYPES = 2, 5, 11


def softmax() -> Softmax:
    return Softmax(None, 3 * torch.randn(BATCH, TIME, 4), torch.randn(TYPES, 4), torch.randn(TYPES))


def mixture() -> MixtureOfSoftmaxes:
    prior = torch.log_softmax(torch.randn(BATCH, TIME, 3), 2)
    return MixtureOfSoftmaxes(None, 3 * torch.randn(BATCH, TIME, 3, 4), prior, torch.randn(TYPES, 4), None)


KINDS = {
    "softmax": softmax,
    "mixture": mixture,
    "blend": lambda: Interpolation(None, softmax(), mixture(), torch.randn(BATCH, TIME, 2), 0.7),
    "tempered": lambda: mixture().tempered(0.5),
}


@pytest.fixture(params=KINDS)
def prediction(request: pytest.FixtureRequest) -> Prediction:
    torch.manual_seed(0)
    return KINDS[request.param]()


@pytest.fixture
def targets() -> Tensor:
    return torch.randint(TYPES, (BATCH, TIME), generator=torch.Generator().manual_seed(1))


def naive(log_probs: list[float], target: int) -> tuple[float, int, float]:
    likelier = [v for v in log_probs if v > log_probs[target]]
    entropy = -sum(math.exp(v) * v for v in log_probs if v > -math.inf)
    return log_probs[target], 1 + len(likelier), entropy


@pytest.mark.parametrize("table", [predictions.TABLE, 3 * TYPES, 1])
def test_every_token_as_by_hand(
    table: int, prediction: Prediction, targets: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "TABLE", table)
    found, whole = token_scores(prediction, targets, top=3), prediction.log_probs().double()
    for b in range(BATCH):
        for t in range(TIME):
            log_prob, rank, entropy = naive(whole[b, t].tolist(), int(targets[b, t]))
            assert found.log_prob[b, t].item() == pytest.approx(log_prob, rel=1e-5)
            assert found.rank[b, t].item() == rank
            assert found.entropy[b, t].item() == pytest.approx(entropy, rel=1e-5)
            best = sorted(range(TYPES), key=lambda v: -whole[b, t, v].item())[:3]
            assert found.candidates[b, t].tolist() == best
            assert found.candidate_log_probs[b, t].tolist() == pytest.approx(whole[b, t, best].tolist(), rel=1e-5)
    torch.testing.assert_close(found.log_prob, prediction.log_prob(targets))


def test_each_position_is_computed_once_in_tables_no_larger_than_allowed(
    prediction: Prediction, targets: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "TABLE", 3 * TYPES)
    sizes = []
    select = type(prediction).select

    def counted(self: Prediction, rows: Tensor, times: Tensor) -> Prediction:
        sizes.append(len(rows))
        return select(self, rows, times)

    monkeypatch.setattr(type(prediction), "select", counted)
    token_scores(prediction, targets)
    assert max(sizes) == 3
    assert sum(sizes) == BATCH * TIME


def test_positions_that_are_not_scored_are_left_out(prediction: Prediction, targets: Tensor) -> None:
    scored = torch.rand(BATCH, TIME, generator=torch.Generator().manual_seed(2)) < 0.5
    some, every = token_scores(prediction, targets, scored, top=2), token_scores(prediction, targets, top=2)
    for name in ("log_prob", "rank", "entropy", "candidates", "candidate_log_probs"):
        torch.testing.assert_close(getattr(some, name)[scored], getattr(every, name)[scored])
    assert some.log_prob[~scored].isnan().all() and some.entropy[~scored].isnan().all()
    assert not some.rank[~scored].any() and not some.candidates[~scored].any()


def test_figures_of_no_position_have_the_dtype_and_the_candidates_of_all(
    prediction: Prediction, targets: Tensor
) -> None:
    nothing = token_scores(prediction, targets, torch.zeros_like(targets, dtype=torch.bool), top=99)
    every = token_scores(prediction, targets, top=99)
    for name, value in vars(nothing).items():
        assert (value.shape, value.dtype) == (getattr(every, name).shape, getattr(every, name).dtype)
        assert value.isnan().all() if value.is_floating_point() else not value.any()


def test_types_equally_likely_share_a_rank_and_impossible_ones_add_no_entropy() -> None:
    bias = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0, -torch.inf])
    prediction = Softmax(None, torch.zeros(1, 6, 1), torch.zeros(6, 1), bias)
    found = token_scores(prediction, torch.arange(6)[None], top=99)
    assert found.rank.tolist() == [[4, 1, 1, 1, 5, 6]]
    p = torch.softmax(bias[:5].double(), 0)
    torch.testing.assert_close(found.entropy.double(), -(p * p.log()).sum().expand(1, 6))
    assert found.candidates.shape == (1, 6, 6)
    assert found.log_prob[0, 5] == -torch.inf


def test_bfloat16_is_summed_up_in_float32() -> None:
    torch.manual_seed(0)
    prediction, targets = softmax(), torch.zeros(BATCH, TIME, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16):
        found = token_scores(prediction, targets)
    assert found.log_prob.dtype == found.entropy.dtype == torch.float32
    torch.testing.assert_close(found.entropy, token_scores(prediction, targets).entropy, rtol=0.05, atol=0.02)
