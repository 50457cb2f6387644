from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedshift.claims.verdict import Difference, better, close


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_the_interval_is_scipys_paired_t_interval(n):
    rng = np.random.default_rng(n)
    method, control = rng.normal(70, 3, n), rng.normal(68, 3, n)
    found = Difference(tuple(method - control))
    expected = stats.ttest_rel(method, control).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert (better(found) == "holds") == (expected.low > 0)
    assert (better(found) == "does not hold") == (expected.high < 0)


def test_the_verdict_follows_a_two_sided_test_over_many_draws():
    rng = np.random.default_rng(0)
    # No difference at all: 5 % of the verdicts are wrong, half of them on each side.
    said = [better(Difference(tuple(rng.normal(0, 1, 5)))) for _ in range(2000)]
    assert said.count("holds") / 2000 == pytest.approx(0.025, abs=0.012)
    assert said.count("does not hold") / 2000 == pytest.approx(0.025, abs=0.012)


def test_a_difference_of_the_detectable_size_is_shown_in_about_four_of_five_cases():
    rng = np.random.default_rng(1)
    n, sigma = 10, 2.0
    t = stats.t(n - 1)
    size = sigma / math.sqrt(n) * (t.ppf(0.975) + t.ppf(0.8))
    shown = [better(Difference(tuple(rng.normal(size, sigma, n)))) == "holds" for _ in range(2000)]
    assert np.mean(shown) == pytest.approx(0.8, abs=0.06)
    values = rng.normal(0, sigma, n)
    expected = np.std(values, ddof=1) / math.sqrt(n) * (t.ppf(0.975) + t.ppf(0.8))
    assert Difference(tuple(values)).detectable == pytest.approx(expected)


def test_fewer_than_two_seeds_decide_nothing_unless_the_number_is_exact():
    assert better(Difference(())) == better(Difference((9.0,))) == "undecided"
    assert close(Difference((0.0,)), 5.0) == "undecided"
    assert better(Difference((9.0,), exact=True)) == "holds"
    assert better(Difference((-9.0,), exact=True)) == "does not hold"
    assert better(Difference((), exact=True)) == "undecided"


def test_a_claim_may_ask_for_more_than_zero():
    found = Difference((2.0, 2.1, 1.9, 2.0))
    assert better(found) == "holds"
    assert better(found, least=2.5) == "does not hold"
    assert better(found, least=2.0) == "undecided"


def test_closeness_is_an_interval_inside_the_margin():
    found = Difference((0.4, 0.6, 0.5, 0.5))  # 0.5 +- 0.13
    assert close(found, 1.0) == "holds"
    assert close(found, 0.6) == "undecided"
    assert close(found, 0.3) == "does not hold"
