"""The two apps that Flower runs: they import fedshift and nothing else."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import typer
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedshift.base.errors import FedshiftError, RunError
from fedshift.core.config import RunConfig
from fedshift.core.message import Broadcast, Update
from fedshift.core.state import DiskStore
from fedshift.data.federation import Federation
from fedshift.deploy.folders import SitePlace, read_site
from fedshift.deploy.runs import Request
from fedshift.deploy.session import COMPUTE, play_request
from fedshift.deploy.sites import facts_of, own_federation
from fedshift.engine.build import build_net, granted
from fedshift.engine.preflight import check_data
from fedshift.engine.visit import Worker
from fedshift.transports.flower.envelope import Envelope
from fedshift.transports.flower.grid import GridPost, client_app, respond
from fedshift.transports.flower.site import Header, Node


@dataclass
class SiteWorker(Worker):
    """Plays this site's visits; its state is on this site's disk, and nowhere else."""

    def visit(self, mail: Broadcast) -> Update:
        """As any worker; an error is told here, too."""
        try:
            if isinstance(self.store, DiskStore):
                follow(self.store.folder, mail)
            return super().visit(mail)
        except FedshiftError as error:
            _tell(error)
            raise


def follow(folder: Path, mail: Broadcast) -> None:
    """An enrolment begins a run and forgets earlier tries; later, the state must fit the round."""
    mark = folder / "enrolled"
    if mail.task == "enrol":
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        mark.touch()
        return
    if not mark.exists():
        raise RunError(
            f"client {mail.client} has lost its state of this run; restore {folder} from a backup, "
            "or begin a new run with another --seed"
        )
    ahead = max((int(p.stem) for p in folder.rglob("*.safetensors")), default=0)
    asked = mail.round + (mail.task != "train")  # scoring may ride with a lost round played again
    if ahead > asked:
        raise RunError(
            f"client {mail.client} has played round {ahead}, and the server asks for round "
            f"{mail.round}; restore both from backups of one time, or begin a new run"
        )


def place() -> SitePlace:
    """The folder of the site whose daemon started this process."""
    return SitePlace(Path(os.environ["FEDSHIFT_SITE"]))


def whoami(run: RunConfig, node: Node) -> str:
    """The site's id, from its own settings."""
    del run, node
    return read_site(place().root).id


def open_worker(run: RunConfig, node: Node) -> Worker:
    """A worker around this site's data and state."""
    del node
    here = place()
    return _worker(run, own_federation(here, run), DiskStore(here.states / run.name))


def _worker(run: RunConfig, own: Federation, store: DiskStore) -> Worker:
    method = run.build()
    return SiteWorker(
        method,
        run.scenario,
        run.seed,
        COMPUTE.place(build_net(run, method, own)),
        own.sites,
        store,
        granted(own, run.scenario, "client"),
        run.label,
    )


def introduce(header: Header, envelope: Envelope, node: Node) -> Envelope:
    """Tell the server what it must know to build the net, once the data are found to fit."""
    del envelope, node
    try:
        run = header.read()
        own = own_federation(place(), run)
        check_data(own, run.scenario, build_net(run, run.build(), own))
    except FedshiftError as error:
        _tell(error)
        raise
    return Envelope(facts_of(own).to_json(), {})


def _tell(error: FedshiftError) -> None:
    """In the site's own log, for who can mend it."""
    typer.echo(f"error: {' '.join(str(error).split())}", err=True)


client: ClientApp = client_app(open_worker, whoami)


server = ServerApp()


@client.query("facts")
def answer_facts(message: Message, context: Context) -> Message:
    """A site introduces itself."""
    return respond(message, context, introduce)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Play the run that ``fedshift server run`` has asked for."""
    play_request(Request.read(Path(str(context.run_config["run"]))), GridPost(grid))
