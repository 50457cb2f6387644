"""Voting: the clients' models label the target by majority (Sun et al., ACML 2022, Eq. 10)."""

from __future__ import annotations

from fedshift import Method, register
from fedshift.methods.fedka.voting import FederatedVoting


@register("voting", paper="Sun et al., ACML 2022", group="alignment")
def voting() -> Method:
    """FedAvg, fine-tuned at the server on the clients' majority labels.

    After each round the clients' models classify target inputs at the server, and the majority's
    answers become their labels. The averaged model takes a few steps on them and is sent on.

    Use it: if the server has target inputs and most clients' models are better than chance there.
    Not for: secure aggregation, or a target on which most of the models are wrong.
    Equations: FedKA, Eq. 10: `FederatedVoting.merge`; Section 3.2.5: `FederatedVoting.refine`.
    """
    return Method((FederatedVoting(),))
