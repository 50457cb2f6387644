"""Files on disk: atomic writes, and errors that name the file.

Run directories, datasets, deployments and reports write through here, so that a process killed at
any moment leaves either the old file or the new one. No function may leave a partly written file
under its final name.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import platformdirs

from fedshift.base.errors import RunError
from fedshift.base.logs import printable

PART = ".part"  # of a file that is being written


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


def write_bytes(path: Path, blob: bytes, *, durable: bool = False) -> None:
    """Write to a temporary file beside ``path``, then rename it: readers see the old or the new.

    That holds if the process is killed. ``durable`` makes it a commit that holds if the power
    fails: all that was written before reaches the disk, then the new name does, and then we go on.
    It costs some milliseconds.
    """
    with readable_errors(path):
        fresh = not path.parent.is_dir()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
        try:
            part.write_bytes(blob)
            if durable:
                settle(path.parent)
            part.replace(path)
            for folder in [path.parent, *([path.parent.parent] if fresh else [])] * durable:
                sync_folder(folder)
        finally:
            part.unlink(missing_ok=True)


def is_part(path: Path) -> bool:
    """Whether a file is one that was never finished: what a killed process leaves behind."""
    return path.name.startswith(".") and path.suffix == PART


def sync_folder(folder: Path) -> None:
    """Let the names in a folder reach the disk; not on Windows, where folders cannot be opened."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def settle(folder: Path) -> None:
    """Let everything that was written below ``folder``, by any process, reach the disk.

    One wait for a whole round instead of one per file. On Linux it covers the folder's file system,
    elsewhere all of them; on Windows nothing.
    """
    if sys.platform.startswith("linux"):
        handle = os.open(folder, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(handle) == 0:
                return
        finally:
            os.close(handle)
    if sys.platform != "win32":
        os.sync()


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Write indented JSON atomically."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode(), durable=durable)


def read_json(path: Path) -> Any:
    """Read a JSON file that we wrote; a missing or damaged one is an error that names it."""
    with readable_errors(path):
        blob = path.read_bytes()
    try:
        return from_json(blob)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not valid JSON ({error}); delete it and run again") from error


def from_toml(text: str) -> dict[str, Any]:
    """The values of a TOML file; one that is nested too deep for Python is no TOML either."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("its lists or tables are nested too deep") from None


def from_json(blob: bytes) -> Any:
    """A JSON value without control characters in its texts, which a terminal would obey.

    Nor has it half a surrogate pair, which JSON can escape and no file or stream can hold.
    """
    value = json.loads(blob)
    return _printable(value) if re.search(rb"\\u00|\\u[dD]", blob) else value


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {printable(key): _printable(item) for key, item in value.items()}
    return value
