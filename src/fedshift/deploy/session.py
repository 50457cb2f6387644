"""A run at a server that holds no data: it learns classes, shape and domains from the sites.

The ServerApp (``deploy.flower.apps``) calls :func:`play_request`, which opens an ordinary session
over the registered sites and runs the one federated loop. A node counts as the site whose key it
is registered with, never as the one that it claims to be, and training must not start before all
sites are found to fit together.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedshift.base.errors import ConfigError, DataError, FedshiftError, RunError
from fedshift.base.files import write_json
from fedshift.base.locks import only_writer
from fedshift.base.process import one_thread
from fedshift.core.message import Broadcast, Lost, Update
from fedshift.core.scenario import Scenario
from fedshift.data.dealing.splits import Given
from fedshift.data.federation import Federation, Site, Splits
from fedshift.data.samples import Samples
from fedshift.deploy import tables
from fedshift.deploy.models import final_messages, tell_missed
from fedshift.deploy.runs import Request
from fedshift.deploy.sites import Facts, open_target, with_target
from fedshift.engine.compute import Compute
from fedshift.engine.preflight import check_needs
from fedshift.experiment.listener import LogListener
from fedshift.experiment.session import Options, Session, note_preparation, play, prepare
from fedshift.report.results import RunResult
from fedshift.runs.summary import selected_rounds
from fedshift.transports.flower.envelope import Envelope, to_envelope
from fedshift.transports.flower.site import error_from_site
from fedshift.transports.flower.transport import FlowerTransport, MessageGrid, SiteRequest, Timeouts

SITES = Scenario(  # default of ``server run``; every value can be changed
    name="sites",
    data="sites",
    domains=("sites",),
    split=Given(),
    protocols=("personal",),
)
COMPUTE = Compute()  # the same on every machine, so that results agree bit for bit
MAX_WEIGHT = 0.8  # of one site: beyond it, it would have more than four times all others' data
POLL = 0.3  # seconds between two questions for replies: each is a query to the database


def deployed(scenario: Scenario, target: str | None = None) -> Scenario:
    """The scenario, less what needs data at the server other than those of a ``target``.

    Sites are scored on their own test samples, and nobody is scored on the target. Confusion
    matrices would tell the server how the classes of a site are distributed. No site's weight
    follows its own word beyond ``max_weight``.
    """
    played = scenario.change(
        protocols=("personal",),
        analyses=(),
        private_at_new_site="refuse",
        confusion=False,
        max_weight=scenario.max_weight or MAX_WEIGHT,
    )
    return with_target(played, target)


class RegisteredSites(FlowerTransport):
    """The transport to sites that are known by their keys.

    The SuperLink has checked each node's key, so the request's table of nodes says which site it
    is. A site is asked once for its :class:`Facts`; a site that reconnects is not asked again.
    """

    def __init__(self, grid: MessageGrid, request: Request) -> None:
        policy = request.policy
        timeouts = Timeouts(request.connect, policy.timeout, POLL)
        super().__init__(grid, request.config, timeouts=timeouts, policy=policy)
        self.registered = {node: site for site, node in request.nodes.items()}
        self.facts: dict[str, Facts] = {}
        self.selected: Callable[[], Iterable[int]] = tuple  # rounds selected so far

    def deliver(self, messages: Sequence[Broadcast]) -> Iterator[Update | Lost]:
        """As any transport; each request says which rounds the sites have to keep."""
        self.header = replace(self.header, selected=tuple(sorted(set(self.selected()))))
        return super().deliver(messages)

    def ask(self, kind: str, sites: Iterable[str], text: str) -> dict[str, str]:
        """The same question to several sites, all of which must answer; the texts by site."""
        nodes = self.find(sites)
        requests = {
            site: SiteRequest(nodes[site], kind, self.header, Envelope(text, {})) for site in sites
        }
        out = {}
        for site, reply in self._exchange(requests):
            if reply.envelope is None:
                raise error_from_site(site, reply.failure)
            out[site] = reply.envelope.text
        return dict(sorted(out.items()))

    def prepare_tables(self, path: Path) -> dict[str, Any]:
        """Let sites with raw tables agree on a preparation, or take that of the run; then facts."""
        raw = sorted(site for site, told in self.facts.items() if told.unprepared)
        record = tables.stored(path)
        if record is None and raw:
            if other := sorted(self.facts.keys() - set(raw)):
                raise ConfigError(
                    f"site {raw[0]} has a table without a preparation, and {other[0]} is prepared "
                    "already; let all sites name one preparation.json, or none of them"
                )
            run = self.header.read()
            record = tables.agree(
                lambda asked: self.ask("query.table", raw, json.dumps(asked)), run
            )
        if raw:
            asked = json.dumps({"step": "keep", "record": record})
            told = self.ask("query.table", raw, asked)
            self.facts |= {site: Facts.from_json(text) for site, text in told.items()}
        return {"table": record} if record else {}

    def hand_over(self, messages: Mapping[str, Broadcast]) -> None:
        """Send each site the selected model; a site that is away does without, and is named."""
        try:
            nodes = self.find(messages)
        except FedshiftError as error:
            tell_missed(dict.fromkeys(messages, error))
            return
        packed: dict[int, bytes] = {}
        requests = {
            site: SiteRequest(nodes[site], "query.model", self.header, to_envelope([one], packed))
            for site, one in messages.items()
            if site in nodes
        }
        replies = dict(self._exchange(requests))
        failed = {s: r.failure for s, r in replies.items() if r.envelope is None}
        away = dict.fromkeys(messages.keys() - nodes.keys(), "it is not connected")
        tell_missed(failed | away)

    def _identify_nodes(self) -> None:
        """Take the registered nodes that are connected; ask new ones for their facts."""
        present = self.grid.nodes() & self.registered.keys()
        self._known = {node: self.registered[node] for node in present}
        new_nodes = {self.registered[n]: n for n in present if self.registered[n] not in self.facts}
        requests = {
            site: SiteRequest(node, "query.facts", self.header, Envelope("", {}))
            for site, node in new_nodes.items()
        }
        for site, reply in self._exchange(requests) if requests else ():
            if reply.envelope is None:
                raise error_from_site(site, reply.failure)
            reported = Facts.from_json(reply.envelope.text)
            if reported.client != site:
                raise ConfigError(
                    f"the site that is registered as {site!r} calls itself {reported.client!r}; "
                    "set id in its site.toml, or register it again"
                )
            self.facts[site] = reported


def play_request(request: Request, grid: MessageGrid) -> RunResult:
    """Carry out a run, from its last finished round to its end."""
    with one_thread(), only_writer(request.path):
        session = open_session(request, grid)
        result = play(session)
        if isinstance(session.transport, RegisteredSites):
            (round_,) = set(session.transport.selected())  # deployments have one protocol
            session.transport.hand_over(
                final_messages(request.path, round_, session.server.roster.keys())
            )
        return result


def open_session(request: Request, grid: MessageGrid) -> Session:
    """Wait for the sites, check that they fit together, and load the last checkpoint."""
    config, method = request.config, request.config.build()
    check_needs(method, config.scenario, len(request.nodes))  # before waiting for any site
    transport = RegisteredSites(grid, request)
    transport.find(request.nodes)
    if missing := sorted(request.nodes.keys() - transport.facts.keys()):
        raise RunError(
            f"site {missing[0]} is not online, and a run begins with all its sites; start it, or "
            "name the others",
            "site=ID",
        )
    prepared = transport.prepare_tables(request.path)
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
    transport.selected = lambda: selected_rounds(config, session.record.metrics).values()
    require_roster(session.server.roster, federation.sites)
    note_preparation(session.record, prepared, method)
    for site, told in sorted(transport.facts.items()):
        session.record.note_facts(session.server.round, site, told.to_json())
    return session


def require_roster(enrolled: Iterable[str], present: Iterable[str]) -> None:
    """Refuse to continue a run with other sites than it began with."""
    if odd := set(enrolled) ^ set(present):
        names = ", ".join(sorted(odd))
        raise RunError(
            f"the run began with other sites; {names} joined or left since; name its sites, or "
            "begin a new run in another folder",
            "site=ID",
            "out=DIR",
        )


def federation_of(facts: Sequence[Facts], scenario: Scenario) -> Federation:
    """The federation as the server knows it: sites with their domains, and no samples.

    A site that does not tell its domain counts as one of its own.
    """
    facts = [replace(f, domain=f.domain or f.client) for f in facts]
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
    """Raise an error that names the first site that differs from the majority."""
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
