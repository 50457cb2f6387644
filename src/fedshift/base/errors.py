"""Exceptions for problems that the user can fix.

Every layer raises them, as early as it can; the command line prints the message as one line,
without a traceback, and exits with code 2. They are never used for bugs of ours, which must keep
their traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Self

LISTED = 12  # names that an error lists where none is close


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
        """An error that suggests the closest known names, or lists some if none is close.

        A name of several parts, such as ``csac/pacs/sketch``, is close if one of its parts is.
        """
        known = sorted(known)
        near = _nearest(name, known)
        more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
        listed = f"known: {', '.join(known[:LISTED])}{more}"
        hint = f"did you mean {' or '.join(near)}?" if near else listed
        return cls(f"no {kind} is called {name!r}; {hint}")


def _nearest(name: str, known: Sequence[str]) -> list[str]:
    """At most three names that are close to ``name``, or that have a part close to it."""
    near = difflib.get_close_matches(name, known, 3, cutoff=0.5)
    parts = {part for one in known for part in one.split("/")}
    words = difflib.get_close_matches(name.lower(), parts, 1, cutoff=0.7)
    inside = [one for one in known if words and words[0] in one.split("/")]
    return list(dict.fromkeys([*near, *inside]))[:3]


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
