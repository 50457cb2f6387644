"""Steps as small integers, rounded at random."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

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

INTEGERS = {4: torch.uint8, 8: torch.int8, 16: torch.int16}  # by bits; two numbers of 4 in a byte


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
