"""Imported once by the process that worker processes are forked from: what a first visit needs."""

from __future__ import annotations

import fedshift.transports.pool  # noqa: F401
from fedshift.registry import BACKBONES, DATASETS, METHODS, SCENARIOS

for _registry in (BACKBONES, DATASETS, METHODS, SCENARIOS):
    _registry.entries()
