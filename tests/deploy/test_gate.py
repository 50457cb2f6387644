"""What the server's open port answers to whom."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest

import fedshift
from fedshift.deploy.gate import Gate, is_local


def knock(tmp_path: Path, path: str, client: str, key: bytes = b"") -> tuple[int, dict]:
    """Status and content; 200 and nothing if the request was let through."""
    sent: list[dict] = []

    async def app(scope, receive, send) -> None:
        sent.append({"status": 200})

    async def keep(message) -> None:
        sent.append(message)

    async def receive() -> dict:
        return {}

    async def status_of(app, key: bytes) -> str:
        return "offline" if key == b"known" else "unknown"

    headers = [(b"fedshift-key", base64.b64encode(key))] if key else []
    scope = {"type": "http", "path": path, "client": (client, 5), "headers": headers, "app": None}
    asyncio.run(Gate(app, tmp_path / "expects.json", status_of)(scope, receive, keep))
    return sent[0]["status"], json.loads(sent[1]["body"]) if len(sent) > 1 else {}


CLOSED = ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs"]


@pytest.mark.parametrize("path", [*CLOSED, "/v1/fleet", "/openapi.json", "/"])
def test_commands_are_taken_from_the_servers_own_machine_only(path, tmp_path: Path):
    assert knock(tmp_path, path, "10.0.0.5")[0] == 403
    assert knock(tmp_path, path, "127.0.0.1") == (200, {})


def test_the_fleet_is_open_to_sites(tmp_path: Path):
    assert knock(tmp_path, "/v1/fleet/activate-node", "10.0.0.5") == (200, {})


def test_only_a_registered_site_hears_of_the_classes(tmp_path: Path):
    (tmp_path / "expects.json").write_text('{"classes": ["a"], "shape": [3, 8, 8]}')
    ours = {"fedshift": fedshift.__version__}
    for key in (b"", b"stranger"):
        assert knock(tmp_path, "/fedshift", "10.0.0.5", key)[1] == ours | {"status": "unknown"}
    known = {"status": "offline", "classes": ["a"], "shape": [3, 8, 8]}
    assert knock(tmp_path, "/fedshift", "10.0.0.5", b"known")[1] == ours | known


@pytest.mark.parametrize(
    ("client", "local"),
    [
        (("127.0.0.1", 1), True),
        (("::1", 1), True),
        (("10.0.0.1", 1), True),  # from the machine to its own address
        (("10.0.0.7", 1), False),
        (("testclient", 1), False),
        (None, False),
    ],
)
def test_who_is_local(client, local):
    assert is_local({"client": client, "server": ("10.0.0.1", 8000)}) == local
