"""VHL: a labelled public set that all clients align with (Tang et al., ICML 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import fedshift as fs


def contrast(z: Tensor, y: Tensor, public: Tensor, labels: Tensor, tau: float) -> Tensor:
    """Supervised contrast of features (B, D) with all others and the public ones (V, D).

    -1/|P_i| sum_{p in P_i} log e^{s_ip} / sum_{j != i} e^{s_ij}, s the cosine over tau and P_i the
    other samples of the same class; a sample that has none adds nothing.
    """
    s = F.normalize(z) @ F.normalize(torch.cat([z, public])).T / tau  # (B, B + V)
    itself = torch.eye(*s.shape, dtype=torch.bool)
    same = (y[:, None] == torch.cat([y, labels])) & ~itself
    logs = s.masked_fill(itself, -1e9).log_softmax(1)
    return -((logs * same).sum(1) / same.sum(1).clamp(min=1)).mean()


@dataclass(frozen=True)
class ExamplePublicAlignment(fs.Part):
    """alpha CE(public batch) + lam contrast(real features, detached public features).

    The public labels are classes of the task; the authors' code can give them outputs of their own.
    """

    alpha: float = fs.setting(1.0, "weight of the public samples' cross-entropy", low=0.0)
    lam: float = fs.setting(1.0, "weight of the contrast", low=0.0)
    tau: float = fs.setting(0.07, "temperature", low=1e-6)
    size: int = fs.setting(32, "public samples per batch", low=2)
    needs = frozenset({"public_set", "public_labels"})
    objectives = frozenset({"classification"})

    def loss(self, client: fs.Client, step: fs.Step) -> Tensor:
        held = client.resources["public_set"]
        rows = torch.randint(len(held), (self.size,), generator=client.generator(self.name))
        x, y = held.take(rows)
        public = client.net(x)
        pull = contrast(step.out.features, step.y, public.features.detach(), y, self.tau)
        return self.alpha * client.task.loss(public.logits, y) + self.lam * pull


@fs.register("example-vhl", paper="Tang et al., ICML 2022")
def vhl() -> fs.Method:
    """FedAvg with a public set, its labels included, in every batch."""
    return fs.Method((ExamplePublicAlignment(),))
