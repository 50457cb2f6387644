"""FedIIR: gradients of the head agree with the federation's mean (Guo et al., ICML 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Client,
    ConfigError,
    Method,
    ModelSpec,
    Net,
    Part,
    PayloadSpec,
    Server,
    Step,
    Tree,
    Update,
    Uploads,
    head_keys,
    parameters_of,
    register,
    setting,
    tree,
    weighted_mean,
)
from fedshift.core.aggregate import ByExamples
from fedshift.data.samples import split_rows


def head_gradient(net: Net, loss: Tensor, *, keep_graph: bool) -> Tree:
    """Gradient of ``loss`` by every parameter of the head that trains, by name."""
    named = {k: p for k, p in parameters_of(net, head_keys(net)) if p.requires_grad}
    if not named:
        return {}
    found = torch.autograd.grad(loss, list(named.values()), create_graph=keep_graph)
    return dict(zip(named, found, strict=True))


def disagreement(gradient: Mapping[str, Tensor], mean: Mapping[str, Tensor]) -> Tensor:
    """Squared distance |g - mean|^2, summed over all entries of the head."""
    gaps = [(g - mean[k]).square().sum() for k, g in gradient.items()]
    return torch.stack(gaps).sum()


@dataclass(frozen=True)
class HeadGradientMatching(Part):
    """CE + lam |grad_h CE(batch) - g|^2, g <- ema g + (1 - ema) mean_k grad_h R_k(theta), from 0.

    Each client sends the mean gradient of its training loss by the head at the received model, in
    train mode as in training; the server averages by examples and sends g, once the size of the
    head each way. g of a round enters the next, so there is no term in round 1.
    """

    lam: float = setting(1e-3, "weight of the disagreement", low=0.0)
    ema: float = setting(0.95, "share of the old mean that is kept", low=0.0, high=1.0)
    shares = "the mean gradient of its head at the received model"

    def check(self, model: ModelSpec) -> None:
        """Raise if nothing of the head is trained."""
        if not self._entries(model):
            raise ConfigError(
                f"{self.name} compares gradients of the head, and the head has no parameter that "
                "trains; give a backbone with a head"
            )

    @staticmethod
    def _entries(model: ModelSpec) -> Tree:
        named = parameters_of(model.net, head_keys(model.net))
        return {k: p for k, p in named if p.requires_grad}

    def uploads(self, model: ModelSpec) -> Uploads:
        """One entry per parameter of the head."""
        entries = self._entries(model).items()
        return {"train": {k: PayloadSpec(tuple(p.shape), p.dtype) for k, p in entries}}

    def probe(self, client: Client) -> Tree:
        """grad_h R_k(theta): the mean over the client's batches, by their rows."""
        train, net = client.site.data.train, client.net.train()
        chunks = split_rows(torch.arange(len(train)), client.scenario.batch_size)
        sizes = torch.tensor([len(rows) for rows in chunks], dtype=torch.float64)

        def gradient(x: Tensor, y: Tensor) -> Tree:
            return head_gradient(net, client.task.loss(net(x).logits, y), keep_graph=False)

        return weighted_mean((gradient(*train.take(rows)) for rows in chunks), sizes / sizes.sum())

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """The moving average of the clients' mean gradient."""
        told = [tree.under(self.name, u.payload) for u in updates]
        mean = weighted_mean(told, ByExamples()(server, updates))
        old = server.state[self.name] or tree.zeros_like(mean)
        server.state[self.name] = {
            k: self.ema * old[k] + (1 - self.ema) * g for k, g in mean.items()
        }

    def send(self, server: Server, client: str) -> Tree:
        """g; nothing in round 1."""
        return server.state[self.name]

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The penalty, differentiated twice; none while the head rests."""
        mean = client.payload(self)
        if not mean or self.lam == 0:
            return None
        task = client.task.loss(step.out.logits, step.y)
        gradient = head_gradient(client.net, task, keep_graph=True)
        return self.lam * disagreement(gradient, mean) if gradient else None


@register("fediir", paper="Guo et al., ICML 2023", group="alignment")
def fediir() -> Method:
    """Gradients of the head pulled to their mean over all clients.

    If a feature is related to the label in the same way everywhere, the head's gradient is the same
    at every client. So each client is penalised for a gradient other than the federation's mean.

    Use it: for an unseen domain, with many clients, or few of them per round.
    Not for: very different labels among clients, whose gradients have to differ.
    Equations: the penalty: `disagreement`; the mean gradient: `HeadGradientMatching.merge`.
    """
    return Method((HeadGradientMatching(),))
