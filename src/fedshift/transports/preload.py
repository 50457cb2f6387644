"""Imported once by the process that worker processes are forked from: what a first visit needs."""

from __future__ import annotations

import fedshift.transports.pool  # noqa: F401
from fedshift.core.registry import BACKBONES, METHODS, SCENARIOS
from fedshift.data.registry import DATASETS

for _registry in (BACKBONES, DATASETS, METHODS, SCENARIOS):
    _registry.entries()
