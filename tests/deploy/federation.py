"""A server and its sites as real processes on loopback, for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from fedshift.base.tensor_files import read_tensors
from fedshift.core.config import RunConfig, configure
from fedshift.core.server import Policy
from fedshift.data.dealing.partitions import PerDomain
from fedshift.deploy import credentials, setup
from fedshift.deploy.flower.control import Control
from fedshift.deploy.flower.daemons import free_port, listens
from fedshift.deploy.folders import ServerPaths, ServerSettings, SitePaths, SiteSettings
from fedshift.deploy.runs import Terms, register, run
from fedshift.deploy.session import COMPUTE, deployed
from fedshift.experiment.listener import Listener
from fedshift.experiment.run import execute
from fedshift.experiment.session import Options
from fedshift.report.results import RunResult
from fedshift.testing import tiny_scenario

HERE = Path(__file__).parent
SITES = ("dark-0", "bright-0")


@dataclass
class Deployment:
    """Folders and daemons; ``close`` ends every process that was started."""

    root: Path
    port: int = field(default_factory=free_port)
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def server(self) -> ServerPaths:
        return ServerPaths(self.root / "server")

    def site(self, name: str) -> SitePaths:
        return SitePaths(self.root / name)

    def init(self, *sites: str) -> None:
        settings = ServerSettings(host="127.0.0.1", port=self.port, bind="127.0.0.1")
        setup.init_server(self.server.root, settings, 30)
        for name in sites:
            self.init_site(name)

    def init_site(self, name: str, **changes: object) -> SitePaths:
        given = {"id": name, "server": f"127.0.0.1:{self.port}", "trial": True} | changes
        return setup.init_site(self.root / name, SiteSettings(**given), self.server.ca)

    def start(self, kind: str, name: str) -> None:
        """In the background; what it says goes to NAME.log."""
        with (self.root / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                [sys.executable, "-m", "fedshift", kind, "start", str(self.root / name)],
                env=os.environ | {"FEDSHIFT_PLUGINS": str(HERE / "plugin.py")},
                stdout=log,
                stderr=log,
            )

    def start_server(self) -> None:
        self.start("server", "server")
        self.wait(lambda: listens("127.0.0.1", self.port), "the server listens")

    def register(self, *sites: str) -> None:
        with Control(self.server) as control:
            for name in sites:
                register(control, credentials.read_public(self.site(name).public_key(name)))

    def online(self) -> set[str]:
        with Control(self.server) as control:
            return {name for name, node in control.nodes().items() if node.status == "online"}

    def start_sites(self, *sites: str) -> None:
        for name in sites:
            self.start("site", name)
        self.wait(lambda: set(sites) <= self.online(), f"{sites} are online")

    def run(
        self, config: RunConfig, listener: Listener | None = None, policy: Policy | None = None
    ) -> RunResult:
        target = "scenario" if config.scenario.unseen else None
        terms = Terms(connect=150, policy=policy or Policy(), target=target)
        with Control(self.server) as control:
            path = self.server.runs / config.name
            return run(control, config, path, terms, listener or Listener())

    def wait(self, until, what: str, seconds: float = 150) -> None:
        end = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < end, f"{what}: not within {seconds} s\n{self.logs()}"
            time.sleep(0.2)

    def logs(self) -> str:
        return "\n".join(f"== {p.name}\n{p.read_text()[-3000:]}" for p in self.root.glob("*.log"))

    def kill(self, name: str, part: str) -> None:
        """``kill -9`` of one of a daemon's processes; the others end with it."""
        for child in children(self.daemons[name].pid):
            if part in command(child):
                os.kill(child, signal.SIGKILL)
                self.daemons[name].wait(60)
                return
        raise AssertionError(f"{name} has no process {part}")

    def close(self) -> None:
        for process in self.daemons.values():
            if process.poll() is None:
                process.terminate()
        for process in self.daemons.values():
            process.wait(60)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def descendants(pid: int) -> list[int]:
    return [pid, *(d for child in children(pid) for d in descendants(child))]


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except FileNotFoundError:
        return ""


def configured(method: str, *, target: str | None = None, **changes: object) -> RunConfig:
    given = {"partition": PerDomain(clients_per_domain=1), "rounds": 2}
    scenario = deployed(tiny_scenario(**(given | changes)), target)
    return configure(method, scenario)[0]


def in_process(config: RunConfig, path: Path) -> RunResult:
    return execute(config, config.build(), path, Options(compute=COMPUTE))


def tensors(path: Path) -> dict[str, list[float]]:
    return {name: value.tolist() for name, value in read_tensors(path)[0].items()}


def states(folder: Path) -> dict[str, dict[str, list[float]]]:
    files = sorted(folder.rglob("*.safetensors")) if folder.exists() else []
    return {str(p.relative_to(folder)): tensors(p) for p in files}
