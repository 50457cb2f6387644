"""GroupDRO in a federation: clients with a high loss count more (Sagawa et al., ICLR 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Client,
    Mean,
    Method,
    ModelSpec,
    Part,
    PayloadSpec,
    Server,
    Tree,
    Update,
    Uploads,
    Weighting,
    register,
    score,
    setting,
)

MOST = 50.0  # of eta l_k: a loss beyond it, which no training gives, would overflow in exp


class LossProbe(Part):
    """Sends the mean loss of the received model on the client's training samples: one scalar."""

    shares = "training loss of the received model"

    def uploads(self, model: ModelSpec) -> Uploads:
        """One number."""
        return {"train": {"loss": PayloadSpec((), torch.float64, low=0.0)}}

    def probe(self, client: Client) -> Tree:
        """l_k, before training."""
        client.net.eval()
        found = score(lambda x: client.net(x).logits, client.site.data.train, client.task)
        return {"loss": torch.tensor(found["loss"] / found["count"], dtype=torch.float64)}


@dataclass(frozen=True)
class ExponentialWeights(Weighting):
    """w_k <- w_k exp(eta l_k), normalised over the participants; starts uniform.

    The server keeps one weight per client and normalises over all clients after each round, so that
    those that do not participate keep their proportions.
    """

    eta: float = setting(0.01, "step of the weights", low=0.0)
    needs_parts = frozenset({"loss-probe"})

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:
        """Weights (n,)."""
        n = len(server.roster)
        kept = server.state[self.name]
        start = torch.full((), 1.0 / n, dtype=torch.float64)
        all_ = {client: kept.get(client, start) for client in sorted(server.roster)}
        for u in updates:
            grown = (self.eta * u.payload["loss-probe/loss"]).clamp(max=MOST).exp()
            all_[u.client] = all_[u.client] * grown
        total = torch.stack(list(all_.values())).sum()
        server.state[self.name] = {client: w / total for client, w in all_.items()}
        w = torch.stack([server.state[self.name][u.client] for u in updates])
        return w / w.sum()


@register("groupdro", paper="Sagawa et al., ICLR 2020; as in FedDebias", group="aggregation")
def groupdro() -> Method:
    """Clients with a high loss count more.

    Each client reports the loss of the received model on its data, and its weight in the mean grows
    exponentially with it.

    Use it: the worst site matters more than the average one.
    Not for: noisy or damaged sites, which get the largest weights, and privacy parts, since a loss
    is sent.
    Equations: w_k exp(eta l_k): `ExponentialWeights`; l_k: `LossProbe.probe`.
    """
    return Method((LossProbe(),), Mean(ExponentialWeights()))
