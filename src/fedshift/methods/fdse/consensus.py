"""FDSE's server: layer consensus and similarity-aware mixing on Gram matrices (Eqs. 8 and 9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift import Aggregator, Part, Scope, Server, Tree, Uniform, Update, Weighting, setting
from fedshift.core.reply_stack import blocks, layer_by_layer, weighted_sum

Matrix = NDArray[np.float64]
BLOCK = 2**14  # columns at a time: clients x BLOCK floats are all that is ever stacked
WIDE = 2**16  # from here on products are in float32 and their sums in float64
RIDGE = 1e-10  # picks the most even of several solutions, costs at most this much in the norm
ZERO = 1e-6  # squared norm of the consensus of unit vectors from which on it is a direction
UNITS = ("module", "tensor")


def gram(tensors: Sequence[Tensor], origin: Tensor) -> Matrix:
    """Inner products (n, n) of the tensors less ``origin``, block by block of columns."""
    n, exact = len(tensors), origin.numel() < WIDE
    out = np.zeros((n, n))
    for rows, start in zip(blocks(tensors, BLOCK), origin.flatten().split(BLOCK), strict=True):
        moves = ((rows.double() if exact else rows) - start).numpy()  # (n, BLOCK)
        out += moves @ moves.T  # NumPy sees the symmetry, and lets other threads run
    return out


def min_norm_weights(inner: Matrix) -> Matrix:
    """Eq. 8: argmin |sum_k u_k d_k|^2 over the simplex, from the Gram matrix (n, n) of the d_k.

    By homogeneity this is the direction of argmin u'(G + 11')u - 2 1'u over u >= 0, which the
    active set method of Lawson and Hanson solves in finitely many steps. It starts from all
    clients, where few have to leave. Of several solutions the ridge picks the most even one.
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
    """The unconstrained minimum on the clients ``used``, zero elsewhere."""
    out = np.zeros(len(h))
    out[used] = np.linalg.solve(h[np.ix_(used, used)], np.ones(used.sum()))
    return out


def _shrink(h: Matrix) -> tuple[Matrix, NDArray[np.bool_]]:
    """A feasible start: from all clients, leave out those whose weight is negative."""
    used = np.ones(len(h), dtype=bool)
    while True:
        u = _solve(h, used)
        if (u[used] > 0).all():
            return u, used
        used &= u > 0


def _descend(h: Matrix, u: Matrix, used: NDArray[np.bool_]) -> tuple[Matrix, NDArray[np.bool_]]:
    """Towards the minimum on ``used``; clients whose weight would turn negative leave."""
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


def consensus(inner: Matrix, degenerate: str = "stay") -> Matrix:
    """Eq. 8: c (n,) with ``sum_k c_k v_k`` the consensus of updates v of Gram matrix (n, n).

    d_k = v_k / |v_k|, c_k = mean_j |v_j| u_k / |v_k|. A client whose update is zero has no
    direction: it counts in the mean length and not among the d_k.
    """
    n = len(inner)
    length = np.sqrt(np.diag(inner).clip(0))  # (n,)
    moved = length > 0
    c = np.zeros(n)
    if not moved.any():
        return c
    directions = inner[np.ix_(moved, moved)] / np.outer(length[moved], length[moved])
    u = min_norm_weights(directions)
    if degenerate == "mean" and u @ directions @ u < ZERO:
        return np.full(n, 1.0 / n)
    c[moved] = length.mean() * u / length[moved]
    return c


def similarity_weights(inner: Matrix, tau: float) -> Matrix:
    """Eq. 9: rows of ``softmax(cos(p_i, p_j) / tau)`` (n, n) from the Gram matrix of the p_k.

    A tensor of zeros is like itself and like no other.
    """
    length = np.sqrt(np.diag(inner).clip(0))
    cosine = inner / np.maximum(np.outer(length, length), np.finfo(float).tiny)
    np.fill_diagonal(cosine, 1.0)
    powers = np.exp((cosine - cosine.max(1, keepdims=True)) / tau)
    rows: Matrix = powers / powers.sum(1, keepdims=True)
    return rows


def grouped(keys: Iterable[str], unit: str) -> list[list[str]]:
    """Entries that are one "layer": those of one module, or each for itself."""
    out: dict[str, list[str]] = {}
    for key in keys:
        out.setdefault(key.rpartition(".")[0] if unit == "module" else key, []).append(key)
    return list(out.values())


@dataclass(frozen=True)
class LayerConsensus(Aggregator):
    """theta + mean_k |v_k| sum_k u_k d_k for each layer, u = argmin |sum_k u_k d_k| (Eq. 8).

    v_k is the update of client k, d_k its direction, u on the simplex: without that constraint,
    which the paper leaves unsaid, u = 0 is the minimum. The result never opposes a client. If
    0 is in the hull of the d_k (easily so where clients outnumber weights) the minimum is 0 and
    the layer stays. Client sizes play no role, and buffers are plain means.
    """

    weights: Weighting | None = field(default_factory=Uniform)
    unit: str = setting("module", "what one layer of Eq. 8 is; released: tensor", choices=UNITS)
    degenerate: str = setting(
        "stay",
        "a layer without a common direction stays, or takes the mean",
        choices=("stay", "mean"),
    )
    needs_individual_updates = True

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """Eq. 8, layer by layer."""

        def agreed(keys: Sequence[str]) -> Tree:
            inner = sum(gram([u.shared[k] for u in updates], server.shared[k]) for k in keys)
            c = consensus(np.asarray(inner), self.degenerate)
            return {k: moved(server.shared[k], [u.shared[k] for u in updates], c) for k in keys}

        layers = grouped((k for k in server.shared if k in server.parameters), self.unit)
        return layer_by_layer(agreed, layers, updates)


def moved(origin: Tensor, tensors: Sequence[Tensor], c: Matrix) -> Tensor:
    """``origin + sum_k c_k (tensor_k - origin)``."""
    start = origin if origin.numel() >= WIDE else origin.double()
    moves = weighted_sum(tensors, torch.from_numpy(c).to(start.dtype))
    return moves.add_(start, alpha=1.0 - float(c.sum())).to(origin.dtype)


@dataclass(frozen=True)
class SimilarityMixing(Part):
    """p_i <- sum_j softmax_j(cos(p_i, p_j) / tau) p_j for each layer's personal entries (Eq. 9).

    Over the participants; the others keep theirs. As tau grows this is the mean, as it falls each
    client keeps its own. Without this part each client keeps its own.
    """

    tau: float = setting(0.5, "temperature: small keeps what is one's own", low=1e-9)
    unit: str = setting("module", "what one layer of Eq. 9 is; released: tensor", choices=UNITS)
    needs_individual_updates = True

    def personal(self, server: Server, updates: Sequence[Update]) -> Mapping[str, Tree]:
        """Eq. 9, layer by layer."""
        out: dict[str, Tree] = {u.client: dict(u.personal) for u in updates}
        keys = server.keys(Scope.PERSONAL)
        for group in grouped((k for k in server.initial if k in keys), self.unit):
            held = {k: torch.stack([u.personal[k] for u in updates]).double() for k in group}
            flat = torch.cat([v.flatten(1) for v in held.values()], 1)  # (n, P)
            rows = torch.from_numpy(similarity_weights((flat @ flat.T).numpy(), self.tau))  # (n, n)
            for k, values in held.items():
                mixed = torch.tensordot(rows, values, 1).to(server.initial[k].dtype)  # (n, ...)
                for u, value in zip(updates, mixed, strict=True):
                    out[u.client][k] = value
        return out
