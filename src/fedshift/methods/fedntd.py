"""FedNTD: keep what the received model says of the other classes (Lee et al., NeurIPS 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fedshift import Client, ConfigError, Method, ModelSpec, Part, Step, register, setting


def without_true_class(logits: Tensor, y: Tensor) -> Tensor:
    """Logits (B, K - 1) of all classes but each sample's own, ``y`` (B,)."""
    others = F.one_hot(y, logits.shape[1]) == 0  # (B, K)
    return logits[others].view(len(y), -1)


def not_true_distillation(local: Tensor, received: Tensor, y: Tensor, tau: float) -> Tensor:
    """tau^2 KL(q_received || q_local), mean over the batch.

    q is the softmax at temperature tau over the classes other than ``y`` (B,); logits are (B, K).
    """
    known = F.log_softmax(without_true_class(received, y) / tau, 1)  # (B, K - 1)
    learnt = F.log_softmax(without_true_class(local, y) / tau, 1)
    return tau**2 * F.kl_div(learnt, known, reduction="batchmean", log_target=True)


@dataclass(frozen=True)
class NotTrueDistillation(Part):
    """beta tau^2 KL(q_received || q), q the softmax over the classes other than y at tau.

    The received model is frozen and in eval mode. Of a mixed target the largest class counts as the
    true one. Nothing but the model is sent.
    """

    objectives = frozenset({"classification"})
    references = frozenset({"received"})

    beta: float = setting(1.0, "weight of the distillation", low=0.0)
    tau: float = setting(1.0, "temperature", low=1e-6)

    def check(self, model: ModelSpec) -> None:
        """Two classes leave one, whose softmax is constant."""
        if model.classes < 3:
            raise ConfigError(
                f"{self.name} compares the classes other than the true one, and the task has "
                f"{model.classes} classes; give a task with 3 or more, or leave it out"
            )

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The second term of the local objective."""
        received = client.reference("received", step.batch)
        if received is None:
            return None
        y = step.y.argmax(1) if step.y.dim() == 2 else step.y
        gap = not_true_distillation(step.out.logits, received.logits, y, self.tau)
        return self.beta * gap


@register("fedntd", paper="Lee et al., NeurIPS 2022", group="label skew")
def fedntd() -> Method:
    """FedAvg whose clients do not forget how other classes compare.

    A client that sees few classes forgets what the received model knew about the others. Its model
    is distilled to agree with the received one on all classes but the true one of each sample.

    Use it: when clients hold few classes each and the global model is what counts.
    Not for: two classes, which leave nothing to compare, or personal models, which may forget.
    Equations: the not-true softmax and its KL: `without_true_class`, `not_true_distillation`.
    """
    return Method((NotTrueDistillation(),))
