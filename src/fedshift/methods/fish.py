"""Fish: gradients that agree over domains (Shi et al., ICLR 2022, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedshift import Client, Method, Part, Step, register, setting
from fedshift.methods.shared.by_domain import rows_by_domain
from fedshift.methods.shared.perturbation import moving


def without_single_rows(groups: list[Tensor]) -> list[Tensor]:
    """The same rows, where groups of one row join the last larger group: BatchNorm needs two."""
    large = [rows for rows in groups if len(rows) > 1]
    single = [rows for rows in groups if len(rows) == 1]
    return [*large[:-1], torch.cat([*large[-1:], *single])] if single else large


@dataclass(frozen=True)
class Fish(Part):
    """w <- w + eps (v - w): v starts at w and takes one SGD step per domain, in random order.

    To first order in the rate this ascends the inner products of the domains' gradients. The
    domains are those of the batch; each step minimises the whole objective on its samples. A batch
    of one domain takes the plain step. Nothing is sent.
    """

    eps: float = setting(0.5, "share of the way to the inner steps' end", low=0.0, high=1.0)
    needs = frozenset({"sample_domains"})
    optimisers = frozenset({"sgd"})
    replaces_gradients = True

    def edit_gradients(self, client: Client, step: Step) -> None:
        """Replace the gradient by eps (w - v) / lr: an SGD step then ends at w + eps (v - w)."""
        groups = without_single_rows(rows_by_domain(step.batch))
        if len(groups) < 2:
            return
        parameters = moving(client)
        before = [p.detach().clone() for p in parameters]
        order = torch.randperm(len(groups), generator=client.generator(self.name))
        for rows in (groups[i] for i in order.tolist()):
            descend_on(client, step, rows, parameters)
        with torch.no_grad():
            for p, w in zip(parameters, before, strict=True):
                p.grad = (w - p) * (self.eps / client.lr)
                p.copy_(w)


def descend_on(client: Client, step: Step, rows: Tensor, parameters: list[nn.Parameter]) -> None:
    """One SGD step on some rows of the batch, in place."""
    batch = step.batch
    assert batch.domains is not None
    own = batch.replace(x=batch.x[rows], y=batch.y[rows], domains=batch.domains[rows])
    gradients = torch.autograd.grad(client.objective(own), parameters)
    with torch.no_grad():
        for p, gradient in zip(parameters, gradients, strict=True):
            p.sub_(gradient, alpha=client.lr)


@register("fish", paper="Shi et al., ICLR 2022", group="alignment")
def fish() -> Method:
    """FedAvg with local steps on which a client's domains agree.

    A short walk visits the domains one after another, and the weights move part of the way to its
    end. What the domains' gradients have in common adds up, what they disagree on cancels.

    Use it: when clients hold several domains, batches are not small, and the optimiser is SGD.
    Not for: clients of one domain, for which it is FedAvg; it takes one more pass over each batch.
    Equations: Algorithm 1: `Fish`, `descend_on`.
    """
    return Method((Fish(),))
