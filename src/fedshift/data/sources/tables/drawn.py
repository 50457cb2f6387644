"""Training and test rows of tables: as the column ``split`` says, else a fifth drawn per class.

``federated`` and ``replay`` call it, so that a site draws the same rows in a simulation and in a
deployment. Rows of one owner, and rows of equal content, are never on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedshift.data.sources.source import draw_test
from fedshift.data.sources.tables.reading import Array
from fedshift.data.sources.tables.sites import SiteTable, split_of
from fedshift.data.sources.tables.targets import Targets


def splits(
    sites: Sequence[SiteTable], targets: Targets, used: Sequence[str], owners: Sequence[str]
) -> tuple[list[Array], list[str]]:
    """Split codes per site: the column ``split``, else a fifth of each class drawn as test.

    ``owners`` are id-like columns: where one names several rows, they are drawn together.
    """
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
