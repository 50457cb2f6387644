"""L2R: short features, which cannot say much of a domain (FedSR, FedL2R)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedshift import (
    Client,
    Part,
    Step,
    setting,
)


@dataclass(frozen=True)
class FeatureNorm(Part):
    """alpha * mean |z|_2: an upper bound of the entropy of the features; nothing is sent."""

    alpha: float = setting(0.01, "weight of the features' length", low=0.0)
    squared: bool = setting(False, "squared length, as the paper prints it")

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """L2R of the batch's features (B, D)."""
        if not self.alpha:
            return None
        z = step.out.features
        lengths = z.square().sum(1) if self.squared else z.norm(dim=1)
        return self.alpha * lengths.mean()
