"""Targets as probabilities, so that methods treat class indices and mixed labels alike."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import one_hot


def soft_targets(y: Tensor, classes: int) -> Tensor:
    """One-hot floats (B, K) of class indices (B,); floats stay as they are.

    Examples:
        >>> import torch
        >>> soft_targets(torch.tensor([1, 0]), 3).tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    return y if y.is_floating_point() else one_hot(y, classes).float()
