"""Cheap numbers of inputs: how images look, what columns hold, how long texts are.

``guide.shift`` compares sites by them and fits linear models on them. They are computed on a part
of the samples, drawn by a generator of its own, and never leave the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedshift.base import seeds
from fedshift.data.samples import Domain
from fedshift.data.sources.tables.preparation import NumberPlan, TablePreparation, TextPlan

Array = NDArray[Any]
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in the brightness that people see
GREY, COLOUR = 16, 4  # pixels of a side of the small grey and coloured pictures
COLUMNS = 1024  # of vectors that the quick models look at
LOOKS = {  # what is measured of an image, with the words for less and more of it
    "brightness": ("darker", "brighter"),
    "contrast": ("less contrast", "more contrast"),
    "colour": ("less colourful", "more colourful"),
    "warmth": ("bluer", "redder"),
    "sharpness": ("smoother", "sharper"),
}


@dataclass(frozen=True)
class Looked:
    """What was looked at of a domain: training and test rows, and numbers of each."""

    x: Array  # (n, F) what the quick models see
    named: Array  # (n, S) numbers that have names, in units that people know
    y: Array  # (n,) classes or numbers, or (n, K) labels
    test: Array  # (n,) which rows are test rows


@dataclass(frozen=True)
class Sight:
    """The numbers of all domains that were looked at."""

    names: tuple[str, ...]  # of the columns of ``named``
    domains: Mapping[str, Looked]
    unit: str  # what the quick models see, in words


def look_at(domains: Mapping[str, Domain], samples: int, preparation: Mapping[str, Any]) -> Sight:
    """Numbers of at most so many training rows, and as many test rows, of each domain."""
    rows = {name: chosen(domain, samples) for name, domain in domains.items()}
    if next(iter(domains.values())).x.dim() == 4:
        found = {n: _images(d, rows[n]) for n, d in domains.items()}
        return Sight(tuple(LOOKS), found, f"small pictures ({GREY}x{GREY} grey)")
    keep = _widest(domains, rows)
    held = {n: _vectors(d, rows[n], keep, plans_of(preparation, n)) for n, d in domains.items()}
    names = column_names(preparation, next(iter(domains)), next(iter(domains.values())).x.shape[1])
    unit = "the columns" if keep is None else f"the {COLUMNS} columns that vary most"
    return Sight(names, held, unit)


def chosen(domain: Domain, samples: int) -> Tensor:
    """Rows to look at, in stored order: training and validation rows, then test rows."""
    parts = []
    for name, own in (("train", domain.split != 2), ("test", domain.split == 2)):
        rows = own.nonzero().flatten()
        order = seeds.numpy("doctor", name, domain.name).permutation(len(rows))[:samples]
        parts.append(rows[torch.from_numpy(np.sort(order))])
    return torch.cat(parts)


def _images(domain: Domain, rows: Tensor) -> Looked:
    parts = [_of_images(domain.x[some]) for some in rows.split(256)]
    x, looks = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Looked(x, looks, domain.y[rows].numpy(), (domain.split[rows] == 2).numpy())


def _of_images(stored: Tensor) -> tuple[Array, Array]:
    """Small pictures (n, F), and brightness and the like (n, 5), of images (n, H, W, C) uint8."""
    x = stored.permute(0, 3, 1, 2).float() / 255  # (n, C, H, W)
    x = x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x[:, :3]
    grey = (x * torch.tensor(LUMA)[None, :, None, None]).sum(1)  # (n, H, W)
    small = F.adaptive_avg_pool2d(grey[:, None], GREY).flatten(1)
    colours = F.adaptive_avg_pool2d(x, COLOUR).flatten(1)
    return torch.cat([small, colours], 1).numpy(), looks(x, grey).numpy()


def looks(x: Tensor, grey: Tensor) -> Tensor:
    """Brightness, contrast, colour, warmth and sharpness (n, 5) of images (n, 3, H, W) in [0, 1].

    Mean and deviation of the grey image; mean of the largest less the smallest channel; mean of red
    less blue; mean difference between neighbouring grey pixels.

    >>> x = torch.tensor([0.5, 0.5, 0.25])[None, :, None, None].expand(1, 3, 2, 2)
    >>> looks(x, x[:, 0])[0].tolist()
    [0.5, 0.0, 0.25, 0.25, 0.0]
    """
    steps = [grey.diff(dim=axis).abs().flatten(1) for axis in (1, 2)]
    return torch.stack(
        [
            grey.flatten(1).mean(1),
            grey.flatten(1).std(1, correction=0),
            (x.amax(1) - x.amin(1)).flatten(1).mean(1),
            (x[:, 0] - x[:, 2]).flatten(1).mean(1),
            torch.cat(steps, 1).mean(1),
        ],
        dim=1,
    )


def _widest(domains: Mapping[str, Domain], rows: Mapping[str, Tensor]) -> Array | None:
    """The columns that vary most over all domains, if there are too many of them."""
    width = next(iter(domains.values())).x.shape[1]
    if width <= COLUMNS:
        return None
    x = torch.cat([domain.x[rows[name]].float() for name, domain in domains.items()])
    found: Array = np.sort(np.argsort(x.var(0).numpy())[-COLUMNS:])
    return found


def _vectors(
    domain: Domain, rows: Tensor, keep: Array | None, plans: TablePreparation | None
) -> Looked:
    x = domain.x[rows].numpy().astype(np.float64)
    named = in_units(x, plans) if plans else x
    test = (domain.split[rows] == 2).numpy()
    return Looked(x if keep is None else x[:, keep], named, domain.y[rows].numpy(), test)


def plans_of(preparation: Mapping[str, Any], domain: str) -> TablePreparation | None:
    """How the cells of a domain became numbers; None where that is not known."""
    told = preparation.get("all") or preparation.get("sites", {}).get(domain)
    return TablePreparation.from_json(told) if told else None


def widths(plans: TablePreparation) -> Sequence[int]:
    """Columns of the vector that each plan makes."""
    return [p.size if isinstance(p, TextPlan) else len(p.features) for p in plans.plans]


def in_units(x: Array, plans: TablePreparation) -> Array:
    """Vectors (n, D) as people know them (n, S): numbers unscaled, a text as its length in words.

    Of hashed words the entries that are not 0 are the distinct words, but for collisions.
    """
    parts, start = [], 0
    for plan, width in zip(plans.plans, _fitting(x, plans), strict=True):
        own = x[:, start : start + width]
        start += width
        if isinstance(plan, NumberPlan):
            own = np.concatenate([own[:, :1] * plan.scale + plan.mean, own[:, 1:]], axis=1)
        if isinstance(plan, TextPlan):
            own = (own != 0).sum(1, keepdims=True) if plan.encoder == "words" else own[:, :0]
        parts.append(own)
    return np.concatenate(parts, axis=1)


def _fitting(x: Array, plans: TablePreparation) -> Sequence[int]:
    """The plans' widths; sentence encoders share what is left."""
    found = list(widths(plans))
    open_ = [
        i for i, p in enumerate(plans.plans) if isinstance(p, TextPlan) and p.encoder != "words"
    ]
    rest = x.shape[1] - sum(w for i, w in enumerate(found) if i not in open_)
    for i in open_:
        found[i] = rest // len(open_)
    return found


def column_names(preparation: Mapping[str, Any], domain: str, width: int) -> tuple[str, ...]:
    """Names of what :func:`in_units` gives; of plain vectors their numbers."""
    plans = plans_of(preparation, domain)
    if plans is None:
        return tuple(f"column {i}" for i in range(width))
    names: list[str] = []
    for plan in plans.plans:
        if not isinstance(plan, TextPlan):
            names += plan.features
        elif plan.encoder == "words":
            names.append(f"{plan.name} (distinct words)")
    return tuple(names)


def holds_texts(preparation: Mapping[str, Any]) -> bool:
    """Whether a table's texts became vectors."""
    plans: Mapping[str, Any] = preparation.get("all") or next(
        iter(preparation.get("sites", {}).values()), {}
    )
    return any(one["kind"] == "text" for one in plans.get("plans", []))
