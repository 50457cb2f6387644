"""FedMix: mixup with means of other clients to first order (Yoon et al., ICLR 2021, Eq. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Batch,
    Client,
    ConfigError,
    Method,
    Part,
    Server,
    Step,
    Update,
    register,
    setting,
)
from fedshift.methods.naivemix import MeanPool, draw_mean
from fedshift.methods.shared.pool import require_part


@dataclass(frozen=True)
class TaylorMixing(Part):
    """(1 - lam) l(f(u), y) + lam l(f(u), ybar) + lam <dl(f(u), y)/du, xbar> with u = (1 - lam) x.

    Mixup's loss on (1 - lam) x + lam xbar to first order in xbar. The gradient is that of each
    sample's own loss, the mean over the batch is taken last, and it is differentiated again in the
    weights. One mean per batch; the batch that every part and the net see is u. Replaces the task
    loss.
    """

    objectives = frozenset({"classification"})

    lam: float = setting(0.05, "share of the mean in a sample", low=0.0, high=1.0)

    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """Raise if there are no means."""
        require_part(self, MeanPool, server)

    def batch(self, client: Client, batch: Batch) -> Batch:
        """u, with respect to which the loss is differentiated."""
        client.scratch[self.name]["mean"] = draw_mean(client, self.name)
        return batch.replace(x=(batch.x * (1 - self.lam)).detach().requires_grad_())

    def task_loss(self, client: Client, step: Step) -> Tensor:
        """Eq. 4."""
        u, logits, loss = step.batch.x, step.out.logits, client.task.loss
        if not u.requires_grad:
            raise ConfigError(
                f"a part after {self.name} replaces its inputs, with respect to which it "
                f"differentiates; name {self.name} last"
            )
        mean, label = client.scratch[self.name]["mean"]
        own = loss(logits, step.y)
        (slope,) = torch.autograd.grad(own * len(u), u, create_graph=True)  # of each sample's loss
        other = loss(logits, label.expand_as(logits))
        first_order = (slope * mean).flatten(1).sum(1).mean()
        return (1 - self.lam) * own + self.lam * (other + first_order)


@register("fedmix", paper="Yoon et al., ICLR 2021", group="augmentation")
def fedmix() -> Method:
    """Mixup with means of other clients, to first order in them.

    Mixup's loss is expanded around the client's own samples, so that the foreign mean enters
    through a gradient and not as an input. The net never sees a mixed image.

    Use it: under label skew, if means of a few samples and their labels may leave a site.
    Not for: small budgets, since the second derivative makes a step about three times as long.
    Equations: Eq. 4: `TaylorMixing.task_loss`; Algorithm 1, line 3: `MeanPool.enrol`.
    """
    return Method((MeanPool(), TaylorMixing()))
