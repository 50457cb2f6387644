"""V-REx: risks that are the same in every domain (Krueger et al., ICML 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import Client, Method, Part, Step, register, setting
from fedshift.methods.shared.by_domain import annealed, outputs_by_domain


@dataclass(frozen=True)
class RiskVariance(Part):
    """beta * Var_e(R_e), the mean squared distance of the domains' risks from their mean.

    R_e is the task loss of domain e in the batch. Nothing is sent.
    """

    beta: float = setting(1.0, "weight of the variance after the warm-up", low=0.0)
    warmup: float = setting(0.1, "share of the rounds with a weight up to 1", low=0.0, high=1.0)
    needs = frozenset({"sample_domains"})

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The penalty; none for a batch of one domain."""
        weight, held = annealed(client, self.beta, self.warmup), outputs_by_domain(step)
        if not weight or len(held) < 2:
            return None
        risks = torch.stack([client.task.loss(out, y) for out, y in held])  # (E,)
        return weight * risks.var(correction=0)


@register("v-rex", paper="Krueger et al., ICML 2021", group="alignment")
def v_rex() -> Method:
    """FedAvg with equal risks in the domains of a client.

    If the risk does not change between the domains that are seen, it should change little where
    they are extrapolated. The penalty is the variance of the domains' risks.

    Use it: when clients hold several domains of about the same difficulty.
    Not for: clients of one domain, for which it is FedAvg; domains of unequal difficulty.
    Equations: the variance penalty: `RiskVariance`.
    """
    return Method((RiskVariance(),))
