"""Samples without labels at each client, for methods that learn from both kinds."""

from __future__ import annotations

from fedshift.core.resource import Resource, register_resource
from fedshift.core.scenario import Scenario


@register_resource("client_unlabelled")
class ClientUnlabelled(Resource):
    """A client's own unlabelled samples, in ``client.site.data.unlabelled``.

    They are the client's own, so nobody has to allow them; they only have to be there.
    """

    doc = "unlabelled samples at each client"

    def granted(self, scenario: Scenario) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def missing(self, scenario: Scenario) -> tuple[str, str] | None:
        """A scenario in which some training samples have no label."""
        if scenario.labelled is not None:
            return None
        text = "say which share of the training samples keeps its labels, as in labelled=0.1"
        return text, "scenario.labelled=0.1"
