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
    """Every site alone with the same budget: what federation must beat.

    No weight is ever sent: each client trains from the common start on its own data for as many
    rounds as the others.

    Use it: as the lower reference of a comparison under the protocol personal.
    Not for: anything else; under global and unseen it has no model to score.
    Equations: all entries private: `PrivateEverything.scope`.
    """
    return Method((PrivateEverything(),))
