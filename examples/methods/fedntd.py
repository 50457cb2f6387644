"""FedNTD: keep what the received model knows of the wrong classes (Lee et al., NeurIPS 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

import fedshift as fs


def without_true_class(logits: Tensor, y: Tensor) -> Tensor:
    """Logits (B, K - 1) of all classes but the sample's own."""
    others = F.one_hot(y, logits.shape[1]) == 0
    return logits[others].view(len(y), -1)


@dataclass(frozen=True)
class ExampleNotTrue(fs.Part):
    """beta tau^2 KL(q_received || q), q the softmax over the classes other than y at tau."""

    beta: float = fs.setting(1.0, "weight of the distillation", low=0.0)
    tau: float = fs.setting(1.0, "temperature", low=1e-6)
    objectives = frozenset({"classification"})
    references = frozenset({"received"})

    def loss(self, client: fs.Client, step: fs.Step) -> Tensor:
        teacher = client.reference("received", step.batch)
        known, learnt = (
            F.log_softmax(without_true_class(out.logits, step.y) / self.tau, 1)
            for out in (teacher, step.out)
        )
        gap = F.kl_div(learnt, known, reduction="batchmean", log_target=True)
        return self.beta * self.tau**2 * gap


@fs.register("example-fedntd", paper="Lee et al., NeurIPS 2022")
def fedntd() -> fs.Method:
    """FedAvg whose clients do not forget how the other classes compare."""
    return fs.Method((ExampleNotTrue(),))
