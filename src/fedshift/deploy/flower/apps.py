"""The ServerApp and the ClientApp of a deployment.

At the server the bundle of ``deploy.flower.control`` imports ``server``; at a site
``deploy.flower.tasks`` uses ``client``, whatever the server has sent. A site reads its id, its data
and its state from its own folder: nothing in a message may name another one.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedshift.base.errors import FedshiftError, RunError
from fedshift.base.logs import log
from fedshift.core.config import RunConfig
from fedshift.core.message import Broadcast, Update
from fedshift.core.state import DiskStore
from fedshift.data.federation import Federation
from fedshift.data.sources.tables import agreement
from fedshift.deploy import models, tables
from fedshift.deploy.folders import SitePaths, read_site
from fedshift.deploy.policy import Guard, read_policy
from fedshift.deploy.runs import Request
from fedshift.deploy.session import COMPUTE, play_request
from fedshift.deploy.sites import Facts, facts_of, is_unprepared, own_federation, own_preparation
from fedshift.engine.attacks import refuse_attack
from fedshift.engine.build import allowed_data, build_net
from fedshift.engine.preflight import check_data
from fedshift.engine.visit import Worker
from fedshift.transports.flower.envelope import Envelope, from_envelope
from fedshift.transports.flower.grid import FlowerGrid, client_app, respond
from fedshift.transports.flower.site import Header, NodeConfig


@dataclass
class SiteWorker(Worker):
    """A worker of this site, whose state is on this site's disk and nowhere else.

    ``guard`` holds the site's policy: what it forbids is neither computed nor sent.
    """

    guard: Guard | None = None

    def visit(self, message: Broadcast) -> Update:
        """As any worker, within the site's policy; errors are also written to the site's log."""
        try:
            if self.guard is not None:
                self.guard.before(message)
            if isinstance(self.store, DiskStore):
                follow(self.store.folder, message)
                if message.task == "enrol":
                    models.forget(paths(), self.store.folder.name)
            update = super().visit(message)
            return update if self.guard is None else self.guard.after(message, update)
        except FedshiftError as error:
            _tell(error)
            raise


def follow(folder: Path, message: Broadcast) -> None:
    """Check that this site's state fits the message.

    An enrolment begins a run and deletes the state of earlier attempts. Any later message needs the
    state of that enrolment, and the site must not be ahead of the server, as it would be if the
    server alone was restored from a backup.
    """
    mark = folder / "enrolled"
    if message.task == "enrol":
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        mark.touch()
        return
    if not mark.exists():
        raise RunError(
            f"client {message.client} has lost its state of this run; restore {folder} from a "
            "backup, or begin a new run with another seed"
        )
    ahead = max((int(p.stem) for p in folder.rglob("*.safetensors")), default=0)
    # Scoring of a round is piggybacked on the next round's training. If that round was lost and
    # is repeated, the site has trained it already and is one round ahead of what it scores.
    asked = message.round + (message.task != "train")
    if ahead > asked:
        raise RunError(
            f"client {message.client} has played round {ahead}, and the server asks for round "
            f"{message.round}; restore both from backups of one time, or begin a new run"
        )


def paths() -> SitePaths:
    """Folder of the site whose daemon started this process."""
    return SitePaths(Path(os.environ["FEDSHIFT_SITE"]))


def whoami(run: RunConfig, node: NodeConfig) -> str:
    """The site's id, from its own settings."""
    del run, node
    return read_site(paths().root).id


def open_worker(run: RunConfig, node: NodeConfig) -> Worker:
    """A worker with this site's data and its state of the run."""
    del node
    here = paths()
    return _worker(run, own_federation(here, run), DiskStore(here.states / run.name))


def _worker(run: RunConfig, own: Federation, store: DiskStore) -> Worker:
    refuse_attack(run.scenario)
    method = run.build()
    return SiteWorker(
        method,
        run.scenario,
        run.seed,
        COMPUTE.move(build_net(run, method, own)),
        own.sites,
        store,
        allowed_data(own, run.scenario, "client"),
        run.label,
        guard=Guard(paths(), run.name, method),
    )


def introduce(header: Header, envelope: Envelope, node: NodeConfig) -> Envelope:
    """Check that the data fit the run, then report the facts by which the server builds the net."""
    del envelope, node
    try:
        run = header.read()
        if is_unprepared(paths(), run):
            return Envelope(Facts(read_site(paths().root).id, (), (), "", True).to_json(), {})
        own = own_federation(paths(), run)
        check_data(own, run.scenario, build_net(run, run.build(), own))
    except FedshiftError as error:
        _tell(error)
        raise
    known = "domain_ids" in run.scenario.allow and read_policy(paths()).tell_domain
    return Envelope(facts_of(own, tell_domain=known).to_json(), {})


def tell_of_table(header: Header, envelope: Envelope, node: NodeConfig) -> Envelope:
    """Describe or count this site's table, or keep the agreed preparation and report the facts."""
    try:
        run, asked = header.read(), json.loads(envelope.text)
        if asked.get("step") == "keep":
            tables.keep(paths(), run, asked["record"])
            return introduce(header, envelope, node)
        return Envelope(agreement.packed(tables.answer(paths(), run, asked)).decode(), {})
    except FedshiftError as error:
        _tell(error)
        raise


def _tell(error: FedshiftError) -> None:
    """Write an error to the site's own log, where whoever can fix it will look."""
    log.error("%s", error)


def keep_selected(run: RunConfig, header: Header) -> None:
    """Keep this site's state of the rounds that are selected so far, before it is replaced."""
    models.keep_states(paths(), run.name, header.selected)


def take_model(header: Header, envelope: Envelope, node: NodeConfig) -> Envelope:
    """Keep the complete model of the selected round at this site."""
    del node
    run, here = header.read(), paths()
    message = models.only_message(from_envelope(envelope, Broadcast), read_site(here.root).id)
    own = own_federation(here, run)
    models.keep_model(here, run, own, message, own_preparation(here, run))
    return Envelope("", {})


client: ClientApp = client_app(open_worker, whoami, keep_selected)
server = ServerApp()


@client.query("facts")
def answer_facts(message: Message, context: Context) -> Message:
    """Answer ``query.facts``: the site reports its classes, shape and counts."""
    return respond(message, context, introduce)


@client.query("table")
def answer_table(message: Message, context: Context) -> Message:
    """Answer ``query.table``: the sites of a run agree on how their tables are prepared."""
    return respond(message, context, tell_of_table)


@client.query("model")
def answer_model(message: Message, context: Context) -> Message:
    """Answer ``query.model``: the site keeps the model that the run reports."""
    return respond(message, context, take_model)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the run whose request file ``fedshift server run`` has written."""
    play_request(Request.read(Path(str(context.run_config["run"]))), FlowerGrid(grid))
