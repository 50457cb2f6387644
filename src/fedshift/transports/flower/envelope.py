"""Several messages for one site, encoded as JSON and blocks of bytes for one Flower message.

``transports.flower.transport`` encodes requests with it, ``transports.flower.site`` the replies.
What it decodes may come from a damaged or hostile peer, so it never unpickles anything, and checks
that every tensor lies within its block.

Why one block per section (``shared``, ``personal``, ``payload``) and not one array per tensor:
Flower hashes, stores and transfers each array as an object of its own. On ResNet-10 a block costs
13 ms each way, an array per tensor 70 ms and 74 requests. Why not one block for the whole message:
Flower knows an object by its hash, and equal objects are uploaded and stored once. The shared
model, as a block of its own, is equal for all clients of a round; personal entries and payload are
not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from fedshift.base.errors import RunError
from fedshift.base.tree import MALFORMED, Tree
from fedshift.core.message import Message

LARGEST = 2**63 - 1  # that a count may be
ALIGNED = 16  # bytes: the widest number of torch, complex128
DTYPES = {  # torch has others, such as int6, that it cannot copy
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128),
    )
}
TensorLayout = list[tuple[str, str, list[int]]]  # name, dtype, shape
M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Envelope:
    """``text`` is JSON: the scalars, and which block holds which tensors. ``blocks`` are bytes."""

    text: str
    blocks: Mapping[str, bytes]


def to_envelope(messages: Sequence[Message], packed: dict[int, bytes]) -> Envelope:
    """Encode messages into one envelope.

    ``packed`` is a cache that the envelopes of one exchange share: the block of each tree, by the
    tree's ``id``, so that a tree that many messages hold is packed once. The trees must live as
    long as the cache, because an ``id`` is reused after its object is gone.
    """
    blocks: dict[int, bytes] = {}
    layouts: list[TensorLayout] = []
    rows = []
    for message in messages:
        row: dict[str, Any] = {"scalars": message.scalars(), "sections": {}}
        for section in message.SECTIONS:
            entries: Tree = getattr(message, section)
            if not entries:
                continue
            if id(entries) not in blocks:
                if id(entries) not in packed:
                    packed[id(entries)] = pack(entries)
                blocks[id(entries)] = packed[id(entries)]
                layouts.append(layout(entries))
            row["sections"][section] = list(blocks).index(id(entries))
        rows.append(row)
    text = json.dumps({"messages": rows, "layouts": layouts})
    return Envelope(text, {str(i): block for i, block in enumerate(blocks.values())})


def from_envelope(envelope: Envelope, kind: type[M]) -> list[M]:
    """Inverse of :func:`to_envelope`, in memory of its own.

    A block is unpacked once, and messages that name it hold the very same tree: an envelope takes
    no more memory than its blocks and its text have, however often it repeats them.
    """
    unpacked: dict[int, Tree] = {}

    def tree_of(block: int) -> Tree:
        if block not in unpacked:
            unpacked[block] = unpack(envelope.blocks[str(block)], layouts[block])
        return unpacked[block]

    def message(row: Mapping[str, Any]) -> M:
        sections: dict[str, Any] = {s: tree_of(i) for s, i in row["sections"].items()}
        for name in kind.SECTIONS:
            if name in row["scalars"]:
                raise ValueError(f"{name} is among the scalars")
        return require_scalars(kind(**row["scalars"], **sections))

    try:
        content = json.loads(envelope.text)
        if "\\u" in envelope.text:  # half a surrogate pair fails here, not in a file or a stream
            json.dumps(content, ensure_ascii=False).encode()
        layouts: list[TensorLayout] = content["layouts"]
        return [message(row) for row in content["messages"]]
    except (*MALFORMED, IndexError) as error:
        raise RunError(f"not an envelope of fedshift, or a damaged one ({short(error)})") from error


def require_scalars(message: M) -> M:
    """Raise unless the fields that are not tensors have their types, and counts their size.

    Whether a count is the right one is for ``engine.replies`` to say; here it is made sure that it
    can be asked. JSON has numbers of any size, and Python fails on them in many places.
    """
    found = message.scalars()
    wrong = [name for name in ("client", "task") if not isinstance(found[name], str)] + [
        name
        for name in ("round", "examples", "steps")
        if name in found and not (type(found[name]) is int and abs(found[name]) <= LARGEST)
    ]
    wrong += [
        f"{name}.{key}"
        for name, kinds in (("facts", (bool, int, float, str)), ("metrics", (int, float)))
        for key, value in found.get(name, {}).items()
        if type(value) not in kinds or (type(value) is int and abs(value) > LARGEST)
    ]
    visited = found.get("visited")
    if visited is not None and [type(n) for n in visited] != [int, int]:
        wrong.append("visited")
    if type(found.get("kept", False)) is not bool:
        wrong.append("kept")
    if wrong:
        raise ValueError(f"{wrong[0]} is not what it should be")
    return message


def short(error: Exception) -> str:
    """An error's class and the beginning of its text, which may quote what was sent."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 200 else text[:200] + '...'}"


def layout(entries: Tree) -> TensorLayout:
    """Names, dtypes and shapes, in the order in which :func:`pack` writes the tensors."""
    return [(name, str(t.dtype).removeprefix("torch."), [*t.shape]) for name, t in entries.items()]


def pack(entries: Tree) -> bytes:
    """All tensors one after another, each padded to a multiple of ``ALIGNED`` bytes."""
    pieces: list[Any] = []
    for tensor in entries.values():
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        pieces += [flat.data, bytes(-len(flat) % ALIGNED)]
    return b"".join(pieces)


def unpack(block: bytes, entries: TensorLayout) -> Tree:
    """Inverse of :func:`pack`: views of one copy of the block.

    The copy is needed because torch cannot write to ``bytes``. Dtypes and shapes come from the
    other side and are checked before a view is made.
    """
    memory = torch.frombuffer(bytearray(block), dtype=torch.uint8) if block else torch.empty(0)
    out: Tree = {}
    begin = 0
    for name, kind, shape in entries:
        if not isinstance(name, str):
            raise TypeError(f"the name of a tensor is {name!r}")
        if kind not in DTYPES:
            raise TypeError(f"{name} has the unknown dtype {kind!r}")
        dtype = DTYPES[kind]
        if not all(type(side) is int and 0 <= side <= LARGEST for side in shape):
            raise TypeError(f"{name} has no shape")  # a product with a list would repeat the list
        size = math.prod(shape) * dtype.itemsize
        if begin + size > len(block):
            raise ValueError(f"{name} of shape {shape} does not lie within its block")
        piece = memory[begin : begin + size]
        out[name] = piece.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)
        begin += size + -size % ALIGNED
    return out
