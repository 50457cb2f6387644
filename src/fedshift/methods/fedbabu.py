"""FedBABU: the head is never trained in the federation, only at the end (Oh et al., ICLR 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    ConfigError,
    Method,
    ModelSpec,
    Net,
    Part,
    RunError,
    Scope,
    Scoring,
    call,
    head_keys,
    register,
    setting,
    tree,
)
from fedshift.methods.shared.branch import trained_keys
from fedshift.methods.shared.tuning import tuned


class FixedHead(Part):
    """Every entry of the head keeps its initial value at all clients, and is never sent."""

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """The head is fixed."""
        return dict.fromkeys(head_keys(net), Scope.FIXED)

    def check(self, model: ModelSpec) -> None:
        """Raise if nothing is left to train."""
        if not any(p.requires_grad for _, p in model.net.named_parameters()):
            raise ConfigError(
                f"{self.name} trains the body alone, and this backbone has no body that trains; "
                "give one with layers before the head, and train=all"
            )


@dataclass(frozen=True)
class FineTuned(Part):
    """A site's own model is the shared one after some epochs on the site's training samples.

    It is made when it is scored and kept nowhere: the federation is the same with and without it.
    A model that belongs to no site is scored as it is.
    """

    tune_epochs: int = setting(5, "epochs of tuning; 0 scores the shared model", low=0)
    tune: str = setting("all", "what is tuned", choices=("all", "head", "body"))

    def predict(self, net: Net, x: Tensor, scoring: Scoring) -> Tensor | None:
        """Tune once per model, then predict with the tuned entries."""
        client = scoring.client
        if client is None or not self.tune_epochs:
            return None
        if not client.examples:
            raise RunError(
                f"the model of site {client.id} is tuned on its training samples when it is "
                "scored, and a run's directory has none of them; load the model of all sites, or "
                f"leave out {self.name}"
            )
        kept, now = client.scratch[self.name], dict(net.named_parameters())
        if not kept or any(not torch.equal(p, kept["from"][k]) for k, p in now.items()):
            generator = scoring.generator(self.name)
            kept["from"] = tree.clone(now)
            kept["tuned"] = tuned(client, self.keys(net), self.tune_epochs, generator)
        return call(net, kept["tuned"], x).logits

    def keys(self, net: Net) -> set[str]:
        """The parameters that are tuned: the head too, although it is fixed before."""
        head = head_keys(net)
        body = trained_keys(net) - head
        return {"all": body | head, "head": head, "body": body}[self.tune]


@register("fedbabu", paper="Oh et al., ICLR 2022", group="personal")
def fedbabu() -> Method:
    """The body is averaged, the head fixed; each site tunes both later.

    All sites train their bodies for one and the same random head, so their features agree. A site
    gets its own model by a few epochs of ordinary training from the shared one.

    Use it: a site wants a model of its own after a few epochs, also a site that joins late.
    Not for: one model for all without tuning, because its head has never been trained.
    Equations: Algorithm 1: `FixedHead`; its evaluation: `FineTuned.predict`.
    """
    return Method((FixedHead(), FineTuned()))
