"""Loaded datasets, cached once per process, and the names of all known datasets.

Everything that needs samples goes through :func:`load`. Worker processes call :func:`adopt` with
the arrays that their parent put into shared memory, and must never read the dataset again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fedshift.base.errors import UnknownNameError
from fedshift.base.files import home
from fedshift.data.encoders import encoded
from fedshift.data.library.datasets import own_datasets
from fedshift.data.registry import DATASETS
from fedshift.data.samples import Domain


def datasets() -> list[str]:
    """Names of all datasets; your own are looked up anew, because some may have been added."""
    own_datasets()
    return list(DATASETS.entries())


Stamp = tuple[tuple[str, int], ...]
# By dataset and options: the domains, and the stamp of their store (None: never out of date).
_LOADED: dict[tuple[str, str], tuple[Stamp | None, Mapping[str, Domain]]] = {}


def load(dataset: str, options: str = "{}") -> Mapping[str, Domain]:
    """The stored domains of a dataset; ``options`` is a JSON object.

    They are read once per process, and again if the dataset has been prepared anew meanwhile. The
    option ``encoder`` is one of every dataset of images: their features, see ``data.encoders``.
    """
    stamp, domains = _LOADED.get((dataset, options), (None, None))
    if domains is not None and stamp in (None, _stamp(dataset)):
        return domains
    datasets()
    entry = DATASETS.get(dataset)
    given = json.loads(options)
    encoder = given.pop("encoder", None) if "encoder" not in entry.options else None
    for key in given:
        if key not in entry.options:
            raise UnknownNameError.of(f"option of dataset {dataset!r}", key, entry.options)
    found = entry.build(**given)
    if encoder:
        folder = home() / ".features"
        found = {name: encoded(domain, encoder, folder) for name, domain in found.items()}
    _LOADED[dataset, options] = _stamp(dataset), found
    return found


def _stamp(dataset: str) -> Stamp:
    """Which variants of a dataset are prepared, and when each was written."""
    found = (home() / dataset).glob("[!.]*/dataset.json")
    return tuple(sorted((path.parent.name, path.stat().st_mtime_ns) for path in found))


def adopt(dataset: str, options: str, stores: Mapping[str, Domain]) -> None:
    """Make :func:`load` return domains that are already in memory."""
    _LOADED[dataset, options] = None, stores


@contextmanager
def adopted(dataset: str, stores: Mapping[str, Domain]) -> Iterator[None]:
    """Let :func:`load` return these domains, without options, inside the block."""
    adopt(dataset, "{}", stores)
    try:
        yield
    finally:
        _LOADED.pop((dataset, "{}"), None)
