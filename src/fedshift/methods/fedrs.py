"""FedRS: restricted softmax for classes that a client lacks (Li and Zhan, KDD 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import Client, Method, Part, Step, register, setting


def restricted(logits: Tensor, held: Tensor, alpha: float) -> Tensor:
    """Logits (B, K) with those of the classes that are not ``held`` (K,) multiplied by alpha."""
    return logits * torch.where(held, 1.0, alpha)


@dataclass(frozen=True)
class RestrictedSoftmax(Part):
    """Cross-entropy of alpha z_c for classes c that the client has no sample of, z_c for others.

    Their classifier weights are pushed away alpha times as strongly. Nothing but the model is sent;
    the scored model is not restricted.
    """

    objectives = frozenset({"classification"})

    alpha: float = setting(0.5, "factor of the logits of missing classes", low=0.0, high=1.0)

    def begin(self, client: Client) -> None:
        """Which classes the client holds."""
        counts = client.site.data.train.labels.bincount(minlength=client.classes)
        client.scratch[self.name]["held"] = counts > 0  # (K,)

    def task_loss(self, client: Client, step: Step) -> Tensor:
        """In place of the plain cross-entropy."""
        held = client.scratch[self.name]["held"]
        return client.task.loss(restricted(step.out.logits, held, self.alpha), step.y)


@register("fedrs", paper="Li and Zhan, KDD 2021", group="label skew")
def fedrs() -> Method:
    """FedAvg that hardly unlearns the classes a client lacks.

    A client without samples of a class only ever pushes that class away, and the mean of such
    updates forgets it. FedRS scales down the scores of missing classes, so the push is weaker.

    Use it: when clients lack whole classes.
    Not for: clients that hold every class, however unevenly, where it is FedAvg bit for bit.
    Equations: restricted softmax: `restricted`; local update: `RestrictedSoftmax.task_loss`.
    """
    return Method((RestrictedSoftmax(),))
