"""Libraries that a report can use and does not need: is one there, and how to get it.

Figures need matplotlib and data frames pandas; tables, pages and everything else work without.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from fedshift.base.errors import ConfigError


def has_matplotlib() -> bool:
    """Whether figures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def figures() -> Any:
    """The module that draws, or one line that says how to get what it needs."""
    if not has_matplotlib():
        raise ConfigError(
            'figures need matplotlib, which is not installed; pip install "fedshift[report]"'
        )
    return importlib.import_module("fedshift.report.figures")


def pandas() -> Any:
    """Pandas, or one line that says how to get it."""
    if importlib.util.find_spec("pandas") is None:
        raise ConfigError("data frames need pandas, which is not installed; pip install pandas")
    return importlib.import_module("pandas")
