"""What every reader returns: a domain, where its rows come from, what was left out and why.

The readers of this folder build on it, and ``library.prepare`` consumes it. It also draws a test
split where the source has none, which must never put two copies of one input on both sides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fedshift.base import seeds
from fedshift.base.process import on_all_cores
from fedshift.data.samples import Domain

Array = NDArray[Any]
BLOCK = 256  # rows that are hashed at a time
TEST_SHARE = 0.2  # where the source marks no test rows


@dataclass(frozen=True)
class Read:
    """One domain as it was read, where its rows come from, what was left out and why, remarks."""

    domain: Domain
    ids: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    span: tuple[float, float] | None = None  # values that became 0 and 255, if more than 8 bits


class Source(Protocol):
    """A domain that can be read; listing its classes is cheap, reading its rows is not."""

    @property
    def name(self) -> str:
        """Name of the domain."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes that occur."""

    def read(self, classes: Sequence[str], size: int | None) -> Read:
        """The rows of the given classes, labelled by their order; images resized to ``size``."""


def assemble(name: str, x: Array, y: Array, split: Array | None, classes: Sequence[str]) -> Domain:
    """A domain from arrays; if no row is marked as test, a fifth of each class is drawn."""
    drawn = split is None or not (split == 2).any()
    if split is None or drawn:
        split = draw_test(x, y, name)
    inputs = torch.from_numpy(np.ascontiguousarray(x))
    labels, marks = torch.from_numpy(y.astype(np.int64)), torch.from_numpy(split.astype(np.uint8))
    return Domain(name, inputs, labels, marks, tuple(classes), drawn)


def content(x: Array) -> list[bytes]:
    """A hash per row, on all cores: equal inputs have equal hashes."""
    parts = [x[start : start + BLOCK] for start in range(0, len(x), BLOCK)]
    return [mark for marks in on_all_cores(_marks, parts) for mark in marks]


def _marks(rows: Array) -> list[bytes]:
    return [hashlib.blake2b(row.tobytes(), digest_size=12).digest() for row in rows]


def draw_test(x: Array, y: Array, name: str) -> Array:
    """Split codes of a test set drawn per class; a function of the data.

    Rows of equal content form a group, and whole groups are drawn until a class has its fifth, so
    that a duplicate of a test row is never a training row.
    """
    _, group = np.unique(np.array(content(x), dtype="S12"), return_inverse=True)
    split = np.zeros(len(y), dtype=np.uint8)
    for label in np.unique(y):
        mine = y == label
        need = round(TEST_SHARE * mine.sum()) - (split[mine] == 2).sum()
        groups, sizes = np.unique(group[mine & (split == 0)], return_counts=True)
        order = seeds.numpy("test split", name, label).permutation(len(groups))
        before = sizes[order].cumsum() - sizes[order]
        split[np.isin(group, groups[order][before < need])] = 2
    return split
