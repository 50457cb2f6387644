"""FedRoD: a generic head for everybody, a personal one beside it (Chen and Chao, ICLR 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedshift as fs


@dataclass(frozen=True)
class ExampleTwoHeads(fs.Part):
    """Generic head by balanced softmax, g_c + log n_c; personal head added to it, both detached.

    The shared net learns as if every client had as many samples of each class. The personal head h
    is linear, starts at zero, stays in the client's state and fits this client's classes: it learns
    from CE(g + h(z)) with g and the features z held fixed.
    """

    objectives = frozenset({"classification"})

    def begin(self, client: fs.Client) -> fs.Named:
        (width,), k = client.net.shapes()["features"], client.classes
        kept = client.state[self.name] or {"w": torch.zeros(k, width), "b": torch.zeros(k)}
        client.state[self.name] = {key: nn.Parameter(v.clone()) for key, v in kept.items()}
        counts = client.site.data.train.labels.bincount(minlength=k)
        client.scratch[self.name]["prior"] = counts.log()  # -inf: no sample, no part in the sum
        return client.state[self.name].items()

    def task_loss(self, client: fs.Client, step: fs.Step) -> Tensor:
        return client.task.loss(step.out.logits + client.scratch[self.name]["prior"], step.y)

    def loss(self, client: fs.Client, step: fs.Step) -> Tensor:
        return client.task.loss(self.both(client, step.out), step.y)

    def both(self, client: fs.Client, out: fs.Output) -> Tensor:
        """Logits (B, K) of both heads together."""
        head = client.state[self.name]
        return out.logits.detach() + F.linear(out.features.detach(), head["w"], head["b"])

    def predict(self, net: fs.Net, x: Tensor, scoring: fs.Scoring) -> Tensor | None:
        if scoring.client is None or not scoring.client.state[self.name]:
            return None  # the generic head
        return self.both(scoring.client, net(x))


@fs.register("example-fedrod", paper="Chen and Chao, ICLR 2022")
def fedrod() -> fs.Method:
    """A balanced model for everybody, and a head of its own for every client."""
    return fs.Method((ExampleTwoHeads(),))
