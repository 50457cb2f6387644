"""Exceptions for problems that the user can fix.

Every layer raises them, as early as it can; the command line prints the message as one line,
without a traceback, and exits with code 2. They are never used for bugs of ours, which must keep
their traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Self


class FedshiftError(Exception):
    """Base of all our errors; the message says what was found, what was expected, what to do.

    The message uses the names of the Python interface. ``options`` lists the arguments that fix
    the problem, such as ``resume``, ``allow=public_set`` or ``scenario.unseen=DOMAIN``; the command
    line appends them in its own spelling (``--resume``, ``--allow public_set``,
    ``--set scenario.unseen=DOMAIN``).
    """

    def __init__(self, message: str = "", *options: str) -> None:
        super().__init__(message)
        self.options = options


class ConfigError(FedshiftError):
    """A value, an option or a combination that cannot work."""


class UnknownNameError(FedshiftError):
    """A name under which nothing is registered."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str]) -> Self:
        """An error that suggests the closest known names, or lists all of them if none is close."""
        known = sorted(known)
        near = difflib.get_close_matches(name, known, 3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
        return cls(f"no {kind} is called {name!r}; {hint}")


class ClashError(FedshiftError):
    """Two parts that cannot be used in the same method, or two definitions of the same name."""


class NotAllowedError(FedshiftError):
    """A part needs something that the scenario does not allow."""


class DataError(FedshiftError):
    """Data that cannot be read, or on which training is impossible."""


class DivergedError(FedshiftError):
    """Training diverged: a loss or a weight is NaN or infinite."""


class RunError(FedshiftError):
    """A run that cannot go on: files missing, damaged or locked, or too few sites answer."""
