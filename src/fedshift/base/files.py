"""Files on disk: atomic writes, one writer per folder, and errors that name the file.

Run directories, datasets, deployments and reports write through here, so that a process killed at
any moment leaves either the old file or the new one. No function may leave a partly written file
under its final name.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import platformdirs

from fedshift.base.errors import RunError

if sys.platform != "win32":
    import fcntl


def home() -> Path:
    """The user's cache folder: FEDSHIFT_HOME if set, else the platform's standard one."""
    chosen = os.environ.get("FEDSHIFT_HOME")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("fedshift"))


@contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Turn an operating-system error inside the block into a one-line error that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist; check the path") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"cannot use {path}: {reason}; free space or choose another folder", "out=DIR"
        ) from error


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock a folder for the block, so that no second process writes to it.

    The lock is an ``flock`` on a hidden file beside the folder. The kernel releases it when the
    process ends for whatever reason, so a crash leaves no stale lock. Windows has no ``flock``;
    there, nothing is locked.
    """
    lock = folder.with_name(f".{folder.name}.lock")
    with readable_errors(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    with file:
        try:
            if sys.platform != "win32":
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"another process is writing {folder}; wait for it, or choose another folder",
                "out=DIR",
            ) from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def write_bytes(path: Path, blob: bytes) -> None:
    """Write to a temporary file beside ``path``, then rename it: readers see the old or the new."""
    with readable_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(blob)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file that we wrote; a missing or damaged one is an error that names it."""
    with readable_errors(path):
        text = path.read_text()
    try:
        return json.loads(text)
    except ValueError as error:
        raise RunError(f"{path} is not valid JSON ({error}); delete it and run again") from error
