"""Libraries that not everybody needs: whether one is installed, and how to get it.

Whoever is about to use an extra (Flower, matplotlib, pandas, ...) asks here first, so that what is
missing is one line with the command that installs it, never a traceback. Imports nothing heavy.
"""

from __future__ import annotations

import importlib.util

from fedshift.base.errors import ConfigError


def is_installed(module: str) -> bool:
    """Whether ``module`` can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


def require(module: str, need: str, package: str) -> None:
    """Raise unless ``module`` is installed; ``need`` begins the sentence, ``package`` ends it.

    Examples:
        >>> require("no_such_module", "figures need no_such_module", '"fedshift[report]"')
        Traceback (most recent call last):
        fedshift.base.errors.ConfigError: figures need no_such_module, which is not installed; \
pip install "fedshift[report]"
    """
    if not is_installed(module):
        raise ConfigError(f"{need}, which is not installed; pip install {package}")


def require_flower(need: str = "deployment needs Flower") -> None:
    """Raise unless Flower is installed."""
    require("flwr", need, '"fedshift[flower]"')
