"""Pseudo-labels: train on what the model is sure of (Lee, 2013), where few samples have labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import fedshift as fs


@dataclass(frozen=True)
class ExamplePseudoLabels(fs.Part):
    """lam mean(1[max p >= threshold] CE(logits, argmax p)) on a batch of the unlabelled samples."""

    lam: float = fs.setting(1.0, "weight of the unlabelled samples", low=0.0)
    threshold: float = fs.setting(0.95, "probability from which on a prediction counts", low=0.0)
    size: int = fs.setting(32, "unlabelled samples per batch", low=2)
    needs = frozenset({"client_unlabelled"})
    objectives = frozenset({"classification"})

    def loss(self, client: fs.Client, step: fs.Step) -> Tensor | None:
        held = client.site.data.unlabelled
        if not held:
            return None
        rows = torch.randint(len(held), (self.size,), generator=client.generator(self.name))
        logits = client.net(held.take(rows)[0]).logits  # (U, K)
        sure, guessed = logits.detach().softmax(1).max(1)
        each = torch.nn.functional.cross_entropy(logits, guessed, reduction="none")
        return self.lam * (each * (sure >= self.threshold)).mean()


@fs.register("example-pseudo-labels", paper="Lee, 2013")
def pseudo_labels() -> fs.Method:
    """FedAvg that also learns from its own sure predictions."""
    return fs.Method((ExamplePseudoLabels(),))
