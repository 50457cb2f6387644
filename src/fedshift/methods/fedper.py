"""FedPer: the head stays at the client (Arivazhagan et al., 2019)."""

from __future__ import annotations

from collections.abc import Mapping

from fedshift import Method, Net, Part, Scope, head_keys, register


class PrivateHead(Part):
    """Every entry of the head is private."""

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """The head."""
        return dict.fromkeys(head_keys(net), Scope.PRIVATE)


@register("fedper", paper="Arivazhagan et al., 2019", group="personal")
def fedper() -> Method:
    """Shared body, private head, trained together.

    All layers but the last are averaged; each client keeps its own classifier on top of them.

    Use it: sites agree on features and disagree on labels or on their frequencies.
    Not for: new sites, which have no head, and sites with too few samples to fit one.
    Equations: Algorithms 1 and 2: `PrivateHead.scope`.
    """
    return Method((PrivateHead(),))
