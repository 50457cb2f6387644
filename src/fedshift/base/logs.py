"""Our one logger, ``fedshift``; everything that the library has to tell goes through it.

A Python user configures it like any other (``logging.getLogger("fedshift").setLevel("INFO")``
tells of every round); warnings show by themselves. The command line renders it with rich. Our own
processes without a screen (Flower's apps, the daemons of a deployment) call :func:`to_streams`.
"""

from __future__ import annotations

import logging
import sys
from functools import cache

log = logging.getLogger("fedshift")


class PlainLines(logging.Handler):
    """One line per record: warnings and errors to the error stream, the rest to the output.

    The streams are looked up for each record, because Flower replaces them while an app runs.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, at once."""
        serious = record.levelno >= logging.WARNING
        stream = sys.stderr if serious else sys.stdout
        kind = {logging.WARNING: "note: ", logging.ERROR: "error: "}.get(record.levelno, "")
        stream.write(f"{kind}{' '.join(record.getMessage().split())}\n")
        stream.flush()


def to_streams() -> None:
    """Let this process print what the library tells, once however often it is called."""
    if not any(isinstance(handler, PlainLines) for handler in log.handlers):
        log.addHandler(PlainLines())
        log.setLevel(logging.INFO)
        log.propagate = False


@cache
def warn_once(message: str) -> None:
    """Warn of something that is looked at again and again, such as a damaged file."""
    log.warning("%s", message)
