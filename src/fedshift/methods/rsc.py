"""RSC: the features that a prediction leans on most are muted (Huang et al., ECCV 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import Client, Method, Part, Step, register, setting
from fedshift.methods.shared.targets import soft_targets


def feature_mask(gradient: Tensor, share: float) -> Tensor:
    """Eq. 3: 0 where the gradient (B, D) is among the largest ``share`` of its row, else 1."""
    k = round(share * gradient.shape[1])
    top = gradient.topk(k, dim=1).indices  # (B, k)
    return torch.ones_like(gradient).scatter(1, top, 0.0)


def challenged_rows(drop: Tensor, share: float) -> Tensor:
    """Rows (b,) of the ``share`` of a batch whose confidence falls most, ``drop`` (B,)."""
    return drop.topk(round(share * len(drop))).indices


@dataclass(frozen=True)
class SelfChallenging(Part):
    """CE(h(z m), y): m mutes the features z with the largest gradient of the true class's score.

    g = d (h(z) . y) / dz; the top ``features`` share of each row of g is muted, in the ``samples``
    share of the batch whose confidence in y falls most by it (Algorithm 1). It replaces the task
    loss, and nothing is sent.
    """

    objectives = frozenset({"classification"})

    features: float = setting(1 / 3, "share of the features that is muted", low=0.0, high=1.0)
    samples: float = setting(1 / 3, "share of the batch that is challenged", low=0.0, high=1.0)

    def task_loss(self, client: Client, step: Step) -> Tensor:
        """Algorithm 1, lines 4 to 8."""
        z, head = step.out.features, client.net.head_module
        y = soft_targets(step.y, client.classes)  # (B, K)
        mask = torch.ones_like(z)
        with torch.enable_grad():
            seen = z.detach().requires_grad_()
            logits: Tensor = head(seen)
            (gradient,) = torch.autograd.grad((logits * y).sum(), seen)
        with torch.no_grad():
            muted = feature_mask(gradient, self.features)  # (B, D)
            before, after = (
                (out.softmax(1) * y).sum(1) for out in (logits, head(seen * muted))
            )  # (B,)
            rows = challenged_rows(before - after, self.samples)
            mask[rows] = muted[rows]
        return client.task.loss(head(z * mask), step.y)


@register("rsc", paper="Huang et al., ECCV 2020", group="augmentation")
def rsc() -> Method:
    """The most predictive features are muted, so that others are learnt.

    Training finds the easiest features first, and those may belong to one domain only. Muting the
    features with the largest gradient makes the model learn further ones.

    Use it: as a plug-in for an unseen domain, where the model leans on few features.
    Not for: small heads or few features, of which none can be spared, and for regression.
    Equations: Alg. 1: `SelfChallenging`; Eq. 3: `feature_mask`; Section 3.3: `challenged_rows`.
    """
    return Method((SelfChallenging(),))
