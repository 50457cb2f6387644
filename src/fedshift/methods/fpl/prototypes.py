"""Cluster prototypes, and the two terms that compare features with them.

Labels are given as ``shares`` (B, K), the proportion of each class in each sample: one-hot, or soft
if a part such as mixup has mixed samples.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift.methods.shared.finch import cluster_means, finch
from fedshift.methods.shared.prototypes import pull

NONE = -1e9  # score of a class without a prototype: far below any cosine / tau, but finite


def cluster_prototypes(means: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
    """Cluster prototypes (P, D) and their classes (P,), from the means (M, D) of all clients.

    ``owners`` (M,) is the class of each mean. FINCH clusters each class alone; within a cluster
    every client has the same weight.
    """
    classes = owners.unique()
    own = [means[owners == c] for c in classes]  # a loop over classes, once per round
    clusters = [cluster_means(points, finch(points)) for points in own]
    sizes = torch.tensor([len(c) for c in clusters])
    return torch.cat(clusters), classes.repeat_interleave(sizes)


def class_scores(s: Tensor, owners: Tensor, classes: int) -> Tensor:
    """Log of the sum of e^s over the prototypes of each class, (B, K), from ``s`` (B, P).

    The largest s of each class is subtracted before exp and added afterwards, so nothing overflows.
    """
    rows = owners.expand(len(s), -1)  # (B, P)
    top = s.new_full((len(s), classes), NONE).scatter_reduce(1, rows, s.detach(), "amax")
    sums = torch.zeros_like(top).index_add(1, owners, (s - top[:, owners]).exp())
    return top + sums.clamp(min=1.0).log()  # the sum is at least 1 for a class with prototypes


def contrast(z: Tensor, shares: Tensor, prototypes: Tensor, owners: Tensor, tau: float) -> Tensor:
    """-log sum_{p of class y} e^{s(z,p)/tau} / sum_p e^{s(z,p)/tau}, s the cosine.

    Cluster prototypes contrastive learning. Mean over the batch, ``z`` (B, D) and ``shares``
    (B, K); a sample whose class has no prototype adds nothing.
    """
    s = F.normalize(z) @ F.normalize(prototypes).T / tau  # (B, P)
    logs = class_scores(s, owners, shares.shape[1]).log_softmax(1)  # (B, K)
    known = torch.zeros(shares.shape[1], dtype=torch.bool).index_fill(0, owners, value=True)
    return -(shares * logs.masked_fill(~known, 0.0)).sum(1).mean()


def consistency(z: Tensor, shares: Tensor, prototypes: Tensor, owners: Tensor) -> Tensor:
    """Squared distance |z - u_y|^2 / D, u_c the mean of the cluster prototypes of class c.

    Unbiased prototypes consistent regularisation. Mean over the batch, ``z`` (B, D) and ``shares``
    (B, K); a sample whose class has no prototype adds nothing, a mixed one has a mixed target.
    """
    counts = torch.bincount(owners, minlength=shares.shape[1])  # (K,)
    sums = prototypes.new_zeros(shares.shape[1], z.shape[1]).index_add(0, owners, prototypes)
    unbiased = sums / counts.clamp(min=1)[:, None]  # (K, D)
    return pull(z, shares, unbiased, counts > 0)
