"""The project's one logger, ``fedshift``; the library never prints by other means.

A Python user configures it like any other (``logging.getLogger("fedshift").setLevel("INFO")``
shows every round); warnings are shown by default. The command line renders it with rich. Our own
processes without a terminal (Flower's apps, the daemons of a deployment) call :func:`to_streams`.
"""

from __future__ import annotations

import logging
import sys
import unicodedata
from functools import cache

log = logging.getLogger("fedshift")


def printable(text: str) -> str:
    """Text without control characters, which a terminal would obey; each is shown as its code.

    Messages quote names and errors that come from files and from other machines.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    # Cs: half of a pair, which no stream can encode.
    control = unicodedata.category(character) in ("Cc", "Cf", "Cs") and character != "\t"
    return character.encode("unicode_escape").decode() if control else character


class PlainLines(logging.Handler):
    """Writes one line per record: warnings and errors to stderr, everything else to stdout.

    ``sys.stdout`` and ``sys.stderr`` are looked up for each record, because Flower replaces them
    while an app runs.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record and flush the stream."""
        serious = record.levelno >= logging.WARNING
        stream = sys.stderr if serious else sys.stdout
        kind = {logging.WARNING: "note: ", logging.ERROR: "error: "}.get(record.levelno, "")
        stream.write(f"{kind}{printable(' '.join(record.getMessage().split()))}\n")
        stream.flush()


def to_streams() -> None:
    """Print the library's log on this process's streams; repeated calls change nothing."""
    if not any(isinstance(handler, PlainLines) for handler in log.handlers):
        log.addHandler(PlainLines())
        log.setLevel(logging.INFO)
        log.propagate = False


@cache
def warn_once(message: str) -> None:
    """Log a warning once per process, for conditions that are met repeatedly (a damaged file)."""
    log.warning("%s", message)
