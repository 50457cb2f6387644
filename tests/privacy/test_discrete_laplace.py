"""Discrete Laplace noise: the distribution that its scale says, from a generator without a seed."""

from __future__ import annotations

import inspect
import math
import random
import secrets
from fractions import Fraction

import numpy as np
import pytest
import torch

from fedshift.base.discrete_laplace import discrete_laplace, happens

DRAWS = 4000


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(3), Fraction(41, 7) * 2**20])
def test_spread_and_sign_are_those_of_the_geometric_mechanism(scale):
    """P(z) = (1 - q) / (1 + q) q^|z| with q = exp(-1 / scale); five standard errors."""
    below = random.Random(3).randrange
    z = np.array([discrete_laplace(scale, below) for _ in range(DRAWS)], dtype=float)
    q = math.exp(-1 / scale)
    size, square = 2 * q / (1 - q * q), 2 * q / (1 - q) ** 2  # of |z| and z^2, in the mean
    margin = 5 / math.sqrt(DRAWS)
    assert abs(np.abs(z).mean() - size) < margin * math.sqrt(square - size**2)
    assert abs(z.mean()) < margin * math.sqrt(square)
    zero = (1 - q) / (1 + q)
    assert abs((z == 0).mean() - zero) < margin * math.sqrt(zero * (1 - zero)) + 1 / DRAWS
    for far in (1, 2):  # P(|z| > far scales) = 2 q^k / (1 + q), k whole numbers further on
        k = math.floor(far * scale) + 1
        tail = 2 * q**k / (1 + q)
        assert abs((np.abs(z) >= k).mean() - tail) < margin * math.sqrt(tail)


def test_chances_are_exponentials():
    below = random.Random(5).randrange
    for part, whole in ((0, 1), (1, 3), (5, 5)):
        found = sum(happens(part, whole, below) for _ in range(DRAWS)) / DRAWS
        assert abs(found - math.exp(-part / whole)) <= 2.5 / math.sqrt(DRAWS) * (part > 0)


def test_no_seed_repeats_it():
    """The generator is the operating system's; those of torch, NumPy and Python play no part."""
    assert inspect.signature(discrete_laplace).parameters["below"].default is secrets.randbelow
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)  # noqa: TID251  the point of the test
        np.random.seed(0)  # noqa: NPY002, TID251
        random.seed(0)
        drawn.append([discrete_laplace(Fraction(2**40)) for _ in range(8)])
    assert drawn[0] != drawn[1]


def test_a_scale_that_is_none_is_refused():
    with pytest.raises(ValueError, match="scale is 0; it must be positive"):
        discrete_laplace(Fraction(0))
