"""Rules on each coordinate of the clients' entries, in blocks of columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedshift import (
    Tree,
    Update,
)
from fedshift.core.reply_stack import blocks

WIDTH = 2**14  # columns that are sorted or multiplied at a time
Columns = Callable[[Tensor], Tensor]  # from (n, width) to (width,)


def columnwise(updates: Sequence[Update], keys: frozenset[str] | set[str], rule: Columns) -> Tree:
    """``rule`` on each coordinate of the entries ``keys``, block by block; dtypes are kept."""
    out: Tree = {}
    for key in (k for k in updates[0].shared if k in keys):
        versions = [u.shared[key] for u in updates]
        parts = [rule(block) for block in blocks(versions, WIDTH)]
        out[key] = torch.cat(parts).view(versions[0].shape).to(versions[0].dtype)
    return out


def median(block: Tensor) -> Tensor:
    """Median of each column (width,); for even n the mean of the two middle values."""
    ranked, n = block.sort(dim=0).values, len(block)
    low, high = ranked[(n - 1) // 2], ranked[n // 2]
    return low / 2 + high / 2 if block.is_floating_point() else low  # their sum may overflow
