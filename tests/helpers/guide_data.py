"""Inputs of made sites, whose classes and looks are known."""

from __future__ import annotations

import numpy as np

from fedshift.data.library.datasets import own_cards
from fedshift.data.registry import DATASETS


def forget_own() -> None:
    """Datasets that a test added are unknown to the next one."""
    for name in own_cards():
        DATASETS.forget(name)


def pictures(seed: int, n: int = 120, side: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Grey noise around 120; the upper half of a picture of class 1 is 60 brighter."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) // 2 % 2
    x = rng.normal(120, 20, (n, side, side, 1)).repeat(3, axis=3)
    x[:, : side // 2] += 60 * y[:, None, None, None]
    return x.clip(0, 255).astype(np.uint8), y


def rows(seed: int, n: int = 200, share: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Five columns, the first of which tells the class; ``share`` of the rows are of class 1."""
    rng = np.random.default_rng(seed)
    y = (rng.permutation(n) < round(share * n)).astype(int)
    x = rng.normal(size=(n, 5))
    x[:, 0] += 8 * y
    return x.astype(np.float32), y
