"""Weights of the sources, by how their models cluster the target's features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Server,
    Update,
    Weighting,
    setting,
)
from fedshift.methods.shared.finch import cluster_means
from fedshift.methods.shared.target import outputs_of

STEPS = 20  # of k-means


def k_means(z: Tensor, start: Tensor) -> Tensor:
    """Clusters (N,) of points (N, D) by Lloyd's algorithm from the points ``start`` (K,)."""
    centres = z[start]
    for _ in range(STEPS):
        labels = torch.cdist(z, centres).argmin(1).unique(return_inverse=True)[1]
        centres = cluster_means(z, labels)
    return labels


def dispersion(z: Tensor, labels: Tensor) -> Tensor:
    """Within-cluster part of the variance, from 0 to 1: sum_r D_r / 2 n_r over that of one cluster.

    D_r is the sum of squared distances between the pairs of cluster r, as in gap statistics.
    """
    within = (z - cluster_means(z, labels)[labels]).square().sum()
    return within / (z - z.mean(0)).square().sum().clamp_min(1e-12)


@dataclass(frozen=True)
class GapAttention(Weighting):
    """a = softmax(gain / tau), gain_k the target's dispersion before, less that under w_k.

    Features of the same target inputs under the model that was sent and under each client's, in
    K clusters each, from the same starts. Models normalise by the target's batches.
    """

    objectives = frozenset({"classification"})

    tau: float = setting(1.0, "temperature of the attention", low=1e-6)
    gap_samples: int = setting(512, "target inputs that are clustered per round", low=2)
    needs = frozenset({"server_unlabelled"})
    needs_individual_updates = True

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:
        """Weights (n,)."""
        size, generator = len(server.resources["server_unlabelled"]), server.generator(self.name)
        rows = torch.randperm(size, generator=generator)[: self.gap_samples]
        start = torch.randperm(len(rows), generator=generator)[: server.net.classes]

        def spread(update: Update) -> Tensor:
            z = outputs_of(server, update, rows, by_target=True).features.double()
            return dispersion(z, k_means(z, start))

        before = spread(Update("server", "train", server.round))
        return ((before - torch.stack([spread(u) for u in updates])) / self.tau).softmax(0)
