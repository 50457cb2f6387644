"""Secret sharing: any ``threshold`` shares give the secret back, fewer reveal nothing about it.

Shamir, Communications of the ACM 1979, over the integers modulo a prime. ``site`` splits a site's
secrets, and the server joins the shares of a site that dropped out or whose own mask it must remove
(``secure``). The coefficients must come from a secret generator, never from one that others know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

PRIME = 2**521 - 1  # larger than any secret of 64 bytes
SIZE = 66  # bytes of a value
SecretShare = tuple[int, int]  # x, and the polynomial's value there


def split(
    secret: int, positions: Sequence[int], threshold: int, draw: Callable[[], int]
) -> list[int]:
    """Values at ``positions`` (from 1 on) of a random polynomial of degree ``threshold`` - 1.

    Its value at 0 is ``secret``; ``draw`` gives uniform numbers below the prime.
    """
    coefficients = [secret, *(draw() for _ in range(threshold - 1))]
    return [_evaluate(coefficients, position) for position in positions]


def _evaluate(coefficients: Iterable[int], x: int) -> int:
    out = 0
    for a in reversed(list(coefficients)):
        out = (out * x + a) % PRIME
    return out


def join(shares: Sequence[SecretShare]) -> int:
    """The secret: the polynomial through the shares (Lagrange), evaluated at 0."""
    total = 0
    for x, y in shares:
        above, below = 1, 1
        for other, _ in shares:
            if other != x:
                above = above * -other % PRIME
                below = below * (x - other) % PRIME
        total = (total + y * above * pow(below, -1, PRIME)) % PRIME
    return total
