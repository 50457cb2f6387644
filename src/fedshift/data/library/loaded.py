"""Loaded datasets, cached once per process, and the names of all known datasets.

Everything that needs samples goes through :func:`load`. Worker processes call :func:`adopt` with
the arrays that their parent put into shared memory, and must never read the dataset again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from fedshift.base.errors import UnknownNameError
from fedshift.data.library.datasets import own_datasets
from fedshift.data.registry import DATASETS
from fedshift.data.samples import Domain


def datasets() -> list[str]:
    """Names of all datasets; your own are looked up anew, because some may have been added."""
    own_datasets()
    return list(DATASETS.entries())


_LOADED: dict[tuple[str, str], Mapping[str, Domain]] = {}  # by dataset and options


def load(dataset: str, options: str = "{}") -> Mapping[str, Domain]:
    """The stored domains of a dataset, read once per process; ``options`` is a JSON object."""
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
    """Make :func:`load` return domains that are already in memory."""
    _LOADED[dataset, options] = stores
