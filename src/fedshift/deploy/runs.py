"""``fedshift server run``: start a run on the SuperLink of this machine, or join it, and watch it.

The command does not train. A run is carried out by the ServerApp (``deploy.flower.apps``), a
process of the server's daemon, so it goes on when the command is interrupted. The two share files
only: this module must never write to the run directory, which belongs to the ServerApp.

The request file. The ServerApp has to know the configuration, the policy and the sites, but
Flower's run configuration takes flat scalars only. So the command writes a :class:`Request` as JSON
into the server's folder, readable by its owner alone, and starts a Flower run whose configuration
is the path of that file.

How a second ``server run`` joins the first. A run's name is a hash of its content, so the same
command leads to the same run directory. Beside the request lies the Flower number of the run that
was started for it (:class:`Ticket`). The second command finds that number, asks the SuperLink
whether it is still running, and if so only watches. If the run has finished, its result is shown;
if it has ended early or died with the server, a new Flower run continues from the last checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedshift.base.errors import ConfigError, RunError, UnknownNameError
from fedshift.base.files import read_json
from fedshift.base.tensor_files import read_tensors
from fedshift.core.config import RunConfig
from fedshift.core.scenario import Frozen
from fedshift.core.server import Policy
from fedshift.deploy.credentials import PublicKey
from fedshift.deploy.flower.control import Control, RegisteredSite
from fedshift.deploy.folders import ServerPaths, write_private
from fedshift.deploy.sites import require_target
from fedshift.engine.attacks import refuse_attack
from fedshift.engine.preflight import require_secret
from fedshift.experiment.listener import Listener
from fedshift.experiment.run import finished
from fedshift.report.load import load_run
from fedshift.report.results import RunResult
from fedshift.runs.record import read_lines


class Request(Frozen):
    """One run over registered sites, as ``server run`` passes it to the ServerApp."""

    config: RunConfig
    path: Path  # the run directory
    expects: Path  # file to which classes and shape are written, for the gate
    nodes: dict[str, int]  # Flower's node of each site: proven by its key, not by what it says
    connect: float = 120.0  # seconds for a site to come online
    target: str | None = None  # a folder of unlabelled images at the server, or "scenario"
    policy: Policy = Policy()  # what to do when a site does not answer

    def write(self, path: Path) -> None:
        """Write the file that the ServerApp reads."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, self.model_dump_json().encode())

    @classmethod
    def read(cls, path: Path) -> Request:
        """Inverse of :meth:`write`."""
        try:
            return cls.model_validate(read_json(path))
        except ValueError as error:
            raise RunError(f"{path} is not a request of this version: {error}") from None


POLL = 1.0  # seconds between two questions to the SuperLink


@dataclass(frozen=True)
class Terms:
    """Which sites take part, and how long to wait for them."""

    sites: Sequence[str] = ()  # empty: all that are registered
    connect: float = 120.0  # seconds for a site to come online
    policy: Policy = field(default_factory=Policy)  # what to do when a site does not answer
    target: str | None = None  # unlabelled images at the server: a folder, or "scenario"


def register(control: Control, key: PublicKey) -> bool:
    """Register a site's key; False if it was registered already. An id or key is used once."""
    for node in control.nodes().values():
        if node.site == key.site and node.key == key.pem:
            return False
        if node.site == key.site:
            raise ConfigError(
                f"a site with another key is registered as {key.site!r}; make the new one with "
                f"another id, or run `fedshift server remove {control.paths.root} {key.site}`",
                "id=ID",
            )
        if node.key == key.pem:
            raise ConfigError(
                f"this key is registered as {node.site!r}; make each site a key of its own with "
                "`fedshift site init`"
            )
    control.register(key)
    return True


