"""The server's classifier of origins, and what clients make of its answer."""

from __future__ import annotations

import math

from torch import Tensor, nn

from fedshift import (
    Net,
)


def discriminator(features: int, clients: int, width: int) -> Net:
    """Three layers from features (B, D) to one output per client, with BatchNorm and ReLU."""
    modules: dict[str, nn.Module] = {
        "hidden": nn.Sequential(
            nn.Linear(features, width, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
        ),
        "head": nn.Linear(width, clients, bias=False),
    }
    stages = {"hidden": ("hidden",)}
    return Net(modules, stages=stages, head="head", shape=(features,), classes=clients)


def unknown_origin(logits: Tensor) -> Tensor:
    """KL(uniform || D(z)) = -log N - mean_k log D_k(z), mean over the batch, from (B, N)."""
    return -logits.log_softmax(1).mean() - math.log(logits.shape[1])
