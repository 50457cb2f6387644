"""Counts of training samples by client, domain and class.

The engine's federation, the reports and the figures use them to show how a partition is skewed.
Counts only: nothing here moves a row or changes a share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedshift.data.dealing.shares import Ints, Share
from fedshift.data.samples import Domain


@dataclass(frozen=True)
class Holdings:
    """How many training rows of each domain and class each client holds."""

    clients: tuple[str, ...]
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    counts: Ints  # (clients, domains, classes)

    @property
    def mixed(self) -> bool:
        """Whether some client holds rows of more than one domain."""
        return bool(((self.counts.sum(2) > 0).sum(1) > 1).any())


def count_holdings(shares: Sequence[Share], domains: Mapping[str, Domain]) -> Holdings:
    """Count the rows that each client holds, by domain and class."""
    names = tuple(domains)
    first = next(iter(domains.values()))
    classes = max((domain.classes for domain in domains.values()), key=len)
    classes = classes if first.objective == "classification" else ("samples",)
    counts = np.zeros((len(shares), len(names), len(classes)), np.int64)
    for i, share in enumerate(shares):
        for name, rows in share.rows.items():
            labels = domains[name].strata[rows].numpy()
            counts[i, names.index(name)] = np.bincount(labels, minlength=len(classes))
    return Holdings(tuple(share.client for share in shares), names, classes, counts)
