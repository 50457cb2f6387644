"""Steps as float16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedshift import (
    Client,
    EntrySpec,
    Method,
    Server,
    Tree,
    register,
)
from fedshift.methods.codecs.codec import Codec


@dataclass(frozen=True)
class Half(Codec):
    """d as float16: half of the bytes, three decimal digits of the step."""

    def pack(self, client: Client, steps: Tree) -> tuple[Tree, Tree]:
        """Rounded to the nearest."""
        return {k: d.half() for k, d in steps.items()}, {}

    def unpack(self, server: Server, entries: Tree, payload: Tree) -> Tree:
        """In the model's precision again."""
        return {k: entries[k].to(server.shared[k].dtype) for k in server.parameters}

    def wire(self, server: Server, entries: Mapping[str, EntrySpec]) -> Mapping[str, EntrySpec]:
        """The same shapes in float16."""
        halves = {k: EntrySpec(entries[k].shape, torch.float16) for k in server.parameters}
        return {**entries, **halves}


@register("half", group="compression")
def half() -> Method:
    """Steps travel as float16: half of the upload.

    Each site sends the step d = w - theta of every trained entry rounded to half precision, and the
    server adds it to the theta that it has sent. Small numbers lose less than large ones when they
    are rounded.

    Use it: the uplink is the bottleneck and nothing may be lost that matters: three digits of a
    step are enough for averaging.
    Not for: fewer than half of the bytes (take quantise or top-k), or beside secure-aggregation,
    whose masked numbers cannot be rounded.
    Equations: d = w - theta: `Codec.encode`, `Codec.decode`; rounding: `Half.pack`.
    """
    return Method((Half(),))
