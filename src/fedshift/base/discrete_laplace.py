"""Secret discrete Laplace noise, drawn exactly: no float, no seed.

The preparation of tables adds it to counts and sums before they leave a site. P(z) is proportional
to exp(-|z| / scale) over the whole numbers z. Added to a whole number that one row changes by at
most D, with a scale of D / epsilon, it is the geometric mechanism (Ghosh, Roughgarden and
Sundararajan, STOC 2009), which is epsilon-differentially private with no delta.

The sampler is Algorithms 1 and 2 of Canonne, Kamath and Steinke (NeurIPS 2020): it compares uniform
whole numbers with fractions, so every probability is exact, and nothing is lost in the last bits of
a float (Mironov, CCS 2012). Numbers come from the operating system's cryptographic generator; they
must never come from torch, NumPy or ``random``, whose seeds can be searched.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from fractions import Fraction

Below = Callable[[int], int]  # a uniform whole number from 0 to below its argument


def discrete_laplace(scale: Fraction, below: Below = secrets.randbelow) -> int:
    """One whole number; ``below`` is another generator only in tests."""
    if scale <= 0:
        raise ValueError(f"scale is {scale}; it must be positive")
    t, s = scale.numerator, scale.denominator
    while True:
        u = below(t)
        if not happens(u, t, below):
            continue
        v = 0
        while happens(1, 1, below):
            v += 1
        size, negative = (u + t * v) // s, below(2) == 1
        if size or not negative:  # zero has one sign
            return -size if negative else size


def happens(part: int, whole: int, below: Below) -> bool:
    """True with probability exp(-part / whole), for a fraction from 0 to 1."""
    k = 1
    while below(whole * k) < part:
        k += 1
    return k % 2 == 1
