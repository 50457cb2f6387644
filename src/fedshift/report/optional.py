"""Extras that a report can use and does not need: matplotlib for figures, pandas for frames.

Results and pages reach both through this module; tables and everything else work without. Figures
are drawn by ``report.figures``, which imports matplotlib and must be imported only here.
"""

from __future__ import annotations

import importlib
from typing import Any

from fedshift.base import extras


def has_matplotlib() -> bool:
    """Whether figures can be drawn."""
    return extras.is_installed("matplotlib")


def figures() -> Any:
    """The module that draws figures; without matplotlib an error that says how to install it."""
    extras.require("matplotlib", "figures need matplotlib", '"fedshift[report]"')
    return importlib.import_module("fedshift.report.figures")


def pandas() -> Any:
    """The pandas module; an error that says how to install it if it is missing."""
    extras.require("pandas", "data frames need pandas", "pandas")
    return importlib.import_module("pandas")
