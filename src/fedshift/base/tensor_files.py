"""Tensors on disk: safetensors files that carry a checksum of their data, written atomically.

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


def write_tensors(
    path: Path, entries: Mapping[str, Tensor], meta: Mapping[str, Any] | None = None
) -> None:
    """Write ``entries`` and JSON ``meta`` atomically, with the data's SHA-256 in the header."""
    head, data = _split(tree.to_bytes(entries, meta))
    head["__metadata__"]["sha256"] = hashlib.sha256(data).hexdigest()
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)  # safetensors aligns its data to 8 bytes
    write_bytes(path, len(text).to_bytes(8, "little") + text + data)


def read_tensors(path: Path) -> tuple[Tree, dict[str, Any]]:
    """Inverse of :func:`write_tensors`; a file whose checksum does not match is an error."""
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
