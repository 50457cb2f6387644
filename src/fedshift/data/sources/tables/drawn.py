"""Training and test rows of tables: as the column ``split`` says, else a fifth drawn per class.

``federated`` and ``replay`` call it, so that a site draws the same rows in a simulation and in a
deployment. Rows of one owner, and rows of equal content, are never on both sides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedshift.base.errors import DataError
from fedshift.data.sources.source import TEST_SHARE, draw_test
from fedshift.data.sources.tables.reading import Array, as_texts
from fedshift.data.sources.tables.sites import SiteTable, split_of
from fedshift.data.sources.tables.targets import Targets


def splits(
    sites: Sequence[SiteTable],
    targets: Targets,
    used: Sequence[str],
    owners: Sequence[str],
    *,
    alone: bool = False,
) -> tuple[list[Array], list[str]]:
    """Split codes per site: the column ``split``, else a fifth of each class drawn as test.

    ``owners`` are id-like columns: where one names several rows, they are drawn together. With
    ``alone``, the split of a row depends on that row alone, see :func:`each_row`.
    """
    if alone:
        return [each_row(site, used) for site in sites], []
    out, notes = [], []
    for site in sites:
        given = split_of(site)
        y = targets.y[site.name]
        split = np.zeros(len(y), np.uint8) if given is None else given
        if not (split == 2).any():
            rows = np.flatnonzero(split == 0)
            strata = y[rows] if targets.objective == "classification" else np.zeros(len(rows), int)
            several = [n for n in owners if len(set(site.columns[n])) < len(site)]
            split[rows] = draw_test(_content(site, several[:1] or used)[rows], strata, site.name)
            notes += [
                f"site {site.name!r}: rows of one {n!r} are drawn together" for n in several[:1]
            ]
            if given is not None:
                notes.append(
                    f"site {site.name!r}: column split marks no test rows; a fifth is drawn"
                )
        out.append(split)
    return out, notes


def each_row(site: SiteTable, used: Sequence[str]) -> Array:
    """Split codes of which each is a function of its own row: the column ``split``, else a hash.

    So a row that is added or removed changes no other row's split, which differential privacy of
    training rows needs. About a fifth becomes test rows; equal rows are on one side.
    """
    given = split_of(site)
    if given is None:
        key = hashlib.blake2b(site.name.encode(), digest_size=32).digest()
        cells = zip(*(as_texts(site.columns[name]).tolist() for name in used), strict=True)
        return np.array([2 * (_share(row, key) < TEST_SHARE) for row in cells], dtype=np.uint8)
    if not (given == 2).any():
        raise DataError(
            f"site {site.name!r}: column split marks no test rows, and under epsilon none are "
            "drawn beside it; mark some, or leave the column out", "drop=split",
        )  # fmt: skip
    return given


def _share(row: Sequence[str | None], key: bytes) -> float:
    """A number from 0 to 1 that is the same for equal rows."""
    mark = hashlib.blake2b(repr(row).encode(), key=key, digest_size=8).digest()
    return int.from_bytes(mark, "big") / 2**64


def _content(site: SiteTable, used: Sequence[str]) -> Array:
    """The used cells as numbers (N, D), equal where rows are equal, to keep copies together."""
    parts = []
    for name in used:
        column = site.columns[name]
        if column.dtype == object:
            codes: dict[Any, int] = {}
            cells = column.tolist()
            column = np.array([codes.setdefault(v, len(codes)) for v in cells], np.float64)
        parts.append(column)
    return np.ascontiguousarray(np.stack(parts, axis=1))


def is_drawn(site: SiteTable) -> bool:
    """Whether the table marks no test rows, so that they were drawn."""
    given = split_of(site)
    return given is None or not (given == 2).any()
