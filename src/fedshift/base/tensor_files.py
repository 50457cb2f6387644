"""Tensors on disk: safetensors files that carry a checksum of all they hold, written atomically.

Client states, checkpoints and exported weights all pass through here. Nothing is ever unpickled,
because a pickle from elsewhere can run code, and a damaged file is never read silently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedshift.base import tree
from fedshift.base.errors import RunError
from fedshift.base.files import readable_errors, write_bytes
from fedshift.base.tree import Tree

KEY = "sha256-of-all"  # of the header, with zeros in place of the digest, and the data
OLD_KEY = "sha256"  # of the data alone, in files before 0.3, which are still read
BLANK = "0" * 64


def write_tensors(
    path: Path,
    entries: Mapping[str, Tensor],
    meta: Mapping[str, Any] | None = None,
    *,
    durable: bool = False,
) -> None:
    """Write ``entries`` and JSON ``meta`` atomically, with a SHA-256 of everything in the header.

    ``durable`` is that of :func:`~fedshift.base.files.write_bytes`: a commit that survives a power
    failure, with all that was written before.
    """
    blob = tree.to_bytes(entries, meta)
    size = _header_size(blob)
    head = json.loads(blob[8 : 8 + size])
    head["__metadata__"][KEY] = BLANK
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)  # safetensors aligns its data to 8 bytes
    front, data = len(text).to_bytes(8, "little") + text, memoryview(blob)[8 + size :]
    digest = _digest(front, data)
    write_bytes(path, b"".join([_signed(front, BLANK, digest), data]), durable=durable)


def read_tensors(path: Path) -> tuple[Tree, dict[str, Any]]:
    """Inverse of :func:`write_tensors`; a file whose checksum does not match is an error."""
    with readable_errors(path):
        blob = path.read_bytes()
    try:
        whole = _is_whole(blob)
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise RunError(f"{path} is damaged: its checksum does not match; restore or delete it")
    return tree.from_bytes(blob)


def _is_whole(blob: bytes) -> bool:
    size = _header_size(blob)
    front, data = blob[: 8 + size], memoryview(blob)[8 + size :]
    held = json.loads(front[8:])["__metadata__"]
    if KEY not in held:
        return bool(held[OLD_KEY] == hashlib.sha256(data).hexdigest())
    return bool(held[KEY] == _digest(_signed(front, held[KEY], BLANK), data))


def _header_size(blob: bytes) -> int:
    size = int.from_bytes(blob[:8], "little")
    if size > len(blob):
        raise ValueError(f"a header of {size} bytes in a file of {len(blob)}")
    return size


def _digest(front: bytes, data: memoryview) -> str:
    found = hashlib.sha256(front)
    found.update(data)
    return found.hexdigest()


def _signed(front: bytes, old: str, new: str) -> bytes:
    """The header with another digest in the same place."""
    return front.replace(f'"{KEY}": "{old}"'.encode(), f'"{KEY}": "{new}"'.encode(), 1)
