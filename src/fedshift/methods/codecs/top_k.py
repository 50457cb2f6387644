"""The largest steps, with error feedback."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedshift import (
    Client,
    EntrySpec,
    Method,
    ModelSpec,
    PayloadSpec,
    Server,
    Tree,
    Uploads,
    register,
    setting,
)
from fedshift.methods.codecs.codec import Codec


@dataclass(frozen=True)
class TopK(Codec):
    """The ``fraction`` of each tensor's steps with the largest |d + e|; e keeps what is left.

    Error feedback (Stich et al., NeurIPS 2018, "Sparsified SGD with memory"): e <- d + e - sent, so
    that the sum of what was sent plus e is the sum of all steps. e stays in the client's state.
    Values and positions travel in the payload, 8 bytes each.
    """

    fraction: float = setting(0.01, "of the steps of each tensor that are sent", low=0.0, high=1.0)

    @property
    def is_identity(self) -> bool:
        """With all of them."""
        return self.fraction == 1.0

    def count(self, size: int) -> int:
        """How many of ``size`` numbers are sent: at least one."""
        return min(size, max(1, math.ceil(self.fraction * size)))

    def pack(self, client: Client, steps: Tree) -> tuple[Tree, Tree]:
        """The largest, and the residual into the client's state."""
        residual, payload, left = client.state[self.name], {}, {}
        for key, d in steps.items():
            whole = (d + residual[key] if key in residual else d).flatten()
            chosen = whole.abs().topk(self.count(len(whole))).indices.sort().values
            payload[f"values/{key}"] = whole[chosen]
            payload[f"positions/{key}"] = chosen.to(torch.int32)
            left[key] = whole.index_fill(0, chosen, 0.0).view(d.shape)
        client.state[self.name] = left
        return {}, payload

    def unpack(self, server: Server, entries: Tree, payload: Tree) -> Tree:
        """Zero but for what was sent."""
        steps = {}
        for key in (k for k in server.shared if k in server.parameters):
            flat = torch.zeros(server.shared[key].numel(), dtype=server.shared[key].dtype)
            flat[payload[f"positions/{key}"].long()] = payload[f"values/{key}"]
            steps[key] = flat.view(server.shared[key].shape)
        return steps

    def wire(self, server: Server, entries: Mapping[str, EntrySpec]) -> Mapping[str, EntrySpec]:
        """Buffers only: trained entries are in the payload."""
        if self.is_identity:
            return entries
        return {k: spec for k, spec in entries.items() if k not in server.parameters}

    def uploads(self, model: ModelSpec) -> Uploads:
        """Values and positions of every trained entry, as many as are due, inside the entry."""
        if self.is_identity:
            return {}
        specs: dict[str, PayloadSpec] = {}
        for key, spec in model.per_parameter().items():
            size = math.prod(model.shared[key].shape)
            count, last = (self.count(size),), max(0, size - 1)
            specs[f"values/{key}"] = PayloadSpec(count, spec.dtype)
            specs[f"positions/{key}"] = PayloadSpec(count, torch.int32, low=0, high=last)
        return {"train": specs}


@register("top-k", paper="Stich et al., NeurIPS 2018", group="compression")
def top_k() -> Method:
    """The largest steps travel, the rest is kept for later rounds.

    A site sends the largest entries of its step plus what it held back before, as values and
    positions, and keeps the others. What was sent and what is held back always add up to all steps
    (error feedback).

    Use it: the upload must shrink by ten or a hundred and sites return often enough to send what
    they held back.
    Not for: sites that take part once or rarely, since their residual never leaves them, and beside
    secure-aggregation, which refuses it.
    Equations: Algorithm 1: `TopK.pack`, `TopK.unpack`, `TopK.count`.
    """
    return Method((TopK(),))
