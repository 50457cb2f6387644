"""Datasets by name; the modules of ``data.library`` register those that we know."""

from __future__ import annotations

from collections.abc import Mapping

from fedshift.base.registry import Registry
from fedshift.data.samples import Domain

DATASETS: Registry[Mapping[str, Domain]] = Registry(
    "dataset", "fedshift.data.library", "fedshift.data"
)
register_dataset = DATASETS.register
