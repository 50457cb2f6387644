"""Secret Gaussian noise: integers from a cryptographic generator, on a grid that hides rounding.

``dp`` draws from here wherever noise has to be secret. Noise must never come from torch's or
NumPy's generators: torch's CPU generator uses 32 bits of its seed, which a search over all of them
recovers in minutes from one noisy update.

Why integers. Floating-point Gaussian noise leaves traces of what it was added to in the last bits
of the sum (Mironov, CCS 2012). So an update is first clipped and cut to whole multiples of a public
grid, noise is drawn as an integer, and the two are added as integers, exactly. All that follows
(back to floats, plus the received model, division by the number of sites) is computed from that
sum and from public numbers alone, so it costs no privacy.

Why the same epsilon. The noise is the discrete Gaussian with a standard deviation of ``CELLS`` grid
steps. For integer vectors its Rényi divergences are at most those of the continuous one (Canonne,
Kamath and Steinke, NeurIPS 2020, Section 2.3; equal but for a factor of 1 - exp(-CELLS^2)), and the
accountant uses nothing else. Cutting is towards zero, so it makes no norm larger: the sensitivity
is still the clip.

How it is drawn, and how exactly. Proposal: z = +-(k CELLS + i) with k geometric (P(k) = 2^-(k+1),
from the zeros at the end of a random word), i uniform and a random sign; accepted with probability
exp(-z^2 / (2 CELLS^2)) 2^k / 1.25, and -0 never. All proposals are exact. Acceptance compares 128
random bits with a double; its exponential is the only approximation, by at most 2^-46 of itself up
to 14 standard deviations (4 units in the last place, and z^2 rounded once; beyond lies 1e-43 of the
probability). So the probability of every value is off by a factor of at most 1 +- 2^-45, and the
logarithm of that of an update of P numbers by P 2^-45: for 5 million numbers epsilon grows by less
than 3e-7 per update.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedshift.privacy.masks import require_library

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
FINE = 24  # bits of a grid step: the standard deviation is 2^24 of them
CELLS = 1 << FINE
LARGEST = 39  # of k; the chance of more is exp(-760)
PEAK = 1.25  # above the maximum over z of exp(-z^2 / (2 CELLS^2)) 2^k, which is 1.213
BATCH = 1 << 18  # proposals at a time, so that they stay in the processor's cache


class WordSource(Protocol):
    """Uniform random words of 64 bits."""

    def words(self, count: int) -> Words:
        """The next ``count`` words."""
        ...


class SecretSource:
    """The key stream of AES-256 in counter mode, under a key of the operating system, used once."""

    def __init__(self) -> None:
        require_library()
        from cryptography.hazmat.primitives.ciphers import Cipher  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.algorithms import AES  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.modes import CTR  # noqa: PLC0415

        self._stream = Cipher(AES(os.urandom(32)), CTR(bytes(16))).encryptor()

    def words(self, count: int) -> Words:
        """The next ``count`` words."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")


def discrete_gaussian(count: int, source: WordSource | None = None) -> Integers:
    """``count`` integers of the discrete Gaussian with standard deviation ``CELLS``."""
    source = source or SecretSource()
    out = np.empty(count, dtype=np.int64)
    filled = 0
    while filled < count:
        found = _accepted(source, min(BATCH, 2 * (count - filled) + 64))[: count - filled]
        out[filled : filled + len(found)] = found
        filled += len(found)
    return out


def _accepted(source: WordSource, proposals: int) -> Integers:
    """The accepted ones of ``proposals`` proposals; see the module's docstring."""
    word = source.words(proposals)
    i = (word & np.uint64(CELLS - 1)).astype(np.int64)
    negative = (word >> np.uint64(FINE)) & np.uint64(1) == 1
    k = zeros_at_end(word >> np.uint64(FINE + 1))
    z = (k << FINE) + i
    scaled = z.astype(np.float64) / CELLS  # exact: fewer than 53 bits
    chance = np.exp(-0.5 * scaled * scaled) * np.ldexp(1 / PEAK, k)
    yes = bernoulli(chance, source) & ~(negative & (z == 0))
    z = z[yes]
    return np.where(negative[yes], -z, z)


def zeros_at_end(word: Words) -> Integers:
    """Number of zero bits below the lowest one; ``LARGEST`` for a word of ``LARGEST`` zeros."""
    word = word | np.uint64(1 << LARGEST)
    lowest = word & (~word + np.uint64(1))
    return np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1


def bernoulli(chance: npt.NDArray[np.float64], source: WordSource) -> npt.NDArray[np.bool_]:
    """True with probability ``chance`` < 1, to 128 bits.

    The first 64 random bits decide unless they equal those of ``chance``; then 64 more do.
    """
    scaled = np.ldexp(chance, 64)
    first = scaled.astype(np.uint64)
    drawn = source.words(len(chance))
    yes = drawn < first
    if (tied := np.flatnonzero(drawn == first)).size:
        rest = np.ldexp(scaled[tied] - first[tied].astype(np.float64), 64).astype(np.uint64)
        yes[tied] = source.words(tied.size) < rest
    return yes
