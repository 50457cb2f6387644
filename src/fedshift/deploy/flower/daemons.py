"""Starts the daemons of a server or of a site, and sees to it that all of them run or none.

``fedshift server start`` and ``fedshift site start`` call ``start_server`` and ``start_site``. Each
starts two of Flower's daemons: a SuperLink (server) or SuperNode (site), which exchanges messages,
and an executor, which runs the processes that compute. They have no telemetry, no update check, and
install nothing at run time; keys and secrets must reach them as paths, never on a command line.
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
from pathlib import Path
from types import FrameType

from fedshift.base.errors import ConfigError, RunError
from fedshift.base.extras import require_flower
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


PR_SET_PDEATHSIG = 1  # of Linux's prctl.h
GRACE = 10.0  # seconds for a daemon to end before it is killed


def supervise(
    commands: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    ready: Callable[[], bool],
) -> None:
    """Run the commands until a signal comes; if one ends by itself, end the others and raise.

    ``ready`` is called repeatedly until it returns True.
    """
    stopping: list[int] = []
    waiting = True

    def stop(number: int, _frame: FrameType | None) -> None:
        stopping.append(number)

    before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            running[name] = subprocess.Popen(  # noqa: S603  our own daemons, no shell
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
    """Terminate all processes, last started first; kill those that do not end in time."""
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
    """Prepare a child, before its program starts.

    Its files are private, a Ctrl-C in the terminal reaches the parent alone (which then ends its
    children in order), and on Linux it is terminated when the parent ends, whatever ends that.
    """
    os.umask(0o077)
    os.setpgid(0, 0)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def require_free(host: str, port: int, remedy: str) -> None:
    """Raise an error if nobody could listen on the port, before a daemon fails there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(f"cannot listen on {host}:{port}: {reason}; {remedy}") from None


def listens(host: str, port: int) -> bool:
    """Whether a process listens on a port of this machine."""
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A port of this machine on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


RELEASE_TIMEOUT = 120.0  # seconds within which the server notices that a killed site is gone
PYTHON = (sys.executable, "-P")  # nothing is imported from the working directory
HERE = Path(__file__).parent
Echo = Callable[[str], None]


def start_server(folder: Path, echo: Echo) -> None:
    """Run the SuperLink and its executor until a signal comes."""
    require_flower()
    paths, settings = ServerPaths(folder.absolute()), read_server(folder)
    left = checks.check_server(paths, settings)
    if left < WARNING_DAYS:
        echo(f"note: the certificate ends in {left:.0f} days; run `fedshift server renew {folder}`")
    require_free(
        settings.bind,
        settings.port,
        f"stop what uses it, or set another port in {paths.settings} and tell the sites",
    )
    folders.write_private(paths.secret, secrets.token_bytes(32))
    commands = {"SuperLink": superlink(paths, settings), "executor": server_executor(paths)}
    own = environment(paths) | {"FEDSHIFT_SERVER": str(paths.root)}
    line = f"listening on {settings.bind}:{settings.port}, stop with Ctrl-C"
    supervise(commands, own, _announce_when_ready((settings.local, settings.port), echo, line))


def _announce_when_ready(address: tuple[str, int], echo: Echo, line: str) -> Callable[[], bool]:
    """A ``ready`` for :func:`supervise` that prints a line once the daemon listens."""

    def ready() -> bool:
        if not listens(*address):
            return False
        echo(line)
        return True

    return ready


def superlink(paths: ServerPaths, settings: ServerSettings) -> list[str]:
    """Command of the SuperLink; keys are passed as paths."""
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
    """Command of the server's executor; its address of the SuperLink is in the certificate."""
    address = read_server(paths.root).local_address
    return [
        *(*PYTHON, str(HERE / "executor.py")),
        *("--runtime-api-address", address, "--root-certificates", str(paths.ca)),
        *("--superexec-auth-secret-file", str(paths.secret)),
    ]


def start_site(folder: Path, echo: Echo) -> None:
    """Run the SuperNode and its executor until a signal comes."""
    require_flower()
    paths, settings = SitePaths(folder.absolute()), read_site(folder)
    for line in checks.check_site(paths):
        echo(line)
    wait_for_release(paths, echo)
    folders.write_private(paths.secret, secrets.token_bytes(32))
    port = free_port()
    commands = {
        "SuperNode": supernode(paths, settings.server, port),
        "executor": site_executor(paths, port),
    }
    own = environment(paths) | {"FEDSHIFT_SITE": str(paths.root)}
    line = f"site {settings.id} serves {settings.server}, stop with Ctrl-C"
    supervise(commands, own, _announce_when_ready(("127.0.0.1", port), echo, line))


def supernode(paths: SitePaths, server: str, port: int) -> list[str]:
    """Command of the SuperNode; the key is passed as a path."""
    return [
        *(*PYTHON, str(HERE / "supernode.py")),
        *("--superlink", server, "--root-certificates", str(paths.ca)),
        *("--auth-supernode-private-key", str(paths.key)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(paths.secret)),
    ]


def site_executor(paths: SitePaths, port: int) -> list[str]:
    """Command of a site's executor; on loopback there is no TLS, and a secret proves who calls."""
    return [
        *(*PYTHON, str(HERE / "executor.py")),
        *("--runtime-api-address", f"127.0.0.1:{port}", "--insecure"),
        *("--superexec-auth-secret-file", str(paths.secret)),
    ]


def wait_for_release(paths: SitePaths, echo: Echo) -> None:
    """Wait until the server no longer regards this site as online.

    It does for about a minute after the site's last process was killed, and would refuse a new one.
    """
    host, port = read_site(paths.root).address
    until = time.monotonic() + RELEASE_TIMEOUT
    while checks.ask(paths, host, port).status == "online":
        if time.monotonic() > until:
            raise RunError(
                f"the server sees this site online for {RELEASE_TIMEOUT:.0f} s: another process "
                "serves it; stop that one first"
            )
        if until - time.monotonic() > RELEASE_TIMEOUT - 1:
            echo("the server still holds the last connection of this site; waiting, about a minute")
        time.sleep(2)
