"""The registry of datasets by name.

The modules of ``data.library`` register ours, other packages theirs; scenarios and the command
line look a dataset up here. Registering must never read data: that happens when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedshift.base.registry import Registry
from fedshift.data.samples import Domain

DATASETS: Registry[Mapping[str, Domain]] = Registry(
    "dataset", "fedshift.data.library", "fedshift.data"
)
register_dataset = DATASETS.register
