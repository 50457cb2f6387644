"""DANN in a federation: features that hide the client (Ganin et al., JMLR 2016; as in FedBR)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import (
    Client,
    ConfigError,
    Method,
    Net,
    Part,
    Server,
    Step,
    Tree,
    Update,
    register,
    setting,
)
from fedshift.methods.shared.reversal import reverse


def client_loss(logits: Tensor, place: Tensor, clients: Tensor) -> Tensor:
    """CE_dom: mean of -log softmax(logits)[place] over the first ``clients`` outputs, (B, most)."""
    known = logits[:, : int(clients)]  # (B, n)
    return F.cross_entropy(known, place.expand(len(known)))


@dataclass(frozen=True)
class ClientAdversary(Part):
    """D minimises CE_dom(D(z), k), k the client's number; the body climbs it with weight lam.

    D is shared and averaged with the model: D -> width -> width -> most. A client learns its number
    and how many there are, two integers; outputs beyond that number are never used. With
    ``alternate`` each batch trains one side only, first the model, then D, as in released code.
    """

    lam: float = setting(0.1, "weight of the reversed gradient", low=0.0)
    width: int = setting(256, "width of the discriminator's two hidden layers", low=1)
    most: int = setting(128, "outputs of the discriminator: most clients that it can tell", low=2)
    alternate: bool = setting(False, "each batch trains either the model or the discriminator")
    min_clients = 2

    def build(self, net: Net) -> None:
        """Add D on the features."""
        sizes = (net.shapes()["features"][0], self.width, self.width, self.most)
        first, second, last = (nn.Linear(a, b) for a, b in pairwise(sizes))
        net.extra[self.name] = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)

    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """Raise if there are more clients than outputs."""
        if len(enrolments) > self.most:
            raise ConfigError(
                f"{len(enrolments)} clients enrolled, and {self.name} can tell {self.most}; "
                f"set {self.name}.most={len(enrolments)}"
            )

    def send(self, server: Server, client: str) -> Tree:
        """The client's number by name, whoever takes part in the round, and how many there are."""
        names = sorted(server.roster)
        return {"place": torch.tensor(names.index(client)), "clients": torch.tensor(len(names))}

    def loss(self, client: Client, step: Step) -> Tensor:
        """CE_dom, reversed before the body."""
        told, discriminator = client.payload(self), client.net.extra[self.name]
        logits = discriminator(reverse(step.out.features, self.lam))  # (B, most)
        return client_loss(logits, told["place"], told["clients"])

    def edit_gradients(self, client: Client, step: Step) -> None:
        """If they alternate, the side whose turn it is not gets no gradient, so no step at all."""
        if not self.alternate:
            return
        own = set(map(id, client.net.extra[self.name].parameters()))
        for parameter in client.net.parameters():
            if (id(parameter) in own) is (step.batch.index % 2 == 0):
                parameter.grad = None


@register("dann", paper="Ganin et al., JMLR 2016; as in FedBR", group="alignment")
def dann() -> Method:
    """Features from which a shared discriminator cannot tell the client.

    All clients average a discriminator that names the client of a feature. Each body learns,
    through a gradient reversal, to give features that it gets wrong.

    Use it: if clients differ in look but not in classes, and no target data exist.
    Not for: clients with different classes, whose labels the adversary would erase as well.
    Equations: the discriminator's loss: `client_loss`; CE - lam CE_dom: `reverse`.
    """
    return Method((ClientAdversary(),))
