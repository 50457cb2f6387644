"""Resources: extra data or knowledge that a scenario may allow and a part may need.

A part names them in ``needs``, a scenario in ``allow``; ``engine.preflight`` compares the two
before round 0, and what a resource opens is in ``client.resources`` and ``server.resources``. A new
one is a file with a registered class, in ``fedshift.resources`` or in a plug-in; nothing else
changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from fedshift.base.registry import Registry

if TYPE_CHECKING:
    from fedshift.core.scenario import Scenario
    from fedshift.data.federation import Federation
    from fedshift.data.samples import Samples

Side = Literal["client", "server"]


class Resource:
    """One kind of extra data or knowledge; ``doc`` completes "the method needs ..."."""

    doc: ClassVar[str]

    def __init__(self, name: str) -> None:
        self.name = name

    def granted(self, scenario: Scenario) -> bool:
        """Whether the scenario allows it: by default, if its ``allow`` names it."""
        return self.name in scenario.allow

    def missing(self, scenario: Scenario) -> tuple[str, str] | None:  # noqa: ARG002
        """How to add what the scenario lacks for it, as (text, option); None if nothing."""
        return None

    def open(
        self,
        federation: Federation,  # noqa: ARG002
        scenario: Scenario,  # noqa: ARG002
        side: Side,  # noqa: ARG002
    ) -> Samples | None:
        """The samples that it gives to the clients or to the server; None if it gives none there.

        Called only if it is granted, and nothing is missing.
        """
        return None


RESOURCES: Registry[Resource] = Registry("resource", "fedshift.resources", "fedshift.resources")
register_resource = RESOURCES.register


def resource(name: str) -> Resource:
    """The resource of that name, or an error that suggests the closest names."""
    return RESOURCES.get(name).build(name)


def granted(scenario: Scenario) -> list[Resource]:
    """The resources that a scenario allows and has."""
    found = [resource(name) for name in RESOURCES.entries()]
    return [item for item in found if item.granted(scenario) and not item.missing(scenario)]
