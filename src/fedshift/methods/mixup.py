"""Mixup: convex combinations of pairs in a client's batch (Zhang et al., ICLR 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedshift import Batch, Client, Method, Part, register, setting
from fedshift.methods.shared.targets import soft_targets


@dataclass(frozen=True)
class Mixup(Part):
    """x = l x_i + (1 - l) x_j with soft labels, l ~ Beta(alpha, alpha), one l per batch."""

    alpha: float = setting(0.2, "shape of the Beta distribution", low=1e-6)

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Mix the batch with a permutation of itself."""
        generator = client.generator(self.name)
        share = float(client.numpy(self.name).beta(self.alpha, self.alpha))
        other = torch.randperm(len(batch.x), generator=generator)
        y = soft_targets(batch.y, client.classes)
        return batch.replace(
            x=torch.lerp(batch.x[other], batch.x, share), y=torch.lerp(y[other], y, share)
        )


@register("mixup", paper="Zhang et al., ICLR 2018", group="augmentation")
def mixup() -> Method:
    """Convex pairs of each client's own samples.

    Each batch is mixed with a permutation of itself, inputs and labels with the same share, which
    smooths the decision between samples.

    Use it: sites have few samples and overfit; it stacks on nearly every method.
    Not for: pixels or columns that must not be blended, and very short runs, which it slows down.
    Equations: Zhang et al., Eq. 1: `Mixup.batch`.
    """
    return Method((Mixup(),))
