"""Verdicts of claims: intervals against values worked out by hand and taken from tables of Student's t."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstory.papers.claims import MISSING, ONE_SEED, OPPOSITE, UNDECIDED, YES, corrected, holm, judge
from backstory.results.reproduction_record import ClaimRecord
from backstory.results.seed_gain import t_limit


@pytest.mark.parametrize(
    ("freedom", "limit"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (10, 2.22814), (30, 2.04227), (1000, 1.96234)],
)
def test_limits_are_those_of_the_tables(freedom: float, limit: float) -> None:
    assert t_limit(freedom) == pytest.approx(limit, abs=1e-4)


@pytest.mark.parametrize("inside", [0.5, 0.9, 0.95, 0.99])
def test_limits_of_one_and_two_degrees_of_freedom_have_a_closed_form(inside: float) -> None:
    assert t_limit(1, inside) == pytest.approx(math.tan(math.pi * inside / 2), rel=1e-6)
    assert t_limit(2, inside) == pytest.approx(inside * math.sqrt(2 / (1 - inside**2)), rel=1e-6)


def test_the_same_seeds_are_paired() -> None:
    # Differences 2, 2.5, 1.5: mean 2, deviation 0.5, so 2 -+ 4.30265 * 0.5 / sqrt(3).
    judged = judge({1: 10.0, 2: 11.0, 3: 12.0}, {3: 13.5, 1: 12.0, 2: 13.5})
    assert (judged.verdict, judged.paired) == (YES, True)
    assert (judged.gain, judged.low, judged.high) == pytest.approx((2.0, 0.757931, 3.242069), abs=1e-5)


def test_other_seeds_are_compared_by_welch() -> None:
    # Two variances of 2 over 2 seeds: 1 + 1, with (1 + 1)^2 / (1 + 1) = 2 degrees of freedom: 10 -+ 4.30265 * sqrt(2).
    judged = judge({1: 9.0, 2: 11.0}, {3: 19.0, 4: 21.0})
    assert (judged.verdict, judged.paired) == (YES, False)
    assert (judged.gain, judged.low, judged.high) == pytest.approx((10.0, 3.915130, 16.084870), abs=1e-5)


def test_a_side_that_does_not_vary_leaves_the_other_its_degrees_of_freedom() -> None:
    # Variances 0 and 8 over 2 seeds: 4, with 4^2 / (4^2 / 1) = 1 degree of freedom: 12 -+ 12.7062 * 2.
    judged = judge({1: 10.0, 2: 10.0}, {3: 20.0, 4: 24.0})
    assert judged.verdict == UNDECIDED
    assert (judged.gain, judged.low, judged.high) == pytest.approx((12.0, -13.412409, 37.412409), abs=1e-5)


def test_p_values_are_those_of_the_closed_forms() -> None:
    # The paired case above: t = 2 / (0.5 / sqrt(3)) = 6.9282 with 2 degrees of freedom, p = 1 - t / sqrt(2 + t^2) = 0.020204.
    assert judge({1: 10.0, 2: 11.0, 3: 12.0}, {3: 13.5, 1: 12.0, 2: 13.5}).p_value == pytest.approx(0.020204, abs=1e-6)
    # The last case above: t = 12 / 2 with 1 degree of freedom, p = 1 - atan(6) / 90 degrees = 0.105137.
    assert judge({1: 10.0, 2: 10.0}, {3: 20.0, 4: 24.0}).p_value == pytest.approx(0.105137, abs=1e-6)
    same = {1: 5.0, 2: 6.0}
    assert judge(same, same).p_value == 1.0 and judge(same, {1: 6.0, 2: 7.0}).p_value == pytest.approx(0.0, abs=1e-9)
    assert judge({1: 5.0}, {1: 50.0}).p_value is None


def test_holm_corrects_for_the_number_of_claims() -> None:
    # In order 0.01, 0.015, 0.03, 0.4, times 4, 3, 2, 1: 0.04, 0.045, 0.06, 0.4.
    assert holm([0.03, 0.01, 0.4, 0.015]) == pytest.approx([0.06, 0.04, 0.4, 0.045])
    # 0.02 times 2 and 0.021 times 1: the second is raised to the first.
    assert holm([0.021, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []
    assert holm([0.01, 0.02], family=5) == pytest.approx([0.05, 0.08])


def test_a_claim_without_a_p_value_counts_in_the_family() -> None:
    def claim(p: float | None) -> ClaimRecord:
        return ClaimRecord(
            sentence="", published_gain=None, gain=None, low=None, high=None, seeds=(), verdict="", p_value=p
        )

    assert [one.holm_p_value for one in corrected([claim(0.01), claim(None), claim(0.02)])] == [0.03, None, 0.04]


def test_an_interval_below_zero_is_the_opposite() -> None:
    assert judge({1: 12.0, 2: 13.5, 3: 13.5}, {1: 10.0, 2: 11.0, 3: 12.0}).verdict == OPPOSITE


def test_one_seed_decides_nothing() -> None:
    for better, than in (({1: 5.0}, {1: 50.0}), ({1: 5.0, 2: 5.1}, {1: 50.0})):
        judged = judge(better, than)
        assert judged.verdict == ONE_SEED and judged.low is judged.high is None
        assert judged.gain == pytest.approx(45.0, abs=0.1)
    assert judge({2: 5.0}, {1: 90.0, 2: 50.0, 3: 80.0}).gain == 45.0  # of the seed that both have


def test_no_runs_decide_nothing() -> None:
    assert judge({}, {1: 5.0, 2: 6.0}).verdict == judge({1: 5.0}, {}).verdict == MISSING


def test_equal_figures_decide_nothing_and_equal_gains_do() -> None:
    same = {1: 5.0, 2: 6.0}
    assert judge(same, same).verdict == UNDECIDED
    assert judge(same, {1: 6.0, 2: 7.0}).verdict == YES
    assert judge({1: 5.0, 2: 5.0}, {3: 5.0, 4: 5.0}).verdict == UNDECIDED


figures = st.dictionaries(st.integers(1, 6), st.floats(1, 1000), min_size=2, max_size=6)


@given(figures, figures)
def test_the_other_way_round_is_the_mirror_image(a: dict[int, float], b: dict[int, float]) -> None:
    one, other = judge(a, b), judge(b, a)
    assert None not in (one.gain, one.low, one.high, other.gain, other.low, other.high)
    assert (one.gain, one.low, one.high) == pytest.approx((-other.gain, -other.high, -other.low), abs=1e-9)  # type: ignore[operator]
    assert {one.verdict, other.verdict} in ({YES, OPPOSITE}, {UNDECIDED})


@pytest.mark.full
@pytest.mark.parametrize("shift", [0, 3])
def test_where_there_is_no_difference_one_claim_in_twenty_is_decided(shift: int) -> None:
    """Seeds of the other side are the same (paired) or later ones (Welch, which is a little strict on three seeds)."""
    random = np.random.default_rng(0)
    decided = 0
    for values in random.normal(100, 1, (1000, 6)):
        judged = judge(dict(enumerate(values[:3])), dict(enumerate(values[3:], start=shift)))
        decided += judged.verdict != UNDECIDED
    assert 0.02 < decided / 1000 < 0.065
