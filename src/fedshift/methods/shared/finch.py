"""FINCH: parameter-free clustering by first neighbours (Sarfraz et al., CVPR 2019)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor


def first_neighbours(points: Tensor) -> Tensor:
    """Index (n,) of the most similar other point by cosine, of ``points`` (n, D), n > 1."""
    unit = F.normalize(points.double())  # (n, D)
    return (unit @ unit.T).fill_diagonal_(-torch.inf).argmax(1)


def link(points: Tensor) -> Tensor:
    """One partition (n,): first neighbours are linked, and points that share one (Eq. 1).

    The clusters are the connected components of the graph with the edges i - neighbour(i).
    """
    n = len(points)
    if n == 1:
        return torch.zeros(1, dtype=torch.int64)
    edges = (torch.arange(n).numpy(), first_neighbours(points).numpy())
    graph = coo_array((torch.ones(n).numpy(), edges), shape=(n, n))
    return torch.from_numpy(connected_components(graph, directed=False)[1]).long()


def cluster_means(points: Tensor, labels: Tensor) -> Tensor:
    """Mean (m, D) of the ``points`` (n, D) of each cluster; ``labels`` (n,) count from 0."""
    sizes = torch.bincount(labels)  # (m,)
    sums = points.new_zeros(len(sizes), points.shape[1]).index_add(0, labels, points)
    return sums / sizes[:, None]


def finch(points: Tensor) -> Tensor:
    """Labels (n,) of the coarsest partition of ``points`` (n, D) that is not one single cluster.

    Clusters are linked again by their means until a further step would leave only one. Two or three
    points are always one cluster.

    Examples:
        >>> finch(torch.tensor([[1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])).tolist()
        [0, 0, 1, 1]
    """
    labels = link(points)
    while (coarser := link(cluster_means(points, labels))[labels]).any():
        labels = coarser
    return labels
