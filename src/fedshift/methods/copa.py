"""COPA: one body for every client's head, and all heads predict (Wu and Gong, ICCV 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedshift import (
    Client,
    Method,
    ModelSpec,
    Net,
    Part,
    Scope,
    Scoring,
    Server,
    Step,
    Tree,
    Update,
    head_keys,
    register,
    setting,
    tree,
)
from fedshift.methods.shared.heads import require_uploaded_head


def through_heads(head: nn.Module, heads: Tree, z: Tensor) -> Tensor:
    """Logits (n, B, K) of n frozen heads on features (B, D); ``heads`` hold n entries each.

    In eval mode: a BatchNorm of a head normalises by that head's own statistics.
    """
    modes = [(m, m.training) for m in head.modules()]
    head.eval()
    try:
        logits: Tensor = vmap(lambda entries: functional_call(head, entries, (z,)))(heads)
        return logits
    finally:
        for module, mode in modes:
            module.training = mode


def ensemble(logits: Tensor) -> Tensor:
    """Log of the mean softmax over n heads, (B, K), from logits (n, B, K)."""
    return logits.log_softmax(2).logsumexp(0) - torch.tensor(float(len(logits))).log()


@dataclass(frozen=True)
class EveryHead(Part):
    """CE(h_k(z), y) + lam sum_{j != k} CE(h_j(z), y); the second term moves the body alone.

    Heads are personal: each client trains its own, and the server hands it to all others, frozen,
    so a client receives (n - 1) heads in each round after the first. Predictions are the mean of
    all heads' probabilities; those of clients that have not trained yet are left out.
    """

    objectives = frozenset({"classification"})

    lam: float = setting(1.0, "weight of each other client's head", low=0.0)
    shares = "each client's head, by the server to all other clients"
    needs_individual_updates = True
    min_clients = 2

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """The head: uploaded, one value per client."""
        return dict.fromkeys(head_keys(net), Scope.PERSONAL)

    def check(self, model: ModelSpec) -> None:
        """Raise if another part keeps heads at the sites."""
        require_uploaded_head(self.name, model)

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The sum over the other clients' heads; none in round 1."""
        heads, y = client.payload(self), step.y
        if not heads or self.lam == 0:
            return None
        logits = through_heads(client.net.head_module, heads, step.out.features)  # (n, B, K)
        targets = y.repeat(len(logits), *[1] * (y.dim() - 1))  # (n B,) or (n B, K)
        return self.lam * len(logits) * client.task.loss(logits.flatten(0, 1), targets)

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """Collect the participants' heads; absent clients keep their last ones."""
        keys = head_keys(server.net)
        for update in updates:
            head = {k.removeprefix(f"{server.net.head_path}."): update.personal[k] for k in keys}
            server.state[self.name] |= tree.prefixed(update.client, tree.clone(head))

    def _stacked(self, server: Server, without: str | None) -> Tree:
        """Heads of all clients that have trained, but one: entries (n, ...), in order of name."""
        kept = server.state[self.name]
        owners = sorted({key.partition("/")[0] for key in kept} - {without})
        heads = [tree.under(owner, kept) for owner in owners]
        return {k: torch.stack([head[k] for head in heads]) for k in heads[0]} if heads else {}

    def send(self, server: Server, client: str) -> Tree:
        """All other clients' heads."""
        return self._stacked(server, client)

    def send_scoring(self, server: Server, client: str | None) -> Tree:
        """All heads."""
        return self._stacked(server, None)

    def predict(self, net: Net, x: Tensor, scoring: Scoring) -> Tensor | None:
        """The mean of all heads' probabilities."""
        heads = scoring.payload(self)
        if not heads:
            return None
        return ensemble(through_heads(net.head_module, heads, net(x).features))


@register("copa", paper="Wu & Gong, ICCV 2021", group="alignment")
def copa() -> Method:
    """One body that suits every client's head; all heads predict together.

    Each client trains the shared body through its own head and through the frozen heads of all
    others, so that features suit every domain's classifier. New sites are scored by all heads.

    Use it: for an unseen domain, with a handful of clients that differ in look.
    Not for: hundreds of clients, each of which would receive and apply all heads.
    Equations: the local objective: `EveryHead.loss`; the prediction: `ensemble`.
    """
    return Method((EveryHead(),))
