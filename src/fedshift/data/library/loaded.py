"""Datasets in memory, once per process, and the names of all there are.

Everything that needs samples comes through :func:`load`. Worker processes :func:`adopt` what
their parent has put into shared memory instead of reading it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from fedshift.base.errors import UnknownNameError
from fedshift.data.library.datasets import own_datasets
from fedshift.data.registry import DATASETS
from fedshift.data.samples import Domain


def datasets() -> list[str]:
    """Names of all datasets, your own ones included, which may have grown since we looked."""
    own_datasets()
    return list(DATASETS.entries())


_LOADED: dict[tuple[str, str], Mapping[str, Domain]] = {}  # by dataset and options


def load(dataset: str, options: str = "{}") -> Mapping[str, Domain]:
    """The stored domains of a dataset, once per process; ``options`` is JSON."""
    if (dataset, options) in _LOADED:
        return _LOADED[dataset, options]
    datasets()
    entry = DATASETS.get(dataset)
    given = json.loads(options)
    for key in given:
        if key not in entry.options:
            raise UnknownNameError.of(f"option of dataset {dataset!r}", key, entry.options)
    _LOADED[dataset, options] = entry.build(**given)
    return _LOADED[dataset, options]


def adopt(dataset: str, options: str, stores: Mapping[str, Domain]) -> None:
    """Use domains that are in memory already in place of loading them."""
    _LOADED[dataset, options] = stores
