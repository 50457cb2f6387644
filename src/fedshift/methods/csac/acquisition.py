"""Semantic acquisition: long local training on smoothed labels in round 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fedshift import (
    Batch,
    Client,
    Part,
    Phase,
    Scenario,
    setting,
)


def smoothed(y: Tensor, classes: int, alpha: float) -> Tensor:
    """p^c = (1 - alpha) 1(y = c) + alpha / C of Eq. 2, (B, K), from classes (B,) or (B, K)."""
    p = y if y.dim() == 2 else F.one_hot(y, classes).float()
    return (1 - alpha) * p + alpha / classes


def longer(scenario: Scenario, times: float) -> Phase:
    """A phase of ``times`` the scenario's local budget, in whole steps or epochs, at least one."""
    if scenario.steps:
        return Phase(steps=max(1, round(times * scenario.steps)))
    return Phase(epochs=max(1, round(times * (scenario.epochs or 1))))


@dataclass(frozen=True)
class SemanticAcquisition(Part):
    """Round 1: every client trains on its own data from the common start, with smoothed labels.

    The paper gives it 30 x 60 iterations against 10 x 20 in each later round: 9 local budgets.
    FedAvg does not get these extra steps; ``acquisition=1`` compares at an equal budget.
    """

    objectives = frozenset({"classification"})

    smoothing: float = setting(0.1, "label smoothing alpha of Eq. 2", low=0.0, high=1.0)
    acquisition: float = setting(9.0, "length of round 1, in local budgets", low=0.0)
    needs_full_participation = True  # a later client would calibrate before it has acquired

    def phases(self, client: Client) -> Sequence[Phase]:
        """One long phase in round 1, the scenario's budget afterwards."""
        if client.round > 1 or self.acquisition == 1:
            return ()
        return (longer(client.scenario, self.acquisition),)

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Eq. 2 in round 1."""
        if client.round > 1 or self.smoothing == 0:
            return batch
        return batch.replace(y=smoothed(batch.y, client.classes, self.smoothing))
