"""Top-k with error feedback: send the largest steps, keep the rest (Stich et al., NeurIPS 2018).

The shortest form of a codec: what it sends, and what the server makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, prod

from torch import int32

import fedshift as fs


@dataclass(frozen=True)
class ExampleTopK(fs.Channel):
    """Of d + e, d = w - theta, the ``fraction`` largest per tensor; e keeps what was not sent."""

    fraction: float = fs.setting(0.01, "of the steps of each tensor", low=1e-6, high=1.0)

    def uploads(self, model: fs.ModelSpec) -> fs.Uploads:
        specs = {}
        for key, like in model.per_parameter().items():
            size = prod(like.shape)
            specs[f"values/{key}"] = values = replace(like, shape=(ceil(self.fraction * size),))
            specs[f"positions/{key}"] = replace(values, dtype=int32, low=0, high=size - 1)
        return {"train": specs}

    def encode(self, client: fs.Client, update: fs.Update) -> fs.Update:
        rest, payload, memory = dict(update.shared), dict(update.payload), client.state[self.name]
        for key, _, theta in client.anchors():
            d = (rest.pop(key) - theta).flatten()
            whole = d + memory[key] if key in memory else d
            largest = whole.abs().topk(ceil(self.fraction * len(whole))).indices
            payload[f"{self.name}/values/{key}"] = whole[largest]
            payload[f"{self.name}/positions/{key}"] = largest.int()
            memory[key] = whole.index_fill(0, largest, 0.0)
        return replace(update, shared=rest, payload=payload)

    def wire(
        self, server: fs.Server, entries: Mapping[str, fs.EntrySpec]
    ) -> Mapping[str, fs.EntrySpec]:
        return {key: spec for key, spec in entries.items() if key not in server.parameters}

    def decode(self, server: fs.Server, update: fs.Update) -> fs.Update:
        told = fs.tree.under(self.name, update.payload)
        weights = {k: v.clone() for k, v in server.shared.items() if k in server.parameters}
        for key, w in weights.items():
            w.view(-1)[told[f"positions/{key}"].long()] += told[f"values/{key}"]
        return replace(update, shared=weights | update.shared)


@fs.register("example-top-k", paper="Stich et al., NeurIPS 2018")
def top_k() -> fs.Method:
    """FedAvg that sends one step in a hundred."""
    return fs.Method((ExampleTopK(),))
