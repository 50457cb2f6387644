"""Trees: flat dictionaries from entry names to tensors; arithmetic, naming, serialisation.

A tree is the only container of tensors that messages, client state and checkpoints use, so every
layer calls these functions. None of them changes its arguments, and none pickles anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from fedshift.base.errors import ClashError, RunError

Tree = dict[str, Tensor]
MALFORMED = (  # what reading bytes of any content may raise
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    RecursionError,
    OverflowError,
    safetensors.SafetensorError,
)


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
    """A detached copy of every entry, contiguous even where the net is channels-last."""
    return {k: v.detach().clone(memory_format=torch.contiguous_format) for k, v in a.items()}


def contiguous(a: Mapping[str, Tensor]) -> Tree:
    """As :func:`clone`, but entries that are contiguous already are not copied."""
    return {k: v.detach().contiguous() for k, v in a.items()}


def to(a: Mapping[str, Tensor], device: torch.device | str) -> Tree:
    """The same entries on ``device``; those that are there already are not copied."""
    return {k: v.to(device) for k, v in a.items()}


def pick(a: Mapping[str, Tensor], keys: Iterable[str]) -> Tree:
    """The entries named ``keys``, in the order of ``a``."""
    wanted = set(keys)
    return {k: v for k, v in a.items() if k in wanted}


def nbytes(a: Mapping[str, Tensor]) -> int:
    """Total size of all entries in bytes."""
    return sum(v.nbytes for v in a.values())


def prefixed(name: str, a: Mapping[str, Tensor]) -> Tree:
    """The same entries with ``name/`` before each key, as payload and state are named by part."""
    return {f"{name}/{k}": v for k, v in a.items()}


def under(name: str, a: Mapping[str, Tensor]) -> Tree:
    """Inverse of :func:`prefixed`: the entries whose key starts with ``name/``, prefix removed."""
    head = f"{name}/"
    return {k[len(head) :]: v for k, v in a.items() if k.startswith(head)}


def merge(trees: Iterable[Mapping[str, Tensor]]) -> Tree:
    """Union of trees with different keys; a repeated key is an error, never overwritten."""
    out: Tree = {}
    for tree in trees:
        if clash := sorted(out.keys() & tree.keys()):
            raise ClashError(
                f"two writers of one entry: {', '.join(clash[:3])}; rename one of them"
            )
        out |= tree
    return out


def to_bytes(a: Mapping[str, Tensor], meta: Mapping[str, Any] | None = None) -> bytes:
    """Serialise to one safetensors blob; ``meta`` is any JSON object.

    safetensors sorts its entries, so their order is stored in the header as well: sums over entries
    (a norm, say) depend on it in their last bits.
    """
    head = json.dumps({"order": list(a), "meta": dict(meta or {})})
    return safetensors.torch.save(clone(a), metadata={"fedshift": head})


def from_bytes(blob: bytes) -> tuple[Tree, dict[str, Any]]:
    """Inverse of :func:`to_bytes`.

    safetensors itself checks that the tensors fill the blob exactly, without overlap, before it
    makes any: no more memory is taken than the blob has bytes.
    """
    try:
        size = int.from_bytes(blob[:8], "little")
        head = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["fedshift"])
        order, meta = head["order"], dict(head["meta"])
        tensors = safetensors.torch.load(blob)
        if sorted(order) != sorted(tensors):
            raise ValueError("the order names other entries than there are")
        return {k: tensors[k] for k in order}, meta
    except MALFORMED as error:
        raise RunError(f"not a fedshift tensor file, or a damaged one ({error})") from error
