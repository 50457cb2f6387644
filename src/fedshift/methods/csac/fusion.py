"""CSAC's data-free fusion: layer by layer, models far from the average count more (Eqs. 3 and 4).

All clients' versions of a layer are read as one matrix (n, P), a row per client. The server keeps
the replies of a round side by side, so this needs no copy, and ``blocks`` yields the matrix in
slices of columns. For each slice the mean over clients is computed first, then every client's
distance from it, while the slice is still in the processor's cache; the norms of the slices combine
into the norm of the layer. Once the weights are known, a second reading forms the weighted sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedshift import Aggregator, Server, Tree, Update, setting
from fedshift.core.reply_stack import blocks, layer_by_layer, weighted_sum

BLOCK = 2**19  # elements per slice, all clients together: small enough to stay in the cache
TINY = 1e-12  # fraction of the largest distance below which a distance counts as zero


def gaps(layer: Sequence[Tensor], order: int) -> tuple[Tensor, Tensor]:
    """|w - m| of each client in the norm of ``order``, (n,), and |m|; m = 1/n sum w of Eq. 3."""
    n = len(layer)
    width = max(1, BLOCK // n)
    ones, scratch = layer[0].new_ones(n), layer[0].new_empty(n * width)
    apart, common = [], []
    for rows in blocks(layer, width):  # (n, width)
        mean = torch.mv(rows.t(), ones).div_(n)
        gap = torch.sub(rows, mean, out=scratch[: rows.numel()].view_as(rows))
        apart.append(torch.linalg.vector_norm(gap, order, dim=1))
        common.append(torch.linalg.vector_norm(mean, order))
    over_blocks = partial(torch.linalg.vector_norm, ord=order, dim=0)
    return over_blocks(torch.stack(apart).double()), over_blocks(torch.stack(common).double())


def euclidean(layer: Sequence[Tensor]) -> Tensor:
    """L2 distance of each client from the mean, (n,)."""
    return gaps(layer, 2)[0]


def manhattan(layer: Sequence[Tensor]) -> Tensor:
    """L1 distance (n,)."""
    return gaps(layer, 1)[0]


def cosine(layer: Sequence[Tensor]) -> Tensor:
    """1 - cos(w, m), (n,).

    Computed as (|w - m|^2 - (|w| - |m|)^2) / (2 |w| |m|), which stays accurate when w is close to
    m. A layer of zeros is at distance 0 from itself and at 1 from anything else.
    """
    gap, mean = gaps(layer, 2)
    own = torch.stack([torch.linalg.vector_norm(w) for w in layer]).double()  # (n,)
    product = 2 * own * mean
    apart = (gap.square() - (own - mean).square()).clamp_min(0) / product
    return torch.where(product > 0, apart, (gap > 0).to(apart))


def by_divergence(distances: Tensor) -> Tensor:
    """Weights dist_h / sum_h dist_h of Eq. 4, (n,); equal ones if every distance is zero."""
    total = distances.sum()
    equal = torch.full_like(distances, 1 / len(distances))
    return torch.where(total > 0, distances / total, equal)


def by_similarity(distances: Tensor) -> Tensor:
    """Weights in inverse proportion, (1 / dist_h) / sum_h (1 / dist_h): Table 4."""
    return by_divergence(1 / (distances + TINY * distances.max()).clamp_min(TINY))


STRATEGIES: dict[str, tuple[Callable[[Sequence[Tensor]], Tensor], Callable[[Tensor], Tensor]]] = {
    "l2": (euclidean, by_divergence),
    "l1": (manhattan, by_divergence),
    "cosine": (cosine, by_divergence),
    "similarity": (euclidean, by_similarity),
}


def fusion_weights(layer: Sequence[Tensor], distance: str = "l2") -> Tensor:
    """Weight of each client's version of one layer, (n,) in float64, summing to one.

    Examples:
        >>> fusion_weights([torch.zeros(2), torch.ones(2), torch.full((2,), 5.0)])  # mean: 2
        tensor([0.3333, 0.1667, 0.5000], dtype=torch.float64)
    """
    n = len(layer)
    if distance == "average":
        return torch.full((n,), 1 / n, dtype=torch.float64)
    distances, weigh = STRATEGIES[distance]
    return weigh(distances(layer))


def fuse(layer: Sequence[Tensor], weights: Tensor) -> Tensor:
    """M_l = sum_h c_h G_l^h, Eq. 4, with ``weights`` c (n,)."""
    return weighted_sum(layer, weights.to(layer[0]))


@dataclass(frozen=True)
class DivergenceFusion(Aggregator):
    """M_l = sum_h c_l^h G_l^h with c_l^h in proportion to dist(G_l^h, mean over h of G_l^h).

    A layer is one entry of the state dict: every shared floating-point entry, BatchNorm statistics
    included. The mean is unweighted, whatever the scenario's weights. For two clients both
    distances are equal, so l2 and l1 give the plain mean.
    """

    distance: str = setting(
        "l2",
        "distance in proportion to which clients count; similarity: inversely; average: equally",
        choices=("l2", "l1", "cosine", "similarity", "average"),
    )
    needs_individual_updates = True
    min_clients = 2

    def covers(self, server: Server) -> frozenset[str]:
        """Every shared entry that is not a counter."""
        return frozenset(k for k, v in server.shared.items() if v.is_floating_point())

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """Eqs. 3 and 4; the scenario's ``weights`` are not used."""
        covered = self.covers(server)

        def fused(keys: Sequence[str]) -> Tree:
            versions = {k: [u.shared[k] for u in updates] for k in keys}
            return {k: fuse(v, fusion_weights(v, self.distance)) for k, v in versions.items()}

        layers = ([k] for k in updates[0].shared if k in covered)
        return layer_by_layer(fused, layers, updates)  # no statistics if those are recomputed
