"""One style of a client, and one of all clients, in which no kind prevails."""

from __future__ import annotations

import torch
from torch import Tensor

from fedshift.methods.shared.finch import cluster_means, finch, link
from fedshift.methods.shared.style_bank import moments


def local_style(styles: Tensor) -> Tensor:
    """A client's style (2, C), of styles (n, 2, C): every FINCH cluster counts the same.

    Moments are averaged within a cluster, then over the clusters; the deviation follows from them.
    """
    labels = finch(styles.flatten(1))
    found = [moments(styles[labels == c]) for c in labels.unique()]
    mean, second = (torch.stack(parts).mean(0) for parts in zip(*found, strict=True))
    return torch.stack([mean, (second - mean.square()).clamp(min=0).sqrt()])


def interpolated_style(styles: Tensor) -> Tensor:
    """The server's style (2, C): median of the cluster means of clients' styles (n, 2, C).

    Clusters are those of FINCH's first partition, so that many alike clients count once.
    """
    points = styles.flatten(1)
    centres = cluster_means(points, link(points))  # (m, 2 C)
    return centres.quantile(0.5, dim=0).view_as(styles[0])
