"""What the fork server imports once, so that worker processes start with everything in memory.

``transports.pool`` names this module as the fork server's preload. It only imports modules and
fills the registries; it must start no thread, whose locks every child would inherit.
"""

from __future__ import annotations

import fedshift.transports.pool  # noqa: F401
from fedshift.core.registry import BACKBONES, METHODS, SCENARIOS
from fedshift.data.registry import DATASETS

for _registry in (BACKBONES, DATASETS, METHODS, SCENARIOS):
    _registry.entries()
