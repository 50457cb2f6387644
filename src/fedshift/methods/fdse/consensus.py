"""FDSE's server: layer consensus and similarity-aware mixing on Gram matrices (Eqs. 8 and 9).

Both equations depend on the clients' tensors through their inner products only: lengths, cosines
and the norm of any combination follow from the Gram matrix G_jk = <v_j, v_k>. So for each layer the
server reads the clients' versions once to form G (n, n), solves a problem of n unknowns on it, and
reads them a second time to form the weighted sum. The reading goes block by block: ``blocks`` gives
the same BLOCK columns of all clients as one matrix (n, BLOCK), whose product with its transpose is
added to G. Memory is n x BLOCK numbers however large the layer, and a matrix of clients x clients x
parameters never exists. A layer of several tensors has the sum of their Gram matrices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedshift import Aggregator, Server, Tree, Uniform, Update, Weighting, setting
from fedshift.core.reply_stack import blocks, layer_by_layer
from fedshift.methods.shared.simplex import Matrix, min_norm_weights

BLOCK = 2**14  # columns read at a time: at most clients x BLOCK numbers are stacked
WIDE = 2**16  # elements from which products are in float32; sums over blocks are in float64
ZERO = 1e-6  # squared norm of a consensus of unit vectors below which it is no direction
UNITS = ("module", "tensor")
ERASER = ("dse", "bn_dse")  # names of the modules that, with the bias beside them, are one DSE


def gram(tensors: Sequence[Tensor], origin: Tensor) -> Matrix:
    """Gram matrix (n, n) of the updates ``tensor_k - origin``, summed over blocks of columns."""
    n, exact = len(tensors), origin.numel() < WIDE
    out = np.zeros((n, n))
    for rows, start in zip(blocks(tensors, BLOCK), origin.flatten().split(BLOCK), strict=True):
        moves = ((rows.double() if exact else rows) - start).numpy()  # (n, BLOCK)
        out += moves @ moves.T  # NumPy uses the symmetry, and releases the GIL
    return out


def consensus(inner: Matrix, degenerate: str = "stay") -> Matrix:
    """Eq. 8: c (n,) for which ``sum_k c_k v_k`` is the consensus, from the Gram matrix of the v_k.

    d_k = v_k / |v_k|, c_k = mean_j |v_j| u_k / |v_k|. A client whose update is zero has no
    direction: it enters the mean length but is not among the d_k.
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


def grouped(keys: Iterable[str], unit: str) -> list[list[str]]:
    """Group entries into "layers".

    ``tensor`` is each entry alone, ``module`` the entries of one module, and ``submodule`` those
    of one DSE: f_DSE, BN_DSE and the bias of one decomposed layer.

    Examples:
        >>> keys = ["c.bias", "c.bn_dse.weight", "c.dse.weight"]
        >>> [len(grouped(keys, unit)) for unit in ("tensor", "module", "submodule")]
        [3, 3, 1]
    """
    out: dict[str, list[str]] = {}
    for key in keys:
        module = key.rpartition(".")[0]
        if unit == "submodule" and module.rpartition(".")[2] in ERASER:
            module = module.rpartition(".")[0]
        out.setdefault(key if unit == "tensor" else module, []).append(key)
    return list(out.values())


@dataclass(frozen=True)
class LayerConsensus(Aggregator):
    """theta + mean_k |v_k| sum_k u_k d_k for each layer, u = argmin |sum_k u_k d_k| (Eq. 8).

    v_k is the update of client k, d_k its direction, u on the simplex: without that constraint,
    which the paper does not state, u = 0 is the minimum. The result has a non-negative inner
    product with every client's update. If 0 is in the convex hull of the d_k (likely where clients
    outnumber weights) the minimum is 0 and the layer does not change. Client sizes play no role,
    and buffers are plain means.
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
    """``origin + sum_k c_k (tensor_k - origin)``, by differences, block by block.

    c_k is large for a client whose update is short: a sum of its parameters would round them by
    more than its update is long.
    """
    exact = origin.numel() < WIDE
    weights = torch.from_numpy(c) if exact else torch.from_numpy(c).float()
    out = []
    for rows, start in zip(blocks(tensors, BLOCK), origin.flatten().split(BLOCK), strict=True):
        moves = (rows.double() if exact else rows) - start  # (n, BLOCK)
        out.append(torch.mv(moves.t(), weights).add_(start).to(origin.dtype))
    return torch.cat(out).view(origin.shape)
