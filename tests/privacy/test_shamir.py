"""Any threshold of shares gives the secret, fewer give nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift.privacy.masks import Draws
from fedshift.privacy.shamir import PRIME, join, split

SECRET = int.from_bytes(b"a secret of thirty-two bytes....", "little")


@given(st.integers(0, 2**256 - 1), st.integers(2, 6), st.binary(min_size=4, max_size=4))
def test_enough_shares_give_the_secret_back(secret, threshold, seed):
    positions = range(1, 8)
    shares = list(zip(positions, split(secret, positions, threshold, Draws(seed)), strict=True))
    for some in itertools.combinations(shares, threshold):
        assert join(some) == secret
    assert join(shares) == secret  # more than enough do no harm


def test_one_share_fewer_fits_every_secret():
    """Two of three shares lie on one parabola through any value at 0."""
    positions = (1, 2, 3)
    shares = list(zip(positions, split(SECRET, positions, 3, Draws(b"seed")), strict=True))[:2]
    assert join(shares) != SECRET
    for other in (0, 1, SECRET + 1):
        third = interpolated([(0, other), *shares], 3)
        assert join([*shares, (3, third)]) == other


def interpolated(points, x):
    """Lagrange, written out."""
    total = 0
    for i, (xi, yi) in enumerate(points):
        term = yi
        for j, (xj, _) in enumerate(points):
            if i != j:
                term = term * (x - xj) * pow(xi - xj, -1, PRIME) % PRIME
        total += term
    return total % PRIME


def test_coefficients_are_drawn_anew_and_from_the_whole_range():
    draw = Draws(b"seed")
    drawn = [draw() for _ in range(200)]
    assert len(set(drawn)) == 200
    assert max(drawn) < PRIME
    assert sum(drawn) / 200 / PRIME == pytest.approx(0.5, abs=0.1)
    assert drawn != [Draws(b"other")() for _ in range(200)]
