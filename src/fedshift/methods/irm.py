"""IRM: a classifier that is optimal in every domain at once (Arjovsky et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import Client, Method, Objective, Part, Step, register, setting
from fedshift.methods.shared.by_domain import annealed, outputs_by_domain


def scale_slope(task: Objective, out: Tensor, y: Tensor) -> Tensor:
    """The slope d R(s * out) / ds at s = 1, for outputs (n, K) of one domain."""
    s = torch.ones((), device=out.device, requires_grad=True)
    (slope,) = torch.autograd.grad(task.loss(out * s, y), s, create_graph=True)
    return slope


@dataclass(frozen=True)
class InvariantRisk(Part):
    """lam * mean_e (d R_e(s z) / ds at s = 1)^2 over the domains e of the batch (IRMv1).

    R_e is the task loss of domain e and s scales the outputs: if no s but 1 is better in any
    domain, all of them agree on the classifier. Nothing is sent.
    """

    lam: float = setting(1.0, "weight of the penalty after the warm-up", low=0.0)
    warmup: float = setting(0.1, "share of the rounds with a weight up to 1", low=0.0, high=1.0)
    needs = frozenset({"sample_domains"})

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The penalty; none for a batch of one domain."""
        weight, held = annealed(client, self.lam, self.warmup), outputs_by_domain(step)
        if not weight or len(held) < 2:
            return None
        slopes = torch.stack([scale_slope(client.task, out, y) for out, y in held])  # (E,)
        return weight * slopes.square().mean()


@register("irm", paper="Arjovsky et al., 2019", group="alignment")
def irm() -> Method:
    """FedAvg with one classifier that suits each domain of a client.

    A feature that is tied to one domain makes the best classifier differ between domains. The
    penalty is the squared slope of each domain's risk along the scale of the outputs.

    Use it: when clients hold several domains, and know which sample is of which.
    Not for: clients of one domain, for which it is FedAvg.
    Equations: IRMv1: `InvariantRisk`, `scale_slope`.
    """
    return Method((InvariantRisk(),))
