"""Codecs: fewer bytes per update, to be added to any method whose updates are shared entries.

Each codec sends the change of the model, d = w - theta, in a smaller form, and the server adds it
to the theta that it has sent. Small numbers lose less than large ones when they are rounded, and
theta itself need not travel back.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Channel,
    Client,
    EntrySpec,
    Method,
    ModelSpec,
    PayloadSpec,
    Server,
    Tree,
    Update,
    Uploads,
    register,
    setting,
    tree,
)

INTEGERS = {4: torch.uint8, 8: torch.int8, 16: torch.int16}  # by bits; two numbers of 4 in a byte


class Codec(Channel, ABC):
    """What codecs have in common: they send d = w - theta of every trained entry, encoded.

    Buffers (BatchNorm statistics, counters) are few and travel as they are.
    """

    @abstractmethod
    def pack(self, client: Client, steps: Tree) -> tuple[Tree, Tree]:
        """Entries and payload that leave the site, from the steps d by entry."""

    @abstractmethod
    def unpack(self, server: Server, entries: Tree, payload: Tree) -> Tree:
        """The steps d by entry, as the server sees them."""

    @property
    def is_identity(self) -> bool:
        """Whether the settings leave nothing to encode."""
        return False

    def encode(self, client: Client, update: Update) -> Update:
        """Steps in place of weights."""
        if self.is_identity:
            return update
        keys = [k for k, _ in client.net.named_parameters() if k in update.shared]
        steps = {k: update.shared[k] - client.received[k] for k in keys}
        entries, payload = self.pack(client, steps)
        kept = {k: v for k, v in update.shared.items() if k not in steps}
        own = tree.prefixed(self.name, payload)
        return dataclasses.replace(update, shared=kept | entries, payload=update.payload | own)

    def decode(self, server: Server, update: Update) -> Update:
        """Weights again: theta + d, in the order of the model's entries."""
        if self.is_identity:
            return update
        steps = self.unpack(server, update.shared, tree.under(self.name, update.payload))
        weights = {k: server.shared[k] + d for k, d in steps.items()}
        seen = update.shared | weights
        shared = {k: seen[k] for k in server.shared if k in seen}
        others = {k: v for k, v in update.payload.items() if not k.startswith(f"{self.name}/")}
        return dataclasses.replace(update, shared=shared, payload=others)


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


@dataclass(frozen=True)
class Quantise(Codec):
    """q = floor(d / s + u) with s = max|d| / (2^(bits - 1) - 1) per tensor and u ~ U[0, 1).

    Stochastic rounding (QSGD, Alistarh et al., NeurIPS 2017, with the largest value in place of
    the norm): E[s q] = d. One scale s of 4 bytes per tensor travels beside q.
    """

    bits: int = setting(8, "of each number; 32 sends it as it is", choices=(4, 8, 16, 32))

    @property
    def is_identity(self) -> bool:
        """With 32 bits."""
        return self.bits == 32

    @property
    def levels(self) -> int:
        """The largest q."""
        return 2 ** (self.bits - 1) - 1

    def pack(self, client: Client, steps: Tree) -> tuple[Tree, Tree]:
        """Whole numbers, and the scale of each tensor in their order."""
        generator = client.generator(self.name)
        scales = [d.abs().max() / self.levels if d.numel() else d.sum() for d in steps.values()]
        entries = {}
        for (key, d), scale in zip(steps.items(), scales, strict=True):
            u = torch.rand(d.shape, generator=generator, dtype=d.dtype).to(d.device)
            q = (d / scale.clamp(min=torch.finfo(d.dtype).tiny) + u).floor()
            entries[key] = self._narrow(q.clamp(-self.levels, self.levels))
        return entries, {"scales": torch.stack(scales) if scales else torch.empty(0)}

    def _narrow(self, q: Tensor) -> Tensor:
        """In as few bytes as there are bits: two numbers of 4 bits share a byte."""
        if self.bits != 4:
            return q.to(INTEGERS[self.bits])
        flat = (q.flatten() + 8).to(torch.uint8)
        pairs = torch.cat([flat, flat.new_zeros(len(flat) % 2)]).view(-1, 2)
        return pairs[:, 0] * 16 + pairs[:, 1]

    def _widen(self, stored: Tensor, model: Tensor) -> Tensor:
        if self.bits != 4:
            return stored.to(model.dtype)
        flat = torch.stack([stored // 16, stored % 16], 1).flatten()[: model.numel()]
        return (flat.to(model.dtype) - 8).view(model.shape)

    def unpack(self, server: Server, entries: Tree, payload: Tree) -> Tree:
        """S q."""
        keys = [k for k in server.shared if k in server.parameters]
        scales = dict(zip(keys, payload["scales"], strict=True))
        return {k: self._widen(entries[k], server.shared[k]) * scales[k] for k in keys}

    def wire(self, server: Server, entries: Mapping[str, EntrySpec]) -> Mapping[str, EntrySpec]:
        """Small integers; those of 4 bits are flat."""
        if self.is_identity:
            return entries
        small = {k: self._spec(entries[k].shape) for k in server.parameters}
        return {**entries, **small}

    def _spec(self, shape: tuple[int, ...]) -> EntrySpec:
        stored = ((math.prod(shape) + 1) // 2,) if self.bits == 4 else shape
        return EntrySpec(stored, INTEGERS[self.bits])

    def uploads(self, model: ModelSpec) -> Uploads:
        """One scale per trained entry, none of them negative."""
        count = (len(model.parameters),)
        return (
            {} if self.is_identity else {"train": {"scales": PayloadSpec(count, low=0.0, high=1e6)}}
        )


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


@register("quantise", paper="Alistarh et al., NeurIPS 2017 (QSGD)", group="compression")
def quantise() -> Method:
    """Steps travel in 8 bits (or 4, 16), rounded at random: unbiased.

    Every tensor's step is divided by a scale so that its largest entry fills the integers, and
    rounded up or down at random so that the expected value is the step itself. One scale of 4 bytes
    per tensor travels beside it.

    Use it: a quarter of the upload is wanted (an eighth with bits=4) and many sites average the
    rounding noise away.
    Not for: few sites and long runs, where the noise of rounding does not average out; beside
    secure-aggregation it is refused.
    Equations: QSGD, Sec. 3.1: `Quantise.pack`, `Quantise.unpack`.
    """
    return Method((Quantise(),))


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
