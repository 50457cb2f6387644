"""Files that are whole or absent: atomic writes, checksums, errors that name the file."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import platformdirs
from torch import Tensor

from fedshift.base import tree
from fedshift.base.errors import RunError
from fedshift.base.tree import Tree

if sys.platform != "win32":
    import fcntl


def home() -> Path:
    """The user's cache: FEDSHIFT_HOME, or the platform's place for caches."""
    chosen = os.environ.get("FEDSHIFT_HOME")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("fedshift"))


@contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Turn what the disk says into one line that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist; check the path") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"cannot use {path}: {reason}; free space or choose another --out"
        ) from error


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold a folder against other processes; the lock ends with the process, whatever ends it."""
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
                f"another process is writing {folder}; wait for it, or choose another --out"
            ) from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def write_bytes(path: Path, blob: bytes) -> None:
    """Write to a neighbour, then rename: a reader sees the old file or the new one."""
    with readable_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(blob)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Readable JSON, atomically."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """JSON of a file of ours."""
    with readable_errors(path):
        text = path.read_text()
    try:
        return json.loads(text)
    except ValueError as error:
        raise RunError(f"{path} is not valid JSON ({error}); delete it and run again") from error


def write_tensors(
    path: Path, entries: Mapping[str, Tensor], meta: Mapping[str, Any] | None = None
) -> None:
    """A safetensors file that carries the checksum of its data, written atomically."""
    head, data = _split(tree.to_bytes(entries, meta))
    head["__metadata__"]["sha256"] = hashlib.sha256(data).hexdigest()
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)  # the format wants its data aligned
    write_bytes(path, len(text).to_bytes(8, "little") + text + data)


def read_tensors(path: Path) -> tuple[Tree, dict[str, Any]]:
    """Inverse of :func:`write_tensors`; a damaged file is refused."""
    with readable_errors(path):
        blob = path.read_bytes()
    try:
        head, data = _split(blob)
        whole = head["__metadata__"]["sha256"] == hashlib.sha256(data).hexdigest()
    except (ValueError, KeyError):
        whole = False
    if not whole:
        raise RunError(f"{path} is damaged: its checksum does not match; restore or delete it")
    return tree.from_bytes(blob)


def _split(blob: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors blob."""
    size = int.from_bytes(blob[:8], "little")
    return json.loads(blob[8 : 8 + size]), blob[8 + size :]
