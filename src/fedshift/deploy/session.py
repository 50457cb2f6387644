"""A run at a server that holds no data: it learns classes, shape and domains from the sites."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from fedshift.base.errors import ConfigError, DataError, RunError
from fedshift.base.files import only_writer, write_json
from fedshift.base.process import one_thread
from fedshift.core.scenario import Scenario
from fedshift.data.dealing.splits import Given
from fedshift.data.federation import Federation, Site, Splits
from fedshift.data.samples import Samples
from fedshift.deploy.runs import Request
from fedshift.deploy.sites import Facts, open_target, with_target
from fedshift.engine.compute import Compute
from fedshift.engine.preflight import check_needs
from fedshift.experiment.listener import LogListener
from fedshift.experiment.session import Options, Session, play, prepare
from fedshift.report.results import RunResult
from fedshift.transports.flower.envelope import Envelope
from fedshift.transports.flower.site import error_from_site
from fedshift.transports.flower.transport import FlowerTransport, MessageGrid, SiteRequest, Timeouts

SITES = Scenario(  # what a run of real sites starts from; every value can be changed
    name="sites",
    data="sites",
    domains=("sites",),
    split=Given(),
    protocols=("personal",),
)
COMPUTE = Compute()  # the same on every machine, so that bits agree
POLL = 0.3  # seconds between two looks for replies: each asks the database


def deployed(scenario: Scenario, target: str | None = None) -> Scenario:
    """The scenario as far as it can be played where the server holds no data but a ``target``.

    Sites are scored on their own test samples, and nobody is scored on the target.
    """
    played = scenario.change(protocols=("personal",), analyses=(), private_at_new_site="refuse")
    return with_target(played, target)


class RegisteredSites(FlowerTransport):
    """Mail to sites that are known by their keys; each introduces itself once."""

    def __init__(self, grid: MessageGrid, request: Request) -> None:
        policy = request.policy
        patience = Timeouts(request.connect, policy.timeout, POLL)
        super().__init__(grid, request.config, patience=patience, policy=policy)
        self.registered = {node: site for site, node in request.nodes.items()}
        self.facts: dict[str, Facts] = {}

    def _meet(self) -> None:
        present = self.grid.nodes() & self.registered.keys()
        self._known = {node: self.registered[node] for node in present}
        strangers = {self.registered[n]: n for n in present if self.registered[n] not in self.facts}
        requests = {
            site: SiteRequest(node, "query.facts", self.header, Envelope("", {}))
            for site, node in strangers.items()
        }
        for site, reply in self._exchange(requests) if requests else ():
            if reply.envelope is None:
                raise error_from_site(site, reply.failure)
            told = Facts.from_json(reply.envelope.words)
            if told.client != site:
                raise ConfigError(
                    f"the site that is registered as {site!r} calls itself {told.client!r}; set "
                    f"id in its site.toml, or register it again"
                )
            self.facts[site] = told


def play_request(request: Request, grid: MessageGrid) -> RunResult:
    """Play a run from its last finished round to its end."""
    with one_thread(), only_writer(request.path):
        return play(open_session(request, grid))


def open_session(request: Request, grid: MessageGrid) -> Session:
    """Meet the sites, check that they fit together, and take up the last checkpoint."""
    config, method = request.config, request.config.build()
    check_needs(method, config.scenario, len(request.nodes))  # before anybody is waited for
    transport = RegisteredSites(grid, request)
    transport.find(request.nodes)
    if missing := sorted(request.nodes.keys() - transport.facts.keys()):
        raise RunError(
            f"site {missing[0]} is not online, and a run begins with all its sites; start it, or "
            "name the others",
            "site=ID",
        )
    federation = federation_of(list(transport.facts.values()), config.scenario)
    if request.target is not None:
        unseen = open_target(request.target, config, federation.shape)
        federation = replace(federation, unseen=unseen)
    learnt = {"classes": list(federation.classes), "shape": list(federation.shape)}
    write_json(request.expects, learnt)
    options = Options(
        transport=lambda _plan: transport,
        listener=LogListener(),
        policy=request.policy,
        compute=COMPUTE,
    )
    session = prepare(config, method, request.path, options, federation)
    require_roster(session.server.roster, federation.sites)
    return session


def require_roster(enrolled: Iterable[str], present: Iterable[str]) -> None:
    """A run goes on with the sites that it began with."""
    if odd := set(enrolled) ^ set(present):
        names = ", ".join(sorted(odd))
        raise RunError(
            f"the run began with other sites; {names} joined or left since; name its sites, or "
            "begin a new run in another folder",
            "site=ID",
            "out=DIR",
        )


def federation_of(facts: Sequence[Facts], scenario: Scenario) -> Federation:
    """What the server knows of the sites: names and sizes, no data."""
    require_equal(facts, "classes", "name its class folders as the others do, or set classes")
    require_equal(facts, "shape", "set size")
    order = {name: i for i, name in enumerate(scenario.domains)}
    ordered = sorted(facts, key=lambda f: (order.get(f.domain, len(order)), f.domain, f.client))
    nothing = Samples(torch.empty(0), torch.empty(0), torch.empty(0, dtype=torch.long))
    empty = Splits(nothing, nothing, nothing)
    return Federation(
        {f.client: Site(f.client, f.domain, empty) for f in ordered},
        {},
        None,
        facts[0].classes,
        facts[0].shape,
    )


def require_equal(facts: Sequence[Facts], field: str, remedy: str) -> None:
    """Name the site that differs from most."""
    values = {f.client: getattr(f, field) for f in sorted(facts, key=lambda f: f.client)}
    usual, _ = Counter(values.values()).most_common(1)[0]
    for client, value in values.items():
        if value != usual:
            raise DataError(
                f"site {client} has {field} {_words(value)}, the others {_words(usual)}; {remedy} "
                f"in the site.toml of {client}"
            )


def _words(values: Iterable[object]) -> str:
    return json.dumps([*values]) if values else "none"
