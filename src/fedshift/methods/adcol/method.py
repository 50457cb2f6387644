"""Features up, the discriminator down, and the divergence of its answers at the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift import (
    Client,
    ConfigError,
    Method,
    ModelSpec,
    Part,
    PayloadSpec,
    Server,
    Step,
    Tree,
    Update,
    Uploads,
    call_frozen,
    head_keys,
    register,
    setting,
    tree,
)
from fedshift.core.net import load
from fedshift.methods.adcol.discriminator import discriminator, unknown_origin
from fedshift.methods.shared.prototypes import PrivateModels
from fedshift.methods.shared.server_training import Passes, fit, held_net, kept_net


@dataclass(frozen=True)
class HiddenOrigin(Part):
    """mu * KL(uniform || D(z)), with D the server's classifier of the client that sent a feature.

    A client sends the features (n, D) of n = ``samples`` training samples, drawn with replacement
    after training, in eval mode; the server trains D on those of all participants and sends it.
    There is no term in round 1.
    """

    mu: float = setting(0.5, "weight of the divergence", low=0.0)
    samples: int = setting(128, "features that a client sends in a round", low=2)
    server_epochs: int = setting(3, "passes over the features at the server", low=0)
    server_lr: float = setting(0.01, "rate of SGD at the server", low=0.0)
    width: int = setting(512, "width of the discriminator", low=1)
    min_clients = 2
    shares = "features of training samples"
    needs_individual_updates = True

    def check(self, model: ModelSpec) -> None:
        """Refuse a net without a body: its features are its inputs, which must not leave a site."""
        if not {name for name, _ in model.net.named_parameters()} - head_keys(model.net):
            raise ConfigError(
                f"{self.name} sends features, and those of a net without layers below its head "
                "are the inputs themselves; use a backbone with layers, such as mlp or cnn"
            )

    def uploads(self, model: ModelSpec) -> Uploads:
        """One feature per drawn sample."""
        return {"train": {"features": PayloadSpec((self.samples, model.features))}}

    def begin(self, client: Client) -> None:
        """Build D as it was sent; it is frozen and in eval mode."""
        if not (told := client.payload(self)):
            return
        last = told["net/head.weight"]
        net = discriminator(len(told["net/hidden.0.weight"][0]), *last.shape)
        load(net, tree.under("net", told))
        client.scratch[self.name]["net"] = net.eval().requires_grad_(False)

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The divergence of the origin that D sees from the uniform one."""
        net = client.scratch[self.name].get("net")
        if net is None or not self.mu:
            return None
        return self.mu * unknown_origin(net(step.out.features).logits)

    def finish(self, client: Client) -> Tree:
        """Features of random training samples."""
        draw = client.generator(self.name)
        rows = torch.randint(client.examples, (self.samples,), generator=draw)
        x, _ = client.site.data.train.take(rows)
        entries = client.net.state_dict()
        found = [call_frozen(client.net, entries, chunk).features for chunk in x.split(512)]
        return {"features": torch.cat(found)}

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """Train D on the participants' features; the class of one is its client."""
        clients = sorted(server.roster)
        sent = [u.payload[f"{self.name}/features"] for u in updates]
        origin = [
            torch.full((len(z),), clients.index(u.client))
            for z, u in zip(sent, updates, strict=True)
        ]
        z = torch.cat(sent)
        net = held_net(
            server, self.name, lambda: discriminator(z.shape[1], len(clients), self.width)
        )
        passes = Passes(self.server_epochs, server.scenario.batch_size, self.server_lr)
        loss = lambda step: F.cross_entropy(step.out.logits, step.y)  # noqa: E731
        fit(server, self.name, net, (z, torch.cat(origin)), passes, (lambda b: net(b.x), loss))
        server.state[self.name] = kept_net(net)

    def send(self, server: Server, client: str) -> Tree:
        """D of the round before; none in round 1."""
        return server.state[self.name]


@register("adcol", paper="Li et al., ICML 2023", group="alignment")
def adcol(share_model: bool = True) -> Method:
    """FedAvg with features that do not show which client they are from.

    The server learns to tell from a feature which client sent it, and sends this classifier to the
    clients. They train their features so that its answer is uniform, hence alike at all sites.

    Use it: sites differ in how their inputs look, and features may leave them.
    Not for: confidential data, since features of single samples are sent.
    Equations: client term: `unknown_origin`; discriminator: `HiddenOrigin.merge`.
    Options: share_model: whether weights are averaged too, or features only travel.
    """
    return Method((HiddenOrigin(), *(() if share_model else (PrivateModels(),))))
