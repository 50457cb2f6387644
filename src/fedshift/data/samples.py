"""Samples as indices into one stored array, turned into normalised float batches on demand.

Every client, evaluation and worker process reads its data through :class:`Samples`. Many of them
share one stored array, so nothing here may write to it or copy it per client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Pixels = Literal["centred", "unit", "imagenet", "inception", "cifar100"]
SCALES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {  # mean and std for [0, 1]
    "centred": ((0.5,), (0.25,)),
    "unit": ((0.0,), (1.0,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "inception": ((0.5,), (0.5,)),  # from -1 to 1, as weights that come from TensorFlow expect
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}


@dataclass(frozen=True)
class Domain:
    """All rows of one domain (one look of the data) as stored; never copied per client."""

    name: str
    x: Tensor  # (N, H, W, C) uint8 images, or (N, D) float vectors
    y: Tensor  # (N,) int64 classes, (N, K) float labels of 0 and 1, or (N,) float numbers
    split: Tensor  # (N,) uint8: 0 train, 1 val, 2 test
    classes: tuple[str, ...]  # one name per output of a net: classes, labels, or the number's
    drawn: bool | None = False  # the source marks no test rows, so they were drawn; None: unknown
    checksum: str = ""  # of the arrays as stored; empty: not known yet

    @property
    def objective(self) -> str:
        """The kind of target: classification, multi-label or regression."""
        if not self.y.is_floating_point():
            return "classification"
        return "multi-label" if self.y.dim() == 2 else "regression"

    @property
    def strata(self) -> Tensor:
        """Class of each row (N,), which splits keep in proportion; all 0 where there is none."""
        return self.y if self.objective == "classification" else torch.zeros(len(self.y)).long()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input as a net sees it."""
        if self.x.dim() == 4:
            return (self.x.shape[3], self.x.shape[1], self.x.shape[2])
        return tuple(self.x.shape[1:])

    def rows(self, split: int) -> Tensor:
        """Indices of a split."""
        return (self.split == split).nonzero().flatten()


@dataclass(frozen=True)
class Samples:
    """Some rows of a stored array with their labels."""

    x: Tensor  # the store, (N, H, W, C) uint8 or (N, D) float
    y: Tensor  # as in Domain
    rows: Tensor  # (n,) int64
    pixels: Pixels = "centred"  # how images become inputs
    domains: Tensor | None = None  # (N,) int64, number of each row's domain; None: all of one

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> Tensor:
        """Targets of the rows, (n,) or (n, K)."""
        return self.y[self.rows]

    def take(
        self, positions: Tensor, change: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Inputs (B, *shape) as floats and labels (B,) at ``positions`` within ``rows``.

        ``change`` (augmentation) gets the images in [0, 1], before they are normalised.
        """
        rows = self.rows.index_select(0, positions.to(self.rows.device))
        x = as_input(self.x.index_select(0, rows), self.pixels, change)
        return x, self.y.index_select(0, rows)

    def domains_at(self, positions: Tensor) -> Tensor:
        """The number (B,) of the domain of each sample at ``positions``; 0 if not known."""
        if self.domains is None:
            return torch.zeros(len(positions), dtype=torch.int64, device=self.rows.device)
        return self.domains.index_select(0, self.rows[positions.to(self.rows.device)])

    def chunks(self, size: int = 512) -> Iterator[tuple[Tensor, Tensor]]:
        """All samples in order, in large batches."""
        for positions in split_rows(torch.arange(len(self)), size):
            yield self.take(positions)

    def unlabelled(self) -> Samples:
        """The same inputs with every label set to -1, for code that must not see the labels."""
        return replace(self, y=torch.full_like(self.y, -1))


def split_rows(rows: Tensor, size: int) -> list[Tensor]:
    """Batches of ``size``; a trailing single row joins the batch before it.

    BatchNorm cannot normalise one vector, and dropping the row would waste a labelled example.
    """
    chunks = list(rows.split(size))
    if len(chunks) > 1 and len(chunks[-1]) == 1:
        chunks[-2:] = [torch.cat(chunks[-2:])]
    return chunks


def as_input(
    stored: Tensor, pixels: Pixels = "centred", change: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Stored rows as a net's input: images become normalised channels-first floats."""
    if stored.dim() != 4:
        return stored.float()
    x = stored.permute(0, 3, 1, 2)  # (B, C, H, W), channels-last in memory
    mean, std = SCALES[pixels]
    if change is None and len(mean) == 1:
        return x.mul(1 / (255 * std[0])).sub_(mean[0] / std[0])  # uint8 to float in one pass
    x = x.mul(1 / 255)
    x = change(x) if change is not None else x
    shift, scale = torch.tensor([mean, std], device=x.device)[:, :, None, None]
    return x.sub(shift).div_(scale)


def union(parts: list[Samples]) -> Samples:
    """One set of samples from several; the rows are copied, because each set has its own array."""
    if len(parts) == 1:
        return parts[0]
    x = torch.cat([p.x[p.rows] for p in parts])
    labels = torch.cat([p.labels for p in parts])
    domains = torch.cat([p.domains_at(torch.arange(len(p))) for p in parts])
    return Samples(x, labels, torch.arange(len(x)), parts[0].pixels, domains)
