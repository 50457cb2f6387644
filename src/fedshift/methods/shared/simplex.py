"""Points of the probability simplex: projections onto it, and the point with the least norm.

Aggregation rules look for client weights that are not negative and sum to one: AFL climbs and
projects back, FDSE and FedMGDA+ look for the shortest combination of the clients' updates. All work
on n clients, so arrays are small and in double precision.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Matrix = NDArray[np.float64]
RIDGE = 1e-10  # selects the most even of several solutions; costs at most this in the norm
CLOSE = 1e-12  # relative slope between two weights below which moving mass changes nothing
EXCHANGES = 10_000  # per client at most; two clients need one


def onto_simplex(v: Tensor) -> Tensor:
    """The nearest point of the simplex to ``v`` (n,): max(v - t, 0), t such that it sums to one.

    Examples:
        >>> onto_simplex(torch.tensor([0.5, 0.7, -1.0]))
        tensor([0.4000, 0.6000, 0.0000])
    """
    ranked = v.sort(descending=True).values
    excess = (ranked.cumsum(0) - 1) / torch.arange(1, len(v) + 1, dtype=v.dtype)  # (n,)
    used = int((ranked > excess).sum())
    return (v - excess[used - 1]).clamp(min=0)


def min_norm_weights(inner: Matrix) -> Matrix:
    """Argmin |sum_k u_k d_k|^2 over the simplex, from the Gram matrix (n, n) of the d_k.

    By homogeneity this is the direction of argmin u'(G + 11')u - 2 1'u over u >= 0, which the
    active set method of Lawson and Hanson solves in finitely many steps. It starts with all clients
    active, because usually few have to be dropped. If there are several solutions, the ridge
    selects the most even one.
    """
    n = len(inner)
    h = inner + 1.0 + RIDGE * np.eye(n)
    u, used = _shrink(h)
    for _ in range(10 * n):
        slope = 1.0 - h @ u
        slope[used] = -np.inf
        best = int(np.argmax(slope))
        if slope[best] <= RIDGE:
            break
        used[best] = True
        u, used = _descend(h, u, used)
    weights: Matrix = u / u.sum()
    return weights


def _solve(h: Matrix, used: NDArray[np.bool_]) -> Matrix:
    """The unconstrained minimum over the weights of the clients ``used``; the others are zero."""
    out = np.zeros(len(h))
    out[used] = np.linalg.solve(h[np.ix_(used, used)], np.ones(used.sum()))
    return out


def _shrink(h: Matrix) -> tuple[Matrix, NDArray[np.bool_]]:
    """A feasible start: begin with all clients, drop those with a negative weight, solve again."""
    used = np.ones(len(h), dtype=bool)
    while True:
        u = _solve(h, used)
        if (u[used] > 0).all():
            return u, used
        used &= u > 0


def _descend(h: Matrix, u: Matrix, used: NDArray[np.bool_]) -> tuple[Matrix, NDArray[np.bool_]]:
    """Move towards the minimum on ``used``; drop clients whose weight would turn negative."""
    used = used.copy()
    while True:
        s = _solve(h, used)
        negative = used & (s <= 0)
        if not negative.any():
            return s, used
        ratio = u[negative] / np.maximum(u[negative] - s[negative], np.finfo(float).tiny)
        u = u + ratio.min() * (s - u)
        leaving = negative & (u <= 1e-15)
        leaving[np.flatnonzero(negative)[ratio.argmin()]] = True
        used &= ~leaving
        u[~used] = 0.0


def min_norm_near(inner: Matrix, centre: Matrix, reach: float) -> Matrix:
    """Argmin |sum_k u_k d_k|^2 over the simplex with |u_k - centre_k| <= reach for all k.

    From the Gram matrix (n, n) of the d_k and a point (n,) of the simplex. In each step mass goes
    from the client with the largest slope to the one with the smallest, as far as it shortens the
    sum or the limits allow (sequential minimal optimisation); at the minimum no such pair is left.

    Examples:
        >>> min_norm_near(np.array([[1.0, 0.0], [0.0, 3.0]]), np.array([0.5, 0.5]), 0.1)
        array([0.6, 0.4])
    """
    u = centre.astype(np.float64)
    low, high = np.maximum(centre - reach, 0.0), np.minimum(centre + reach, 1.0)
    slope = inner @ u
    for _ in range(EXCHANGES * len(u)):
        to = int(np.where(u < high, slope, np.inf).argmin())
        off = int(np.where(u > low, slope, -np.inf).argmax())
        gap = slope[off] - slope[to]
        if not gap > CLOSE * max(float(np.abs(inner).max()), CLOSE):
            break
        bend = inner[to, to] + inner[off, off] - 2 * inner[to, off]
        room = min(high[to] - u[to], u[off] - low[off])
        step = min(gap / bend, room) if bend > 0 else room
        u[to], u[off] = u[to] + step, u[off] - step
        slope += step * (inner[:, to] - inner[:, off])
    return u
