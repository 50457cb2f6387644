"""Guards the server's only open port: from other machines, sites reach the Fleet API alone.

``deploy.flower.superlink`` puts :class:`Gate` in front of Flower's SuperLink, which serves all its
interfaces on one port: Fleet (sites fetch and send messages, authenticated by their keys), Control
(register sites, start and stop runs) and Runtime (for the executor). Control asks for no password.
Without the gate, whoever reaches the port could register a key of their own and so join the next
run and receive its model, stop runs, or start one with a code bundle of their own, which Flower
would execute on the server. The gate lets requests for anything but Fleet pass only if they come
from the server's own machine. So never put a reverse proxy on that machine in front of it: all that
the proxy forwards would look local.

The gate itself answers one more path, ``/fedshift``, where a site learns before it starts whether
versions and data fit. A stranger learns the version from it and nothing of the federation.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from fedshift.base.version import __version__

FLEET, ABOUT = "/v1/fleet/", "/fedshift"
KEY_HEADER = "fedshift-key"  # base64 of the site's public key
AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiScope]]
Send = Callable[[AsgiScope], Awaitable[None]]
App = Callable[[AsgiScope, Receive, Send], Awaitable[None]]
StatusOf = Callable[[Any, bytes], Awaitable[str]]


class Gate:
    """ASGI middleware in front of the SuperLink.

    ``expects`` is a file with classes and shape of the federation, ``status_of`` looks a public key
    up in the SuperLink's database.
    """

    def __init__(self, app: App, expects: Path, status_of: StatusOf) -> None:
        self.app, self.expects, self.status_of = app, expects, status_of

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Forward a request, answer it, or refuse it with status 403."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif scope["path"] == ABOUT:
            await _answer(send, 200, await self._about(scope))
        elif scope["path"].startswith(FLEET) or is_local(scope):
            await self.app(scope, receive, send)
        else:
            await _answer(send, 403, {"detail": "only from the server's own machine"})

    async def _about(self, scope: AsgiScope) -> dict[str, Any]:
        """The version, and whether the key in the header is registered; if so, classes and shape.

        A public key proves nothing, so all that may be answered here is what need not be secret.
        """
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        try:
            key = base64.b64decode(headers.get(KEY_HEADER, b""), validate=True)
        except ValueError:
            key = b""
        status = await self.status_of(scope["app"], key) if key else "unknown"
        found = {"fedshift": __version__, "status": status}
        return found if status == "unknown" else found | read_expects(self.expects)


def is_local(scope: AsgiScope) -> bool:
    """Whether a request comes from this machine: over loopback, or from its own address."""
    client, server = scope.get("client"), scope.get("server")
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return False
    return address.is_loopback or (
        server is not None and client is not None and client[0] == server[0]
    )


def read_expects(path: Path) -> dict[str, Any]:
    """Classes and shape of the federation; empty before the first run has learnt them."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


async def _answer(send: Send, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
