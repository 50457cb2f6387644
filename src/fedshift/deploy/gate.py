"""The server's only open port: sites may reach Flower's fleet, and nothing but it.

Flower serves its whole interface on one port, commands without a password included: whoever reaches
it could register a node or start a run. The gate answers those from this machine only, and tells
a site what it must know before it starts.
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
    """ASGI middleware in front of the SuperLink."""

    def __init__(self, app: App, expects: Path, status_of: StatusOf) -> None:
        self.app, self.expects, self.status_of = app, expects, status_of

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Let a request pass, answer it, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif scope["path"] == ABOUT:
            await _answer(send, 200, await self._about(scope))
        elif scope["path"].startswith(FLEET) or is_local(scope):
            await self.app(scope, receive, send)
        else:
            await _answer(send, 403, {"detail": "only from the server's own machine"})

    async def _about(self, scope: AsgiScope) -> dict[str, Any]:
        """Our version; to a registered site also what its data must look like."""
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
    """Classes and shape of the federation, once a run has seen them."""
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
