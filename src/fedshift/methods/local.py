"""Local: every site trains alone, with the same budget as in a federation."""

from __future__ import annotations

from collections.abc import Mapping

from fedshift import Method, Net, Part, Scope, register


class PrivateEverything(Part):
    """All entries are private: nothing travels."""

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """Every tensor."""
        return dict.fromkeys(net.state_dict(), Scope.PRIVATE)


@register("local")
def local() -> Method:
    """No communication at all: the reference that federating has to beat."""
    return Method((PrivateEverything(),))
