"""FedRep: first the head alone, then the body alone (Collins et al., ICML 2021, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedshift import Client, Method, Named, Part, Phase, Player, head_keys, register, setting
from fedshift.methods.fedper import PrivateHead


def head(client: Client) -> Named:
    """Parameters of the head."""
    keys = head_keys(client.net)
    return ((k, p) for k, p in client.net.named_parameters() if k in keys)


def body(client: Client) -> Named:
    """All other parameters."""
    keys = head_keys(client.net)
    return ((k, p) for k, p in client.net.named_parameters() if k not in keys)


@dataclass(frozen=True)
class HeadThenBody(Part):
    """``head_epochs`` on the head with the body frozen, then the local budget on the body."""

    head_epochs: int = setting(5, "epochs on the head; the paper uses 10 to 15", low=1)

    def phases(self, client: Client) -> Sequence[Phase]:
        """Algorithm 1, the two inner loops."""
        return (
            Phase((Player("head", head),), epochs=self.head_epochs),
            Phase((Player("body", body),)),
        )


@register("fedrep", paper="Collins et al., ICML 2021", group="personal")
def fedrep() -> Method:
    """Private head first, then the shared body.

    In each visit the client fits its own head on the received features, then trains the body with
    that head fixed; only the body is averaged.

    Use it: sites share a representation and each has enough samples for a head of its own.
    Not for: new sites, and budgets in bytes or steps: the head's epochs come on top of the
    scenario's.
    Equations: Algorithm 1: `HeadThenBody.phases`; private head: `PrivateHead.scope`.
    """
    return Method((PrivateHead(), HeadThenBody()))
