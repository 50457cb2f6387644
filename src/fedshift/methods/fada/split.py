"""Features split into a domain-invariant half, which is classified, and a specific one."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedshift import (
    Client,
    Neck,
    Net,
    Part,
    Step,
    setting,
    tree,
)
from fedshift.methods.shared.reversal import reverse


class Split(Neck):
    """E_i and E_s, D -> width each, and three critics that are used in training only.

    The invariant half is widened to D again, so that any backbone's head can classify it.
    """

    def __init__(self, d: int, width: int, classes: int) -> None:
        super().__init__()
        self.invariant = nn.Sequential(nn.Linear(d, width), nn.ReLU())
        self.specific = nn.Sequential(nn.Linear(d, width), nn.ReLU())
        self.widened = nn.Sequential(nn.Linear(width, d), nn.ReLU())
        self.identifier = nn.Linear(width, classes)  # CI
        self.reconstructor = nn.Linear(2 * width, d)  # R
        self.estimator = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, maps: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Features for the head (B, D); the halves (B, width) and what they are of in ``aux``."""
        z = torch.flatten(maps, 1)
        halves = {"invariant": self.invariant(z), "specific": self.specific(z)}
        return self.widened(halves["invariant"]), halves | {"whole": z}


def confusion(logits: Tensor) -> Tensor:
    """Cross-entropy of the uniform distribution, mean over (B, K); least, log K, there."""
    return -logits.log_softmax(1).mean()


def mutual_information(joint: Tensor, apart: Tensor) -> Tensor:
    """MINE: mean T over pairs less log mean e^T over pairs drawn apart, (B,) each."""
    return joint.mean() - (apart.logsumexp(0) - log(len(apart)))


@dataclass(frozen=True)
class FeatureSplit(Part):
    """lam (CE(CI(f_s), y) + confusion(CI(f_s)) + |R(f_i, f_s) - z|^2 / D + I(f_i; f_s)).

    CI learns the class from the specific half and moves nothing else; through the frozen CI that
    half learns to give it away no longer. T estimates the mutual information and climbs it, the
    halves descend it. All modules are shared and averaged: about 5 D width numbers more are sent.
    """

    objectives = frozenset({"classification"})

    lam: float = setting(0.1, "weight of the terms that split the features", low=0.0)
    width: int = setting(64, "width of each half", low=1)

    def build(self, net: Net) -> None:
        """Insert the two halves after the last stage."""
        d = net.shapes()["features"][0]
        net.insert(self.name, Split(d, self.width, net.classes), after=list(net.stages)[-1])

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The four terms."""
        if self.lam == 0 or len(step.batch.x) < 2:
            return None
        split, aux = client.net.extra[self.name], tree.under(self.name, step.out.aux)
        assert isinstance(split, Split)
        f_i, f_s, z = aux["invariant"], aux["specific"], aux["whole"]  # (B, width) twice, (B, D)
        frozen = {k: p.detach() for k, p in split.identifier.named_parameters()}
        fooled = confusion(functional_call(split.identifier, frozen, (f_s,)))
        known = client.task.loss(split.identifier(f_s.detach()), step.y)
        rebuilt = F.mse_loss(split.reconstructor(torch.cat([f_i, f_s], 1)), z.detach())
        other = torch.randperm(len(z), generator=client.generator(self.name))
        a, b = reverse(f_i, 1.0), reverse(f_s, 1.0)
        joint, apart = (split.estimator(torch.cat([a, h], 1)).flatten() for h in (b, b[other]))
        return self.lam * (known + fooled + rebuilt - mutual_information(joint, apart))
