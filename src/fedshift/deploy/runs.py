"""What ``fedshift server run`` asks of the app on the same machine, as a file between them."""

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
from fedshift.engine.preflight import require_secret
from fedshift.experiment.listener import Listener
from fedshift.experiment.run import finished
from fedshift.report.load import load_run
from fedshift.report.results import RunResult
from fedshift.runs.record import read_lines


class Request(Frozen):
    """One run over registered sites."""

    config: RunConfig
    path: Path  # the run directory
    expects: Path  # where classes and shape are noted
    nodes: dict[str, int]  # Flower's number of each site: its key proves it, its word does not
    connect: float = 120.0  # seconds for a site to come up
    target: str | None = None  # a folder of unlabelled images here, or "scenario"
    policy: Policy = Policy()  # what to do without a site's answer

    def write(self, path: Path) -> None:
        """For the app to read."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, self.model_dump_json().encode())

    @classmethod
    def read(cls, path: Path) -> Request:
        """Inverse of :meth:`write`."""
        try:
            return cls.model_validate(read_json(path))
        except ValueError as error:
            raise RunError(f"{path} is not a request of this version: {error}") from None


POLL = 1.0  # seconds


@dataclass(frozen=True)
class Terms:
    """With whom, and how long to wait for them."""

    sites: Sequence[str] = ()  # empty: all that are registered
    connect: float = 120.0  # seconds for a site to come up
    policy: Policy = field(default_factory=Policy)  # what to do without a site's answer
    target: str | None = None  # unlabelled images at the server: a folder, or "scenario"


def register(control: Control, key: PublicKey) -> bool:
    """Let a site in; False if it was in already."""
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
    """The nodes of the wanted sites."""
    if not nodes:
        raise ConfigError("no site is registered; run `fedshift server register DIR SITE.pub`")
    for site in sites:
        if site not in nodes:
            raise UnknownNameError.of("registered site", site, nodes)
    return {site: nodes[site].id for site in sorted(sites or nodes)}


def run(
    control: Control, config: RunConfig, path: Path, terms: Terms, listener: Listener
) -> RunResult:
    """Play a run to its end, or go on with it, or join the one that is under way."""
    method = config.build()
    require_secret(method)
    require_target(method, terms.target)
    if done := finished(config, path, resume=True):
        return done
    ticket, told = Ticket(control.paths, path), len(rows_of(path))
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
    watch(control, number, path, listener, told)
    result = load_run(path)
    listener.finished(result)
    return result


@dataclass(frozen=True)
class Ticket:
    """Flower's number of a run, so that a second ``server run`` joins the first."""

    paths: ServerPaths
    path: Path

    @property
    def request(self) -> Path:
        """What the app reads."""
        return self.paths.flower / "requests" / f"{self.path.name}.json"

    @property
    def number(self) -> Path:
        """Where the number is noted."""
        return self.request.with_suffix(".run")

    def note(self, number: int) -> None:
        """Keep the number, and under which start of the server it holds."""
        content = {"run": number, "start": self._start()}
        write_private(self.number, json.dumps(content).encode())

    def under_way(self, control: Control) -> int | None:
        """The number, if that run goes on; one that died with its server is ended at once.

        Flower would call it running until it misses its heartbeats, a minute later.
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
        """Changes whenever the server starts."""
        return self.paths.secret.stat().st_mtime_ns


def watch(control: Control, number: int, path: Path, listener: Listener, told: int) -> None:
    """Tell of rounds beyond those already told, as they come on disk, until the run ends."""
    while True:
        state, details = control.state(number)
        rows = rows_of(path)
        for row in rows[told:]:
            listener.round_done(row)
        told = max(told, len(rows))
        if state == "finished":
            break
        time.sleep(POLL)
    if details:
        raise RunError(f"{plain(details)}{going_on(path)}")


def rows_of(path: Path) -> list[dict[str, object]]:
    """Rounds on disk."""
    return read_lines(path / "metrics.jsonl")


def plain(details: str) -> str:
    """Our own words of what Flower tells."""
    return details.removeprefix("ServerApp failed with exception: ").rstrip(".")


def going_on(path: Path) -> str:
    """What the same command will do."""
    last = last_round(path)
    return f"; the same command goes on after round {last}" if last else ""


def last_round(path: Path) -> int:
    """The round of the server's checkpoint: what a run goes on from."""
    file = path / "checkpoints" / "server.safetensors"
    return int(read_tensors(file)[1]["round"]) if file.exists() else 0
