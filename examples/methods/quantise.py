"""Quantise: steps in eight bits, right on average (Alistarh et al., NeurIPS 2017).

The shortest form of a codec: what it sends, and what the server makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

import fedshift as fs


@dataclass(frozen=True)
class ExampleQuantise(fs.Channel):
    """q = floor(d / s + u) with d = w - theta, s = max|d| / 127 per tensor and u ~ U[0, 1)."""

    def uploads(self, model: fs.ModelSpec) -> fs.Uploads:
        return {"train": {key: fs.PayloadSpec((), low=0, high=1e6) for key in model.parameters}}

    def encode(self, client: fs.Client, update: fs.Update) -> fs.Update:
        entries, payload = dict(update.shared), dict(update.payload)
        for key, _, theta in client.anchors():
            d = entries[key] - theta
            s = d.abs().max().clamp(min=1e-30) / 127
            u = torch.rand(d.shape, generator=client.generator(self.name))
            entries[key] = (d / s + u).floor().clamp(-127, 127).to(torch.int8)
            payload[f"{self.name}/{key}"] = s
        return replace(update, shared=entries, payload=payload)

    def wire(
        self, server: fs.Server, entries: Mapping[str, fs.EntrySpec]
    ) -> Mapping[str, fs.EntrySpec]:
        small = {key: fs.EntrySpec(entries[key].shape, torch.int8) for key in server.parameters}
        return {**entries, **small}

    def decode(self, server: fs.Server, update: fs.Update) -> fs.Update:
        scales = fs.tree.under(self.name, update.payload)
        weights = {key: server.shared[key] + update.shared[key] * s for key, s in scales.items()}
        return replace(update, shared=update.shared | weights)


@fs.register("example-quantise", paper="Alistarh et al., NeurIPS 2017")
def quantise() -> fs.Method:
    """FedAvg whose sites send a quarter of the bytes."""
    return fs.Method((ExampleQuantise(),))
