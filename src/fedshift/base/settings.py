"""Values from text: ``key=value`` lists, converted to the type of the value they replace.

Command lines, run files and method expressions all go through these functions, so that ``mu=0.1``
means the same everywhere. Text is never evaluated as Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedshift.base.errors import ConfigError


def convert(name: str, value: Any, old: Any) -> Any:
    """``value`` in the type of ``old``, which it replaces; only text is converted.

    ``none`` and ``null`` become None. Where ``old`` is None its type is unknown; a number is
    expected.
    """
    if not isinstance(value, str) or isinstance(old, str):
        return value
    if value.lower() in ("none", "null"):
        return None
    wanted = float if old is None else type(old)
    try:
        if wanted is bool:
            return {"true": True, "false": False, "1": True, "0": False}[value.lower()]
        return wanted(value)
    except (ValueError, KeyError):
        raise ConfigError(f"{name} is {value!r}; it takes a {wanted.__name__}") from None


def parse_settings(items: Iterable[str]) -> dict[str, str]:
    """``["mu=0.1"]`` to ``{"mu": "0.1"}``."""
    out = {}
    for item in filter(None, (i.strip() for i in items)):
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"cannot read the setting {item!r}; write key=value")
        out[key.strip()] = value.strip()
    return out
