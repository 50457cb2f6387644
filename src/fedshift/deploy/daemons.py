"""``start``: the daemons of a server or of a site, with what each must be told."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedshift.deploy import checks, places, processes
from fedshift.deploy.certificates import WARNING_DAYS
from fedshift.deploy.environment import environment, require_flower
from fedshift.deploy.places import ServerPlace, SitePlace
from fedshift.deploy.settings import ServerSettings, read_server, read_site
from fedshift.errors import RunError

LET_GO = 120.0  # seconds in which the server notices that a killed site is gone
PYTHON = (sys.executable, "-P")  # nothing is imported from the working directory
HERE = Path(__file__).parent
Say = Callable[[str], None]


def start_server(folder: Path, say: Say) -> None:
    """Run the SuperLink and its executor until a signal comes."""
    require_flower()
    place, settings = ServerPlace(folder.absolute()), read_server(folder)
    left = checks.check_server(place, settings)
    if left < WARNING_DAYS:
        say(f"note: the certificate ends in {left:.0f} days; run `fedshift server renew {folder}`")
    processes.require_free(
        settings.bind,
        settings.port,
        f"stop what uses it, or set another port in {place.settings} and tell the sites",
    )
    places.write_private(place.secret, secrets.token_bytes(32))
    commands = {"SuperLink": superlink(place, settings), "executor": server_executor(place)}
    own = environment(place) | {"FEDSHIFT_SERVER": str(place.root)}
    line = f"listening on {settings.bind}:{settings.port}, stop with Ctrl-C"
    processes.supervise(commands, own, _said_once((settings.local, settings.port), say, line))


def _said_once(address: tuple[str, int], say: Say, line: str) -> Callable[[], bool]:
    """Say the line when the daemon listens."""

    def ready() -> bool:
        if not processes.listens(*address):
            return False
        say(line)
        return True

    return ready


def superlink(place: ServerPlace, settings: ServerSettings) -> list[str]:
    """The command; keys go by path."""
    return [
        *(*PYTHON, "-m", "fedshift.deploy.superlink"),
        *("--host", settings.bind, "--port", str(settings.port)),
        *("--ssl-ca-certfile", str(place.ca), "--ssl-certfile", str(place.certificate)),
        *("--ssl-keyfile", str(place.key), "--database", str(place.database)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(place.secret)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]


def server_executor(place: ServerPlace) -> list[str]:
    """The command; the SuperLink is on this machine, under a name that its certificate has."""
    address = read_server(place.root).local_address
    return [
        *(*PYTHON, str(HERE / "executor.py")),
        *("--runtime-api-address", address, "--root-certificates", str(place.ca)),
        *("--superexec-auth-secret-file", str(place.secret)),
    ]


def start_site(folder: Path, say: Say) -> None:
    """Run the SuperNode and its executor until a signal comes."""
    require_flower()
    place, settings = SitePlace(folder.absolute()), read_site(folder)
    for line in checks.check_site(place):
        say(line)
    wait_for_release(place, say)
    places.write_private(place.secret, secrets.token_bytes(32))
    port = processes.free_port()
    commands = {
        "SuperNode": supernode(place, settings.server, port),
        "executor": site_executor(place, port),
    }
    own = environment(place) | {"FEDSHIFT_SITE": str(place.root)}
    line = f"site {settings.id} serves {settings.server}, stop with Ctrl-C"
    processes.supervise(commands, own, _said_once(("127.0.0.1", port), say, line))


def supernode(place: SitePlace, server: str, port: int) -> list[str]:
    """The command; the key goes by path."""
    return [
        *(*PYTHON, str(HERE / "supernode.py")),
        *("--superlink", server, "--root-certificates", str(place.ca)),
        *("--auth-supernode-private-key", str(place.key)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(place.secret)),
    ]


def site_executor(place: SitePlace, port: int) -> list[str]:
    """The command; between two processes of this machine there is no TLS, but a secret."""
    return [
        *(*PYTHON, str(HERE / "executor.py")),
        *("--runtime-api-address", f"127.0.0.1:{port}", "--insecure"),
        *("--superexec-auth-secret-file", str(place.secret)),
    ]


def wait_for_release(place: SitePlace, say: Say) -> None:
    """Wait while the server still holds the connection of a process that was killed."""
    host, port = read_site(place.root).address
    until = time.monotonic() + LET_GO
    while checks.ask(place, host, port).status == "online":
        if time.monotonic() > until:
            raise RunError(
                f"the server sees this site online for {LET_GO:.0f} s: another process serves it; "
                "stop that one first"
            )
        if until - time.monotonic() > LET_GO - 1:
            say("the server still holds the last connection of this site; waiting, about a minute")
        time.sleep(2)
