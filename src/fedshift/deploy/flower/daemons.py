"""The daemons of a server or of a site: what each is told, and that all of them run or none does.

``fedshift server start`` and ``fedshift site start`` call ``start_server`` and ``start_site``. The
daemons are Flower's, with no telemetry, no update check, and nothing installed behind our back;
secrets and keys reach them by path, never on a command line.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType

from fedshift.base.errors import ConfigError, RunError
from fedshift.deploy import checks, folders
from fedshift.deploy.credentials import WARNING_DAYS
from fedshift.deploy.folders import (
    Paths,
    ServerPaths,
    ServerSettings,
    SitePaths,
    read_server,
    read_site,
)
from fedshift.transports.flower.quiet import ENVIRONMENT

POLL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5", "PYTHONUNBUFFERED": "1"}


def environment(paths: Paths) -> dict[str, str]:
    """The environment of a daemon and of everything it starts."""
    own = {"FLWR_HOME": str(paths.flower)}
    if not os.environ.get("FEDSHIFT_HOME"):
        own["FEDSHIFT_HOME"] = str(paths.cache)
    return {**os.environ, **ENVIRONMENT, **POLL, **own}


def require_flower() -> str:
    """Version of Flower, or how to get it."""
    try:
        return version("flwr")
    except PackageNotFoundError:
        raise ConfigError(
            "deployment needs Flower, which is not installed; pip install 'fedshift[flower]'"
        ) from None


PR_SET_PDEATHSIG = 1  # of Linux's prctl.h
GRACE = 10.0  # seconds that a daemon has to end


def supervise(
    commands: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    ready: Callable[[], bool],
) -> None:
    """Run the commands until a signal comes; if one ends by itself, end the others and say so.

    ``ready`` is asked until it says yes.
    """
    stopping: list[int] = []
    waiting = True

    def stop(number: int, _frame: FrameType | None) -> None:
        stopping.append(number)

    before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            running[name] = subprocess.Popen(
                list(command),
                env=dict(environment),
                preexec_fn=follow_parent,  # noqa: PLW1509  no threads here
            )
        while not stopping:
            waiting = waiting and not ready()
            for name, process in running.items():
                if process.poll() is not None:
                    raise RunError(
                        f"the {name} ended (exit code {process.returncode}); its last lines above "
                        "say why; start it again"
                    )
            time.sleep(0.2)
    finally:
        end(list(running.values()))
        for number, handler in before.items():
            signal.signal(number, handler)


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask all to end, last started first, then insist."""
    for process in reversed(processes):
        process.terminate()
    until = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def follow_parent() -> None:
    """In the child: private files, no terminal's Ctrl-C, and the end when the parent ends."""
    os.umask(0o077)
    os.setpgid(0, 0)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def require_free(host: str, port: int, remedy: str) -> None:
    """Say that a port is taken before a daemon fails over it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(f"cannot listen on {host}:{port}: {reason}; {remedy}") from None


def listens(host: str, port: int) -> bool:
    """Whether somebody on this machine answers on a port."""
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


LET_GO = 120.0  # seconds in which the server notices that a killed site is gone
PYTHON = (sys.executable, "-P")  # nothing is imported from the working directory
HERE = Path(__file__).parent
Say = Callable[[str], None]


def start_server(folder: Path, say: Say) -> None:
    """Run the SuperLink and its executor until a signal comes."""
    require_flower()
    paths, settings = ServerPaths(folder.absolute()), read_server(folder)
    left = checks.check_server(paths, settings)
    if left < WARNING_DAYS:
        say(f"note: the certificate ends in {left:.0f} days; run `fedshift server renew {folder}`")
    require_free(
        settings.bind,
        settings.port,
        f"stop what uses it, or set another port in {paths.settings} and tell the sites",
    )
    folders.write_private(paths.secret, secrets.token_bytes(32))
    commands = {"SuperLink": superlink(paths, settings), "executor": server_executor(paths)}
    own = environment(paths) | {"FEDSHIFT_SERVER": str(paths.root)}
    line = f"listening on {settings.bind}:{settings.port}, stop with Ctrl-C"
    supervise(commands, own, _said_once((settings.local, settings.port), say, line))


def _said_once(address: tuple[str, int], say: Say, line: str) -> Callable[[], bool]:
    """Say the line when the daemon listens."""

    def ready() -> bool:
        if not listens(*address):
            return False
        say(line)
        return True

    return ready


def superlink(paths: ServerPaths, settings: ServerSettings) -> list[str]:
    """The command; keys go by path."""
    return [
        *(*PYTHON, "-m", "fedshift.deploy.flower.superlink"),
        *("--host", settings.bind, "--port", str(settings.port)),
        *("--ssl-ca-certfile", str(paths.ca), "--ssl-certfile", str(paths.certificate)),
        *("--ssl-keyfile", str(paths.key), "--database", str(paths.database)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(paths.secret)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]


def server_executor(paths: ServerPaths) -> list[str]:
    """The command; the SuperLink is on this machine, under a name that its certificate has."""
    address = read_server(paths.root).local_address
    return [
        *(*PYTHON, str(HERE / "executor.py")),
        *("--runtime-api-address", address, "--root-certificates", str(paths.ca)),
        *("--superexec-auth-secret-file", str(paths.secret)),
    ]


def start_site(folder: Path, say: Say) -> None:
    """Run the SuperNode and its executor until a signal comes."""
    require_flower()
    paths, settings = SitePaths(folder.absolute()), read_site(folder)
    for line in checks.check_site(paths):
        say(line)
    wait_for_release(paths, say)
    folders.write_private(paths.secret, secrets.token_bytes(32))
    port = free_port()
    commands = {
        "SuperNode": supernode(paths, settings.server, port),
        "executor": site_executor(paths, port),
    }
    own = environment(paths) | {"FEDSHIFT_SITE": str(paths.root)}
    line = f"site {settings.id} serves {settings.server}, stop with Ctrl-C"
    supervise(commands, own, _said_once(("127.0.0.1", port), say, line))


def supernode(paths: SitePaths, server: str, port: int) -> list[str]:
    """The command; the key goes by path."""
    return [
        *(*PYTHON, str(HERE / "supernode.py")),
        *("--superlink", server, "--root-certificates", str(paths.ca)),
        *("--auth-supernode-private-key", str(paths.key)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(paths.secret)),
    ]


def site_executor(paths: SitePaths, port: int) -> list[str]:
    """The command; between two processes of this machine there is no TLS, but a secret."""
    return [
        *(*PYTHON, str(HERE / "executor.py")),
        *("--runtime-api-address", f"127.0.0.1:{port}", "--insecure"),
        *("--superexec-auth-secret-file", str(paths.secret)),
    ]


def wait_for_release(paths: SitePaths, say: Say) -> None:
    """Wait while the server still holds the connection of a process that was killed."""
    host, port = read_site(paths.root).address
    until = time.monotonic() + LET_GO
    while checks.ask(paths, host, port).status == "online":
        if time.monotonic() > until:
            raise RunError(
                f"the server sees this site online for {LET_GO:.0f} s: another process serves it; "
                "stop that one first"
            )
        if until - time.monotonic() > LET_GO - 1:
            say("the server still holds the last connection of this site; waiting, about a minute")
        time.sleep(2)