def chosen(nodes: dict[str, RegisteredSite], sites: Sequence[str]) -> dict[str, int]:
    """Flower's nodes of the wanted sites, by site; of all registered ones if none is named."""
    if not nodes:
        raise ConfigError("no site is registered; run `fedshift server register DIR SITE.pub`")
    for site in sites:
        if site not in nodes:
            raise UnknownNameError.of("registered site", site, nodes)
    return {site: nodes[site].id for site in sorted(sites or nodes)}


def run(
    control: Control, config: RunConfig, path: Path, terms: Terms, listener: Listener
) -> RunResult:
    """Start, continue or join a run, and watch it to its end.

    A finished run is returned at once. Rounds that are on disk already are not reported again.
    """
    method = config.build()
    require_secret(method)
    refuse_attack(config.scenario)
    require_target(method, terms.target)
    if done := finished(config, path, resume=True):
        return done
    ticket, reported = Ticket(control.paths, path), len(rows_of(path))
    number = ticket.under_way(control)
    nodes = chosen(control.nodes(), terms.sites)
    if number is None:
        request = Request(
            config=config,
            path=path.absolute(),
            expects=control.paths.expects,
            nodes=nodes,
            connect=terms.connect,
            policy=terms.policy,
            target=terms.target,
        )
        request.write(ticket.request)
        number = control.start(str(ticket.request))
        ticket.note(number)
    listener.started(config, len(nodes), last_round(path) + 1)
    watch(control, number, path, listener, reported)
    result = load_run(path)
    listener.finished(result)
    return result


@dataclass(frozen=True)
class Ticket:
    """Remembers Flower's number of a run, so that a second ``server run`` joins the first."""

    paths: ServerPaths
    path: Path

    @property
    def request(self) -> Path:
        """Path of the request that the ServerApp reads."""
        return self.paths.flower / "requests" / f"{self.path.name}.json"

    @property
    def number(self) -> Path:
        """Path of the file that holds Flower's number of the run."""
        return self.request.with_suffix(".run")

    def note(self, number: int) -> None:
        """Write down the number, and during which start of the server it was given."""
        content = {"run": number, "start": self._start()}
        write_private(self.number, json.dumps(content).encode())

    def under_way(self, control: Control) -> int | None:
        """The number of the run if it is still running, else None.

        If the server was started again since, the run has died with its process, but Flower would
        call it running until it has missed its heartbeats, a minute later. So it is stopped here,
        and the caller can start anew at once.
        """
        if not self.number.exists():
            return None
        noted = read_json(self.number)
        number = int(noted["run"])
        state, _ = control.state(number)
        if state == "finished":
            return None
        if noted["start"] == self._start():
            return number
        control.stop(number)
        return None

    def _start(self) -> int:
        """A number for each start of the server: when it last wrote its executor's secret."""
        return self.paths.secret.stat().st_mtime_ns


def watch(control: Control, number: int, path: Path, listener: Listener, reported: int) -> None:
    """Report rounds to the listener as they appear on disk, until the run ends.

    ``told`` is how many have been reported already. A run that failed raises its error.
    """
    while True:
        state, details = control.state(number)
        rows = rows_of(path)
        for row in rows[reported:]:
            listener.round_done(row)
        reported = max(reported, len(rows))
        if state == "finished":
            break
        time.sleep(POLL)
    if details:
        raise RunError(f"{plain(details)}{resume_hint(path)}")


def rows_of(path: Path) -> list[dict[str, object]]:
    """The rounds that are on disk."""
    return read_lines(path / "metrics.jsonl")


def plain(details: str) -> str:
    """Our own error message, without the prefix that Flower puts before it."""
    return details.removeprefix("ServerApp failed with exception: ").rstrip(".")


def resume_hint(path: Path) -> str:
    """End of an error message: where the same command would continue."""
    last = last_round(path)
    return f"; the same command goes on after round {last}" if last else ""


def last_round(path: Path) -> int:
    """The round of the server's checkpoint, after which a run continues; 0 without one."""
    file = path / "checkpoints" / "server.safetensors"
    return int(read_tensors(file)[1]["round"]) if file.exists() else 0
