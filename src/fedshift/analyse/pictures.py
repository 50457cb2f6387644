"""The way to matplotlib, which not everybody has: an analysis without it has its table alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from fedshift.report import optional


def draw(make: Callable[[Any], Any]) -> Any:
    """The figure that ``make`` draws with ``analyse.drawing``; None if matplotlib is missing."""
    if not optional.has_matplotlib():
        return None
    return make(importlib.import_module("fedshift.analyse.drawing"))
