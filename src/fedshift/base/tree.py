"""Flat dictionaries of tensors: arithmetic, names and bytes. The only container that travels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from fedshift.base.errors import ClashError, RunError

Tree = dict[str, Tensor]


def _zip(fn: Callable[[Tensor, Tensor], Tensor], a: Tree, b: Mapping[str, Tensor]) -> Tree:
    if a.keys() != b.keys():
        odd = sorted(a.keys() ^ b.keys())
        raise KeyError(f"trees differ in {len(odd)} entries, for example {odd[:3]}")
    return {k: fn(v, b[k]) for k, v in a.items()}


def add(a: Tree, b: Mapping[str, Tensor], scale: float = 1.0) -> Tree:
    """Entry by entry, a + scale * b."""
    return _zip(lambda u, v: torch.add(u, v, alpha=scale), a, b)


def sub(a: Tree, b: Mapping[str, Tensor]) -> Tree:
    """Entry by entry, a - b."""
    return _zip(torch.sub, a, b)


def zeros_like(a: Mapping[str, Tensor]) -> Tree:
    """Zeros in the shapes of ``a``."""
    return {k: torch.zeros_like(v) for k, v in a.items()}


def clone(a: Mapping[str, Tensor]) -> Tree:
    """A detached, contiguous copy: the same strides however the net lays its tensors out."""
    return {k: v.detach().clone(memory_format=torch.contiguous_format) for k, v in a.items()}


def contiguous(a: Mapping[str, Tensor]) -> Tree:
    """As :func:`clone`, but entries that are contiguous already are not copied."""
    return {k: v.detach().contiguous() for k, v in a.items()}


def to(a: Mapping[str, Tensor], device: torch.device | str) -> Tree:
    """The same on a device; entries that are there already are not copied."""
    return {k: v.to(device) for k, v in a.items()}


def pick(a: Mapping[str, Tensor], keys: Iterable[str]) -> Tree:
    """The entries named ``keys``, in the order of ``a``."""
    wanted = set(keys)
    return {k: v for k, v in a.items() if k in wanted}


def nbytes(a: Mapping[str, Tensor]) -> int:
    """Bytes of all entries."""
    return sum(v.nbytes for v in a.values())


def prefixed(name: str, a: Mapping[str, Tensor]) -> Tree:
    """Put every entry below ``name/``."""
    return {f"{name}/{k}": v for k, v in a.items()}


def under(name: str, a: Mapping[str, Tensor]) -> Tree:
    """The entries below ``name/``, prefix removed."""
    head = f"{name}/"
    return {k[len(head) :]: v for k, v in a.items() if k.startswith(head)}


def merge(trees: Iterable[Mapping[str, Tensor]]) -> Tree:
    """Disjoint union; a repeated key is an error, never a silent overwrite."""
    out: Tree = {}
    for tree in trees:
        if clash := sorted(out.keys() & tree.keys()):
            raise ClashError(
                f"two writers of one entry: {', '.join(clash[:3])}; rename one of them"
            )
        out |= tree
    return out


def to_bytes(a: Mapping[str, Tensor], meta: Mapping[str, Any] | None = None) -> bytes:
    """One safetensors blob; ``meta`` is any JSON and the order of the entries is kept."""
    head = json.dumps({"order": list(a), "meta": dict(meta or {})})
    return safetensors.torch.save(clone(a), metadata={"fedshift": head})


def from_bytes(blob: bytes) -> tuple[Tree, dict[str, Any]]:
    """Inverse of :func:`to_bytes`."""
    try:
        size = int.from_bytes(blob[:8], "little")
        head = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["fedshift"])
        tensors = safetensors.torch.load(blob)
    except (ValueError, KeyError, safetensors.SafetensorError) as error:
        raise RunError(f"not a fedshift tensor file, or a damaged one ({error})") from error
    return {k: tensors[k] for k in head["order"]}, head["meta"]
