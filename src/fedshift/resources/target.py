"""Unlabelled inputs of the unseen domain, at the server or at every client."""

from __future__ import annotations

from fedshift.core.resource import Resource, Side, register_resource
from fedshift.core.scenario import Scenario
from fedshift.data.federation import Federation
from fedshift.data.samples import Samples


class Target(Resource):
    """The unseen domain's inputs on one side; its labels stay hidden."""

    side: Side

    def missing(self, scenario: Scenario) -> tuple[str, str] | None:
        """A domain that no client holds."""
        if scenario.unseen is not None:
            return None
        return "name a target domain with unseen='DOMAIN'", "scenario.unseen=DOMAIN"

    def open(self, federation: Federation, scenario: Scenario, side: Side) -> Samples | None:  # noqa: ARG002
        """The inputs to adapt to; none where the data lie at other machines."""
        known = side == self.side and federation.unseen is not None
        return federation.unseen.inputs if known and federation.unseen else None


@register_resource("server_unlabelled")
class AtServer(Target):
    """For methods that train at the server (FedKA)."""

    doc = "unlabelled inputs of the target at the server"
    side = "server"


@register_resource("client_target_unlabelled")
class AtClients(Target):
    """For methods whose clients see target inputs (FedKA with ``target_at=clients``)."""

    doc = "unlabelled inputs of the target at the clients"
    side = "client"
