"""A file of JSON lines that only grows: each line is on the disk before ``append`` returns.

``runs.spending`` and a site's log of requests (``deploy.policy``) write what must not be forgotten
if the process or the machine dies in the next moment. No line is ever changed or taken back.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedshift.base.errors import RunError
from fedshift.base.files import readable_errors

if sys.platform != "win32":
    import fcntl

Row = dict[str, Any]
PRIVATE = 0o600  # file mode


class DurableLines:
    """The rows of a file, which need not exist yet."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def append(self, row: Row) -> None:
        """Add a row and wait until it is on the disk; a new file is for its owner alone."""
        with readable_errors(self.file):
            new = not self.file.exists()
            descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE)
            with os.fdopen(descriptor, "a") as file:
                file.write(json.dumps(row) + "\n")
                file.flush()
                os.fsync(file.fileno())
            if new and sys.platform != "win32":
                folder = os.open(self.file.parent, os.O_RDONLY)
                os.fsync(folder)
                os.close(folder)

    def read(self) -> list[Row]:
        """Every row. A last line that was cut off is removed: what it was about never happened."""
        if not self.file.exists():
            return []
        with readable_errors(self.file):
            text = self.file.read_bytes()
            whole = text[: text.rfind(b"\n") + 1]
            if whole != text:
                os.truncate(self.file, len(whole))
        try:
            rows = [json.loads(line) for line in whole.splitlines()]
        except (ValueError, RecursionError):
            raise self.damaged() from None
        if not all(isinstance(row, dict) for row in rows):
            raise self.damaged()
        return rows

    def damaged(self) -> RunError:
        """The error for a file that cannot be read."""
        return RunError(
            f"{self.file} has a damaged line, so nobody knows what was spent; restore it from a "
            "backup, or begin anew"
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other process is in such a block for the same file."""
        lock = self.file.with_name(f".{self.file.name}.lock")
        with readable_errors(lock), lock.open("w") as file:
            if sys.platform != "win32":
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
