"""From a configuration to the objects that train: the net, and a worker that visits sites.

Sessions, transports and deployed sites build both through here. The net must come out with the same
weights wherever it is built, since server, worker processes and remote sites each build their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fedshift.base import seeds
from fedshift.base.errors import UnknownNameError
from fedshift.core.config import RunConfig
from fedshift.core.method import Method
from fedshift.core.net import Net, Scope, by_scope, fix
from fedshift.core.registry import BACKBONES
from fedshift.core.resource import Side, granted
from fedshift.core.scenario import Scenario
from fedshift.core.server import Policy
from fedshift.core.state import StateStore
from fedshift.data.federation import Federation
from fedshift.data.samples import Samples
from fedshift.engine.compute import Compute
from fedshift.engine.visit import Worker


@dataclass(frozen=True)
class Plan:
    """Everything a transport needs to create workers, in this process or in others."""

    config: RunConfig
    method: Method
    federation: Federation
    store: StateStore
    workers: int = 1
    policy: Policy = field(default_factory=Policy)  # not every transport can enforce its timeout
    compute: Compute = field(default_factory=Compute)  # with every auto resolved

    def worker(self, net: Net | None = None) -> Worker:
        """A worker for this process, around ``net`` or a net of its own."""
        scenario, compute = self.config.scenario, self.compute
        federation = self.federation.to(compute.device)
        net = compute.move(net or build_net(self.config, self.method, federation))
        if compute.compile:
            net.compile()
        return Worker(
            self.method,
            scenario,
            self.config.seed,
            net,
            federation.sites,
            self.store,
            allowed_data(federation, scenario, "client"),
            self.config.label,
        )


def build_net(config: RunConfig, method: Method, federation: Federation) -> Net:
    """The backbone, extended by the method's parts; the same weights in every process.

    Initialisation and each part's ``build`` draw from generators seeded by name, so adding a part
    does not change the initial weights of the backbone or of the other parts.
    """
    scenario = config.scenario
    backbone = BACKBONES.get(scenario.backbone)
    for option in scenario.backbone_options:
        if option not in backbone.options:
            raise UnknownNameError.of(
                f"option of backbone {backbone.name!r}", option, backbone.options
            )
    classes = len(federation.classes)
    with seeds.fork(config.seed, "init"):
        net = backbone.build(federation.shape, classes, **scenario.backbone_options)
    for part in method.parts:
        with seeds.fork(config.seed, "build", part.name):
            part.build(net)
    fix(net, by_scope(method.scopes(net))[Scope.FIXED])
    return net


def allowed_data(federation: Federation, scenario: Scenario, side: Side) -> dict[str, Samples]:
    """Extra data that the scenario allows the server or the clients to use, by resource.

    These are unlabelled inputs of the unseen domain, a public data set, and whatever is registered.
    """
    opened = {r.name: r.open(federation, scenario, side) for r in granted(scenario)}
    return {name: samples for name, samples in opened.items() if samples is not None}
