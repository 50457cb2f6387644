"""Local: every client trains alone, with the same budget as in a federation."""

from __future__ import annotations

from collections.abc import Mapping

from fedshift import Method, Net, Part, Scope, register


class PrivateEverything(Part):
    """All entries are private: no weight is ever sent."""

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """Every tensor."""
        return dict.fromkeys(net.state_dict(), Scope.PRIVATE)


@register("local", group="reference")
def local() -> Method:
    """No exchange of weights: the baseline that federated training has to beat."""
    return Method((PrivateEverything(),))
