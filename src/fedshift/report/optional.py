"""Optional libraries of reports: whether one is installed, and how to install it.

Figures need matplotlib and data frames need pandas; everything else must work without them. Modules
that use either go through here and never import it themselves, ``report.figures`` excepted.
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
    """The module that draws figures; without matplotlib an error that says how to install it."""
    if not has_matplotlib():
        raise ConfigError(
            'figures need matplotlib, which is not installed; pip install "fedshift[report]"'
        )
    return importlib.import_module("fedshift.report.figures")


def pandas() -> Any:
    """The pandas module; an error that says how to install it if it is missing."""
    if importlib.util.find_spec("pandas") is None:
        raise ConfigError("data frames need pandas, which is not installed; pip install pandas")
    return importlib.import_module("pandas")
