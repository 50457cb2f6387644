"""Everything that a user can mend; the command line prints one line and exits with code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Self


class FedshiftError(Exception):
    """Base of all our errors; the message says what was found, what was expected, what to do.

    The message speaks Python. ``options`` names the arguments that mend it, such as ``resume``,
    ``allow=public_set`` or ``scenario.unseen=DOMAIN``, and the command line adds how it spells
    them (``--resume``, ``--allow public_set``, ``--set scenario.unseen=DOMAIN``).
    """

    def __init__(self, message: str = "", *options: str) -> None:
        super().__init__(message)
        self.options = options


class ConfigError(FedshiftError):
    """A value, an option or a combination that cannot work."""


class UnknownNameError(FedshiftError):
    """A name that nothing is registered under."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str]) -> Self:
        """With the nearest names, or all of them if none is near."""
        known = sorted(known)
        near = difflib.get_close_matches(name, known, 3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
        return cls(f"no {kind} is called {name!r}; {hint}")


class ClashError(FedshiftError):
    """Two parts that cannot stand in one method."""


class NotAllowedError(FedshiftError):
    """A part needs something that the scenario does not allow."""


class DataError(FedshiftError):
    """Data that cannot be trained on or read."""


class DivergedError(FedshiftError):
    """A loss or a weight is no longer a finite number."""


class RunError(FedshiftError):
    """A run directory that is missing, damaged, occupied or not writable."""
