"""Updates as vectors: their inner products, and models that combine them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedshift import (
    Server,
    Tree,
    Update,
    tree,
)
from fedshift.core.reply_stack import blocks, weighted_sum
from fedshift.methods.shared.columns import WIDTH


def updates_gram(server: Server, updates: Sequence[Update]) -> Tensor:
    """Inner products (n, n) of the updates theta_k - theta over all parameters, in float64."""
    gram = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for key in sorted(server.parameters):
        old = server.shared[key].flatten()
        versions = [u.shared[key] for u in updates]
        for i, block in enumerate(blocks(versions, WIDTH)):
            moved = block.double() - old[i * WIDTH : (i + 1) * WIDTH].double()  # (n, width)
            gram.addmm_(moved, moved.t())
    return gram


def moved_by(server: Server, updates: Sequence[Update], shares: Tensor) -> Tree:
    """The model theta + sum_k shares_k (theta_k - theta), for every parameter; shares (n,)."""
    rest = 1 - shares.sum()
    out: Tree = {}
    for key, old in tree.pick(server.shared, server.parameters).items():
        total = weighted_sum([u.shared[key] for u in updates], shares)
        out[key] = total.add_(old.double() * rest).to(old.dtype)
    return out
