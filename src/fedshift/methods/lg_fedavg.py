"""LG-FedAvg: local representations, global head (Liang et al., 2020)."""

from __future__ import annotations

from collections.abc import Mapping

from fedshift import Method, Net, Part, Scope, head_keys, register


class PrivateBody(Part):
    """Every entry before the head is private; starts from the common model, without warm-up."""

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """All but the head."""
        return dict.fromkeys(net.state_dict().keys() - head_keys(net), Scope.PRIVATE)


@register("lg-fedavg", paper="Liang et al., 2020", group="personal")
def lg_fedavg() -> Method:
    """Private body, shared head: only the head is sent.

    Each client learns features of its own and shares the classifier on top of them, so very little
    travels.

    Use it: the uplink is narrow and each site has enough data for a body of its own.
    Not for: new sites, which have no body, and sites with little data.
    Equations: Sec. 3, local representations: `PrivateBody.scope`.
    """
    return Method((PrivateBody(),))
