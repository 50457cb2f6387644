"""Per-FedAvg: a model from which one step of each client goes far (Fallah et al., NeurIPS 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Batch,
    Client,
    Method,
    Net,
    Part,
    RunError,
    Scoring,
    Step,
    Tree,
    call,
    register,
    setting,
)
from fedshift.methods.shared.perturbation import moving, replace_by_gradient_at


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """D and D', the two halves of a batch; a single sample is in both."""
    middle = len(batch.x) // 2
    if not middle:
        return batch, batch
    first = batch.replace(x=batch.x[:middle], y=batch.y[:middle])
    return first, batch.replace(x=batch.x[middle:], y=batch.y[middle:])


def one_step(client: Client, alpha: float) -> Tree:
    """The parameters w - alpha grad f(w) of the net, f the task loss on all training samples.

    In eval mode, so that BatchNorm statistics do not move; works also without gradients.
    """
    with torch.inference_mode(mode=False), torch.enable_grad():
        named = client.net.named_parameters()
        w = {k: p.detach().clone().requires_grad_() for k, p in named if p.requires_grad}
        for x, y in client.site.data.train.chunks():
            loss = client.task.loss(call(client.net, w, x).logits, y, reduction="sum")
            (loss / client.examples).backward()
    return {k: v.detach() - alpha * v.grad for k, v in w.items() if v.grad is not None}


@dataclass(frozen=True)
class MetaStep(Part):
    """w <- w - lr grad f(w - alpha grad f(w; D); D'), the first-order form.

    D and D' are the halves of a batch, lr is the scenario's. Nothing but the model is sent. A
    client's own model is scored after one step of alpha on its training samples.
    """

    alpha: float = setting(0.01, "rate of the adaptation step", low=0.0)
    replaces_gradients = True

    def edit_gradients(self, client: Client, step: Step) -> None:
        """The gradient on D' at the adapted weights."""
        first, second = halves(step.batch)
        inner = torch.autograd.grad(client.objective(first), moving(client))
        replace_by_gradient_at(client, second, [-self.alpha * g for g in inner])

    def predict(self, net: Net, x: Tensor, scoring: Scoring) -> Tensor | None:
        """Adapt once per model, then predict; what belongs to no site is scored as it is."""
        client = scoring.client
        if client is None:
            return None
        if not client.examples:
            raise RunError(
                f"the model of site {client.id} is adapted to its training samples when it is "
                "scored, and none of them are here; load the model of all sites, or leave out "
                f"{self.name}"
            )
        kept = client.scratch[self.name]
        if not kept or any(not torch.equal(p, kept["w"][k]) for k, p in net.named_parameters()):
            kept["w"] = {k: p.detach().clone() for k, p in net.named_parameters()}
            kept["adapted"] = one_step(client, self.alpha)
        return call(net, kept["adapted"], x).logits


@register("per-fedavg", paper="Fallah et al., NeurIPS 2020", group="personal")
def per_fedavg() -> Method:
    """A shared start from which one local step gives a good personal model.

    Each local step looks ahead: it takes the gradient at the weights that one adaptation step
    leads to. The shared model is therefore good after a step at a site, not as it is.

    Use it: sites adapt the model with a few labelled samples, also sites that join late.
    Not for: one model that is used without adaptation.
    Equations: Algorithm 1, lines 7, 8, first-order: `MetaStep.edit_gradients`; adapted model:
    `one_step`.
    """
    return Method((MetaStep(),))
