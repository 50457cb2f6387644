"""FedDebias: pseudo-data against biased local classifiers and features (FedBR, ICML 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fedshift import (
    Client,
    Method,
    Part,
    Server,
    Step,
    Update,
    register,
    setting,
)
from fedshift.methods.feddebias.projector import ContrastiveProjector
from fedshift.methods.feddebias.pseudo_data import PseudoData
from fedshift.methods.feddebias.pseudo_output import own_labels, pseudo_output, require_pseudo_data


def balance(logits: Tensor, y_p: Tensor | None = None) -> Tensor:
    """Second term of Eq. 3: cross-entropy of logits (B, C) to y_p (B, C), by default 1/C."""
    logs = F.log_softmax(logits, 1)  # (B, C)
    return -(logs.mean(1) if y_p is None else (y_p * logs).sum(1)).mean()


@dataclass(frozen=True)
class BalancedOutput(Part):
    """Component 1: lam * cross-entropy of the pseudo-data to its label, second term of Eq. 3."""

    objectives = frozenset({"classification"})

    lam: float = setting(0.1, "weight; the paper has 1 on MNIST and CIFAR100", low=0.0)

    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """Raise if no part makes pseudo-data."""
        require_pseudo_data(self, server)

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The term over all of D_p."""
        if self.lam == 0:
            return None
        return self.lam * balance(pseudo_output(client, step.batch).logits, own_labels(client))


@register("feddebias", paper="Guo et al., ICML 2023", group="label skew")
def feddebias() -> Method:
    """Pseudo-data balance the classifier and align local features.

    All clients get the same batch of pseudo-data, means of random samples that are close to noise:
    the output on it is kept flat, and a projection learns where local and received features of it
    differ, along which they are then drawn together.

    Use it: clients lack classes, local training is long, and means of inputs may leave the sites.
    Not for: sites that hold every class, sensitive inputs (a mean of few is data), and few local
    steps.
    Equations: Algorithm 2, line 5: `random_sample_means`; Eq. 4: `mixture`; second term of Eq. 3:
    `balance`; Eq. 5: `cosines`, `contrast`; Eq. 6: `overlaps`; Algorithm 1, lines 7 to 11:
    `ContrastiveProjector.phases`.
    """
    return Method((PseudoData(), BalancedOutput(), ContrastiveProjector()))
