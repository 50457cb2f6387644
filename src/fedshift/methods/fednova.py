"""FedNova: more local steps give a client no more weight (Wang et al., NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import Aggregator, Method, Server, Tree, Update, register, tree, weighted_mean


def effective_steps(steps: Tensor, momentum: float) -> Tensor:
    """tau_k, the norm of the step coefficients: [s - m (1 - m^s) / (1 - m)] / (1 - m).

    ``steps`` (n,) is float64; without momentum tau_k is the number of steps.
    """
    m = momentum
    return (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)


@dataclass(frozen=True)
class NormalisedMean(Aggregator):
    """theta + tau_eff sum_k p_k (theta_k - theta) / tau_k, tau_eff = sum_k p_k tau_k (Eq. 6).

    With momentum, tau_k assumes a buffer that starts at zero each round (optimiser state reset).
    """

    optimisers = frozenset({"sgd", "momentum"})

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """Eq. 6 as one mean of the client models and the old model; coefficients sum to one."""
        steps = torch.tensor([max(1, u.steps) for u in updates], dtype=torch.float64)
        tau = effective_steps(steps, server.scenario.momentum)  # (n,)
        share = weights * (weights * tau).sum() / tau  # (n,)
        models = [tree.pick(u.shared, server.parameters) for u in updates]
        old = tree.pick(server.shared, server.parameters)
        return weighted_mean([*models, old], torch.cat([share, (1 - share.sum())[None]]))


@register("fednova", paper="Wang et al., NeurIPS 2020", group="optimisation")
def fednova() -> Method:
    """Updates are normalised by the local steps that made them.

    A client that takes more steps moves further and would count more than its share; each update is
    divided by its number of steps before averaging and the mean is scaled back.

    Use it: sites take very different numbers of local steps, because of their sizes or of budgets
    in epochs.
    Not for: equal steps everywhere, where it is FedAvg, and Adam at the clients, for which its
    algebra does not hold.
    Equations: Eq. 6: `NormalisedMean.combine`; tau_k with momentum: `effective_steps`.
    """
    return Method(aggregate=NormalisedMean())
