"""CSAC's data-free fusion: layer by layer, models far from the average count more (Eqs. 3 and 4).

Running sums, never a stack of all clients. A layer is read in pieces, so that a piece is still in
the cache when its distances follow its mean; a second reading adds the layers up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift.aggregate import Aggregator
from fedshift.declare import setting
from fedshift.message import Update
from fedshift.server import Server
from fedshift.tree import Tree

PIECE = 2**17  # elements of one client that are read at a time: half a megabyte
TINY = 1e-12  # share of the largest distance below which another one is as good as zero


def average(layer: Sequence[Tensor]) -> Tensor:
    """G^AVG = 1/H sum_h G^h, Eq. 3."""
    out = layer[0].clone()
    for weights in layer[1:]:
        out.add_(weights)
    return out.div_(len(layer))


def squared_gaps(piece: Sequence[Tensor], mean: Tensor) -> Tensor:
    """|w - m|^2 of n pieces (P,), to be added over pieces: (n, 1)."""
    gap = torch.empty_like(mean)
    return torch.stack([torch.dot(torch.sub(w, mean, out=gap), gap) for w in piece])[:, None]


def absolute_gaps(piece: Sequence[Tensor], mean: Tensor) -> Tensor:
    """|w - m|_1 of n pieces (P,): (n, 1)."""
    gap = torch.empty_like(mean)
    return torch.stack([torch.sub(w, mean, out=gap).abs_().sum() for w in piece])[:, None]


def gaps_and_norms(piece: Sequence[Tensor], mean: Tensor) -> Tensor:
    """|w - m|^2, |w|^2 and |m|^2 of n pieces (P,): (n, 3)."""
    own = torch.stack([torch.dot(w, w) for w in piece])  # (n,)
    common = torch.dot(mean, mean).expand_as(own)
    return torch.stack([squared_gaps(piece, mean)[:, 0], own, common], 1)


def euclidean(sums: Tensor) -> Tensor:
    """L2 distance (n,) from the sums of :func:`squared_gaps`."""
    return sums[:, 0].sqrt()


def manhattan(sums: Tensor) -> Tensor:
    """L1 distance (n,) from the sums of :func:`absolute_gaps`."""
    return sums[:, 0]


def cosine(sums: Tensor) -> Tensor:
    """1 - cos(w, m), (n,), from the sums of :func:`gaps_and_norms`.

    As (|w - m|^2 - (|w| - |m|)^2) / (2 |w| |m|), which does not cancel when w is close to m. A
    layer of zeros is at distance 0 from itself and at 1 from anything else.
    """
    gap, own, mean = sums.unbind(1)  # (n,) each
    product = 2 * (own * mean).sqrt()
    apart = (gap - (own.sqrt() - mean.sqrt()).square()).clamp_min(0) / product
    return torch.where(product > 0, apart, (gap > 0).to(apart))


def by_divergence(distances: Tensor) -> Tensor:
    """Weights dist_h / sum_h dist_h of Eq. 4, (n,); equal ones if every distance is zero."""
    total = distances.sum()
    equal = torch.full_like(distances, 1 / len(distances))
    return torch.where(total > 0, distances / total, equal)


def by_similarity(distances: Tensor) -> Tensor:
    """Weights in the inverse proportion, (1 / dist_h) / sum_h (1 / dist_h): Table 4."""
    return by_divergence(1 / (distances + TINY * distances.max()).clamp_min(TINY))


Gaps = Callable[[Sequence[Tensor], Tensor], Tensor]
Finish = Callable[[Tensor], Tensor]
STRATEGIES: dict[str, tuple[Gaps, Finish, Finish]] = {  # what adds up, the distance, the weights
    "l2": (squared_gaps, euclidean, by_divergence),
    "l1": (absolute_gaps, manhattan, by_divergence),
    "cosine": (gaps_and_norms, cosine, by_divergence),
    "similarity": (squared_gaps, euclidean, by_similarity),
}


def pieces(layer: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """One layer of n clients, flat, piece by piece: n views (P,)."""
    return zip(*(weights.flatten().split(PIECE) for weights in layer), strict=True)


def fusion_weights(layer: Sequence[Tensor], distance: str = "l2") -> Tensor:
    """Weight of each client's version of one layer, (n,) in float64, summing to one.

    Examples:
        >>> fusion_weights([torch.zeros(2), torch.ones(2), torch.full((2,), 5.0)])  # mean: 2
        tensor([0.3333, 0.1667, 0.5000], dtype=torch.float64)
    """
    n = len(layer)
    if distance == "average":
        return torch.full((n,), 1 / n, dtype=torch.float64)
    gaps, finish, weigh = STRATEGIES[distance]
    sums = [gaps(piece, average(piece)).double() for piece in pieces(layer)]
    return weigh(finish(torch.stack(sums).sum(0)))


def fuse(layer: Sequence[Tensor], weights: Tensor) -> Tensor:
    """M_l = sum_h c_h G_l^h, Eq. 4, with ``weights`` c (n,)."""
    c = weights.tolist()
    out = torch.zeros(layer[0].shape, dtype=layer[0].dtype, device=layer[0].device)
    for into, *piece in pieces([out, *layer]):
        for own, c_h in zip(piece, c, strict=True):
            into.add_(own, alpha=c_h)
    return out


@dataclass(frozen=True)
class DivergenceFusion(Aggregator):
    """M_l = sum_h c_l^h G_l^h with c_l^h in proportion to dist(G_l^h, mean over h of G_l^h).

    A layer is one entry of the state dict: every floating shared one, BatchNorm statistics
    included. The mean is the plain one, whatever the scenario's weights. For two clients both
    distances are equal, and l2 and l1 are the plain mean.
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
        """Eqs. 3 and 4; the scenario's ``weights`` have no say."""
        covered = self.covers(server)
        layers = {
            k: [u.shared[k] for u in updates] for k in updates[0].shared if k in covered
        }  # without the statistics where the scenario recomputes them
        return {k: fuse(layer, fusion_weights(layer, self.distance)) for k, layer in layers.items()}
