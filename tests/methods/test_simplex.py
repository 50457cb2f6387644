"""Projection onto the simplex, and the shortest combination near a given one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedshift.methods.shared.simplex import min_norm_near, min_norm_weights, onto_simplex


@pytest.mark.parametrize("seed", range(5))
def test_the_projection_is_the_nearest_point_of_the_simplex(seed):
    """v - p is the same wherever p > 0, and nowhere larger: the condition of optimality."""
    v = torch.tensor(np.random.default_rng(seed).normal(size=9), dtype=torch.float64)
    p = onto_simplex(v)
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    assert bool((p >= 0).all())
    gap = (v - p).numpy()
    used = p.numpy() > 0
    assert 0 < used.sum() < 9  # both kinds occur
    assert np.ptp(gap[used]) < 1e-12
    assert gap[~used].max() <= gap[used].min() + 1e-12


def test_a_point_of_the_simplex_is_its_own_projection_and_a_common_shift_has_no_effect():
    p = torch.tensor([0.125, 0.5, 0.0, 0.375], dtype=torch.float64)
    assert torch.equal(onto_simplex(p), p)
    torch.testing.assert_close(onto_simplex(p + 3.0), p)


def test_two_vectors_meet_where_their_slopes_are_equal_or_the_limit_is():
    """|u d_1 + (1 - u) d_2|^2 of orthogonal vectors of squared length 1 and 3 is least at 3/4."""
    gram, even = np.diag([1.0, 3.0]), np.array([0.5, 0.5])
    np.testing.assert_allclose(min_norm_near(gram, even, 1.0), [0.75, 0.25], rtol=1e-12)
    assert min_norm_near(gram, even, 0.125).tolist() == [0.625, 0.375]
    assert min_norm_near(gram, even, 0.0).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("reach", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("n", [3, 8, 20])
def test_the_constrained_minimum_is_that_of_a_general_solver(n, reach):
    rng = np.random.default_rng(n)
    d = rng.normal(size=(n, 12)) + 0.5
    centre = rng.dirichlet(np.full(n, 2.0))
    found = min_norm_near(d @ d.T, centre, reach)
    assert found.sum() == pytest.approx(1)
    assert np.abs(found - centre).max() <= reach + 1e-12
    assert found.min() >= 0
    bounds = [(max(0, c - reach), min(1, c + reach)) for c in centre]
    other = minimize(
        lambda u: ((u @ d) ** 2).sum(),
        centre,
        jac=lambda u: 2 * d @ (u @ d),
        bounds=bounds,
        constraints={"type": "eq", "fun": lambda u: u.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-15},
    )
    assert ((found @ d) ** 2).sum() == pytest.approx(other.fun, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("n", [2, 10, 60])
def test_without_a_limit_both_algorithms_find_the_same_shortest_vector(n):
    d = np.random.default_rng(n).normal(size=(n, 40)) + 0.4
    free = min_norm_near(d @ d.T, np.full(n, 1 / n), 1.0)
    np.testing.assert_allclose(free @ d, min_norm_weights(d @ d.T) @ d, atol=1e-6)


def test_vectors_of_zeros_leave_the_centre_alone():
    assert min_norm_near(np.zeros((3, 3)), np.array([0.2, 0.3, 0.5]), 0.1).tolist() == [
        0.2,
        0.3,
        0.5,
    ]
