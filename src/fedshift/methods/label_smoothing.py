"""Label smoothing: no target is quite certain (Szegedy et al., CVPR 2016, Section 7)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedshift import Batch, Client, Method, Part, register, setting
from fedshift.methods.shared.targets import soft_targets


def smoothed(y: Tensor, classes: int, epsilon: float) -> Tensor:
    """(1 - epsilon) y + epsilon / K, (B, K), from classes (B,) or probabilities (B, K)."""
    return (1.0 - epsilon) * soft_targets(y, classes) + epsilon / classes


@dataclass(frozen=True)
class LabelSmoothing(Part):
    """q_c = (1 - epsilon) y_c + epsilon / K in place of the targets y of each batch.

    Linear in y, so it can stand before or after mixup. Other parts see the smoothed targets too.
    """

    objectives = frozenset({"classification"})

    epsilon: float = setting(0.1, "probability that is spread over all classes", low=0.0, high=1.0)

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Smooth the batch's targets."""
        return batch.replace(y=smoothed(batch.y, client.classes, self.epsilon))


@register("label-smoothing", paper="Szegedy et al., CVPR 2016", group="augmentation")
def label_smoothing() -> Method:
    """FedAvg on targets that are not quite certain.

    A small share of each target's probability is spread evenly over all classes. The net is then
    not rewarded for ever larger logits, and its probabilities are better calibrated.

    Use it: as a plug-in for any method when local training overfits or probabilities matter.
    Not for: distillation from the trained model, whose knowledge of other classes it blurs.
    Equations: Section 7, q': `smoothed`.
    """
    return Method((LabelSmoothing(),))
