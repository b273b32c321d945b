"""Distribution that tokens are drawn from: against a plain loop, with its properties, and the draw itself."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backstory.evaluation.generation import Sampling, draw, filtered
from backstory.models import MixtureOfSoftmaxes
from backstory.utils.errors import NonFiniteError, UserError

# Few different values, so that many are equally likely; and impossible ones.
logits = st.lists(st.sampled_from([-math.inf, -9.0, -2.5, -1.0, -1.0, 0.0, 0.5, 3.0]), min_size=1, max_size=12).filter(
    lambda values: max(values) > -math.inf
)
temperatures = st.sampled_from([0.05, 0.5, 1.0, 1.7, 30.0])
top_ks = st.none() | st.integers(1, 14)
top_ps = st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]) | st.floats(0, 1, exclude_min=True)


def naive(log_probs: list[float], temperature: float, top_k: int | None, top_p: float) -> list[float]:
    """Probabilities, by hand."""
    weights = [math.exp((v - max(log_probs)) / temperature) for v in log_probs]
    kept = set(range(len(weights)))
    if top_k is not None and top_k < len(weights):
        kept = {i for i in kept if weights[i] >= sorted(weights, reverse=True)[top_k - 1]}
    left = sum(weights[i] for i in kept)
    if top_p < 1:
        mass, enough = 0.0, set()
        for i in sorted(kept, key=lambda i: (-weights[i], i)):
            if mass >= top_p:
                break
            enough.add(i)
            mass += weights[i] / left
        kept = enough
    left = sum(weights[i] for i in kept)
    return [weights[i] / left if i in kept else 0.0 for i in range(len(weights))]


def near_an_edge(log_probs: list[float], temperature: float, top_k: int | None, top_p: float) -> bool:
    """Return True if rounding may decide what top_p keeps."""
    expected = sorted(naive(log_probs, temperature, top_k, 1.0), reverse=True)
    sums = [sum(expected[: i + 1]) for i in range(len(expected))]
    return any(abs(s - top_p) < 1e-9 for s in sums)


@given(values=logits, temperature=temperatures, top_k=top_ks, top_p=top_ps)
def test_as_by_hand(values: list[float], temperature: float, top_k: int | None, top_p: float) -> None:
    log_probs = torch.log_softmax(torch.tensor(values, dtype=torch.float64), 0)
    if top_p < 1 and near_an_edge(log_probs.tolist(), temperature, top_k, top_p):
        return
    found = filtered(log_probs, Sampling(temperature, top_k, top_p)).exp()
    assert found.tolist() == pytest.approx(naive(log_probs.tolist(), temperature, top_k, top_p), abs=1e-12)


@given(values=logits, temperature=temperatures | st.sampled_from([0.0, 1e-300]), top_k=top_ks, top_p=top_ps)
def test_always_a_distribution_that_holds_the_likeliest(
    values: list[float], temperature: float, top_k: int | None, top_p: float
) -> None:
    log_probs = torch.log_softmax(torch.tensor(values), 0)
    before = log_probs.clone()
    found = filtered(log_probs, Sampling(temperature, top_k, top_p))
    assert torch.equal(log_probs, before)
    assert found.exp().sum().item() == pytest.approx(1)
    assert found[log_probs.argmax()] > -torch.inf
    assert (found[log_probs == -torch.inf] == -torch.inf).all()
    assert found.max() == found[log_probs.argmax()]


def test_types_as_likely_as_the_last_of_k_stay() -> None:
    log_probs = torch.tensor([0.4, 0.2, 0.2, 0.2]).log()
    assert filtered(log_probs, Sampling(top_k=2)).exp().tolist() == pytest.approx([0.4, 0.2, 0.2, 0.2])
    assert filtered(log_probs, Sampling(top_k=1)).exp().tolist() == [1, 0, 0, 0]


def test_p_is_of_what_k_and_the_temperature_have_left() -> None:
    log_probs = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64).log()
    # All are needed for 0.9; of the two that k leaves, the first has two thirds, not enough for 0.7 but for 0.6.
    assert (filtered(log_probs, Sampling(top_p=0.9)) > -torch.inf).sum() == 4
    assert (filtered(log_probs, Sampling(top_k=2, top_p=0.7)) > -torch.inf).sum() == 2
    assert (filtered(log_probs, Sampling(top_k=2, top_p=0.6)) > -torch.inf).sum() == 1
    # At temperature 1/2 the first has 0.25 / 0.34375 = 0.73.
    assert (filtered(log_probs, Sampling(0.5, top_p=0.7)) > -torch.inf).sum() == 1
    # A mass that is reached exactly needs no more; ties at the edge go by id.
    assert (filtered(log_probs, Sampling(top_p=0.5)) > -torch.inf).tolist() == [True, False, False, False]
    assert (filtered(log_probs, Sampling(top_p=0.8)) > -torch.inf).tolist() == [True, True, True, False]


def test_the_temperature_is_that_of_a_prediction() -> None:
    torch.manual_seed(0)
    prior = torch.log_softmax(torch.randn(1, 1, 3), 2)
    prediction = MixtureOfSoftmaxes(None, torch.randn(1, 1, 3, 4), prior, torch.randn(11, 4), torch.randn(11))
    for temperature in (0.3, 1.0, 2.0):
        found = filtered(prediction.log_probs()[0, 0], Sampling(temperature))
        torch.testing.assert_close(found.float(), prediction.tempered(temperature).log_probs()[0, 0])


@pytest.mark.full
def test_draws_have_the_frequencies_of_the_distribution() -> None:
    log_probs, sampling = torch.tensor([0.5, 0.3, 0.15, 0.05]).log(), Sampling(temperature=0.7, top_k=3)
    generator = torch.Generator().manual_seed(1)
    count = 20_000
    drawn = Counter(draw(log_probs, sampling, generator) for _ in range(count))
    for i, p in enumerate(filtered(log_probs, sampling).exp().tolist()):
        assert abs(drawn[i] / count - p) <= 4 * math.sqrt(p * (1 - p) / count)


def test_at_temperature_zero_the_likeliest_is_drawn() -> None:
    log_probs, generator = torch.tensor([-2.0, -1.0, -1.0, -9.0]), torch.Generator()
    assert {draw(log_probs, Sampling(0.0, top_k=3, top_p=0.5), generator) for _ in range(50)} == {1}


@pytest.mark.parametrize("values", [[math.nan, 0.0], [-math.inf, -math.inf]])
def test_no_distribution_is_an_error(values: list[float]) -> None:
    with pytest.raises(NonFiniteError, match="no probability that is a number"):
        draw(torch.tensor(values), Sampling(), torch.Generator())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"temperature": -0.1}, "temperature must be 0 or above and finite, not -0.1"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": 0}, "top_k must be at least 1, not 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, not 0.0"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
    ],
)
def test_settings_out_of_range(settings: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        Sampling(**settings)
