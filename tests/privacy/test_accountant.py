"""Epsilon against closed forms."""

from __future__ import annotations

import math
import sys

import dp_accounting
import dp_accounting.rdp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import comb
from scipy.stats import norm

from fedshift.base.errors import ConfigError
from fedshift.privacy.accountant import (
    EVERYBODY,
    WHOLE_ORDERS,
    Sampling,
    composed,
    curve,
    epsilon,
)

DELTA = 1e-5


def from_renyi(rdp, orders):
    """Smallest epsilon of Canonne, Kamath and Steinke (2020), Proposition 12."""
    return np.min(rdp + np.log1p(-1 / orders) - np.log(DELTA * orders) / (orders - 1))


def exact(mu):
    """The Gaussian mechanism of sensitivity mu and unit noise, Balle and Wang (2018), Eq. 6."""

    def gap(eps):
        return norm.cdf(mu / 2 - eps / mu) - np.exp(eps) * norm.cdf(-mu / 2 - eps / mu) - DELTA

    return brentq(gap, 0.0, 500.0)


@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 1), (4.0, 10), (10.0, 100)])
def test_epsilon_is_that_of_composed_gaussians(noise, rounds):
    z = noise / 2  # a site that holds other data moves the sum by twice the clip
    orders = np.concatenate([np.arange(1.1, 11, 0.1), np.arange(11, 64), [128, 256, 512, 1024]])
    found = epsilon(noise, rounds, delta=DELTA)
    assert found == pytest.approx(from_renyi(rounds * orders / (2 * z**2), orders), rel=1e-9)
    tight = exact(math.sqrt(rounds) / z)
    assert tight <= found <= 1.15 * tight


def test_many_rounds_are_one_round_with_less_noise():
    assert epsilon(6.0, 9, delta=DELTA) == pytest.approx(epsilon(2.0, 1, delta=DELTA), rel=1e-9)


def test_a_site_that_vanishes_moves_the_sum_half_as_far_as_one_that_is_replaced():
    gone = epsilon(3.0, 5, delta=DELTA, neighbours="zero-out")
    assert gone == pytest.approx(epsilon(6.0, 5, delta=DELTA), rel=1e-9)


def without_replacement(noise, rounds, q):
    """Wang, Balle and Kasiviswanathan (2019), Theorem 9, for Gaussians: looser than Theorem 27."""
    z, orders = noise / 2, np.arange(2, 64)
    rdp = []
    for a in orders:
        e2 = 2 / (2 * z**2)
        terms = [q**2 * comb(a, 2) * min(4 * math.expm1(e2), 2 * math.exp(e2))]
        terms += [
            2 * q**j * comb(a, j) * math.exp((j - 1) * j / (2 * z**2)) for j in range(3, a + 1)
        ]
        rdp.append(math.log1p(sum(terms)) / (a - 1))
    return from_renyi(rounds * np.array(rdp), orders)


@pytest.mark.parametrize(("cohort", "sites"), [(1, 10), (5, 100)])
def test_sampling_amplifies_as_the_theorem_says(cohort, sites):
    found = epsilon(4.0, 20, delta=DELTA, cohort=cohort, sites=sites)
    bound = without_replacement(4.0, 20, cohort / sites)
    assert 0.5 * bound < found <= bound * (1 + 1e-9)
    assert found < 0.7 * epsilon(4.0, 20, delta=DELTA)


def test_everybody_is_no_sample():
    assert epsilon(4.0, 3, delta=DELTA, cohort=7, sites=7) == epsilon(4.0, 3, delta=DELTA)


def test_without_noise_there_is_no_bound_and_without_rounds_nothing_is_spent():
    assert epsilon(0.0, 1, delta=DELTA) == math.inf
    assert epsilon(1.0, 0, delta=DELTA) == 0.0


def test_what_no_theorem_covers_is_refused():
    with pytest.raises(ConfigError, match=r"2 of 4 are sampled; use neighbours=replace"):
        epsilon(1.0, 1, delta=DELTA, cohort=2, sites=4, neighbours="zero-out")


def test_a_missing_library_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"pip install fedshift\[privacy\]"):
        epsilon(1.0, 1, delta=DELTA)


PUBLISHED = {
    # TensorFlow Privacy, tutorials/README.md: MNIST, batches of 256 of 60,000
    "tensorflow-privacy, noise 1.3, 15 epochs": (256 / 60_000, 1.3, 15, 1.19),
    "tensorflow-privacy, noise 1.1, 60 epochs": (256 / 60_000, 1.1, 60, 3.01),
    "tensorflow-privacy, noise 0.7, 45 epochs": (256 / 60_000, 0.7, 45, 7.10),
    # Abadi et al., Deep learning with differential privacy, CCS 2016, Section 4
    "moments accountant, noise 4, 100 epochs": (0.01, 4.0, 100, 1.26),
}


@pytest.mark.parametrize("row", PUBLISHED)
def test_published_tables(row):
    """Poisson sampling and the conversion of that time, Mironov (2017), Proposition 3."""
    q, noise, epochs, told = PUBLISHED[row]
    orders = np.array([1 + x / 10 for x in range(1, 100)] + [*range(12, 64)])
    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(noise))
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    rdp = int(epochs / q) * curve(event, tuple(orders), relation)
    assert round(float(np.min(rdp - np.log(DELTA) / (orders - 1))), 2) == told


def test_mixed_rounds_are_those_of_dp_accounting():
    accountant = dp_accounting.rdp.RdpAccountant(
        WHOLE_ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    gauss = dp_accounting.GaussianDpEvent(3.0 / 2)
    accountant.compose(gauss, 2)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(20, 2, gauss), 5)
    found = composed(3.0, {EVERYBODY: 2, Sampling(2, 20): 5}, delta=DELTA)
    assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-12)
