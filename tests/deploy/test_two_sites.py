"""A server and two sites on loopback with TLS and keys: the numbers of one process, bit for bit."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import federation as fed
import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from federation import SITES, Deployment
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedshift.base.errors import ConfigError
from fedshift.deploy import credentials
from fedshift.deploy.checks import check_site
from fedshift.deploy.flower.control import Control
from fedshift.deploy.runs import register
from fedshift.experiment.listener import Listener
from fedshift.runs.record import read_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    made = Deployment(tmp_path_factory.mktemp("deployment"))
    made.init(*SITES)
    try:
        made.start_server()
        made.register(*SITES)
        made.start_sites(*SITES)
        yield made
    finally:
        made.close()


FURTHER = [
    pytest.param(name, marks=pytest.mark.exhaustive)
    for name in ("fedavg", "scaffold", "fedbn", "f2dc")
]


@pytest.mark.parametrize("method", ["fdse", *FURTHER])
def test_a_deployed_run_equals_the_run_in_one_process(method, deployment, tmp_path: Path):
    config, alone = fed.configured(method), tmp_path / "run"
    found, expected = deployment.run(config), fed.in_process(config, alone)
    assert found.summary["protocols"] == expected.summary["protocols"]
    assert found.summary["bytes"] == expected.summary["bytes"]
    for file in ("weights.safetensors", "checkpoints/server.safetensors"):
        assert fed.tensors(found.path / file) == fed.tensors(alone / file)
    own = {}
    for name in SITES:
        own |= fed.states(deployment.site(name).states / config.name)
    assert own == fed.states(alone / "checkpoints" / "clients")
    assert bool(own) == (method != "fedavg")
    assert not (found.path / "checkpoints" / "clients").exists(), "a site's state at the server"
    assert untimed(found.history) == untimed(read_lines(alone / "metrics.jsonl"))


def untimed(rows):
    return [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in rows]


def activate(deployment, private, public, *, insecure: bool = False) -> None:
    """What a SuperNode says first."""
    client = FleetHttpClient.from_server_address(
        f"127.0.0.1:{deployment.port}",
        insecure,
        None if insecure else deployment.server.ca.read_bytes(),
        interceptors=[NodeAuthHttpInterceptor(private, public)],
    )
    with client:
        client.ActivateNode(ActivateNodeRequest(public_key=credentials.pem_of(public)))


def private_key(deployment, name: str):
    return load_ssh_private_key(deployment.site(name).key.read_bytes(), None)


def test_an_unregistered_key_is_refused(deployment):
    key = ec.generate_private_key(ec.SECP384R1())
    with pytest.raises(httpx.HTTPStatusError) as refused:
        activate(deployment, key, key.public_key())
    assert refused.value.response.status_code // 100 == 4


def test_a_registered_site_with_a_wrong_key_is_refused(deployment):
    registered, other = private_key(deployment, SITES[0]), ec.generate_private_key(ec.SECP384R1())
    with pytest.raises(httpx.HTTPStatusError) as refused:
        activate(deployment, other, registered.public_key())
    assert refused.value.response.status_code == 401


def test_a_plain_text_client_is_refused(deployment):
    key = private_key(deployment, SITES[0])
    with pytest.raises(httpx.HTTPError):
        activate(deployment, key, key.public_key(), insecure=True)


def test_a_site_that_is_not_registered_is_told_so_before_it_starts(deployment):
    lines = check_site(deployment.init_site("stranger"))
    with pytest.raises(ConfigError, match=r"does not know this site's key; send .*stranger.pub"):
        list(lines)


def test_two_sites_with_one_id_are_refused_where_they_are_registered(deployment, tmp_path: Path):
    own = deployment.site(SITES[0]).public_key(SITES[0])
    (tmp_path / "other.pub").write_bytes(credentials.make_key(SITES[0])[1])
    renamed = own.read_text().replace(SITES[0], "alias")
    (tmp_path / "alias.pub").write_text(renamed)
    with Control(deployment.server) as control:
        assert register(control, credentials.read_public(own)) is False
        with pytest.raises(ConfigError, match="another key is registered as 'dark-0'"):
            register(control, credentials.read_public(tmp_path / "other.pub"))
        with pytest.raises(ConfigError, match="this key is registered as 'dark-0'"):
            register(control, credentials.read_public(tmp_path / "alias.pub"))


class Looker(Listener):
    """Reads the process list after each round."""

    def __init__(self, deployment) -> None:
        self.deployment, self.seen = deployment, set()

    def round_done(self, row):
        for daemon in self.deployment.daemons.values():
            self.seen.update(fed.command(pid) for pid in fed.descendants(daemon.pid))


def test_no_secret_is_in_a_process_list_a_log_or_an_open_file(deployment):
    looker = Looker(deployment)
    deployment.run(fed.configured("fedavg", lr=0.01), looker)
    places = [deployment.server, *map(deployment.site, SITES)]
    secrets = [paths.secret.read_bytes().hex() for paths in places]
    logs = "".join(log.read_text() for log in deployment.root.glob("*.log"))
    assert any("superlink" in line for line in looker.seen)
    for line in (*looker.seen, logs):
        assert "--token" not in line
        assert "PRIVATE KEY" not in line
        assert not any(secret in line for secret in secrets)
    public = (".crt", ".pub", ".service")
    for paths in places:
        assert paths.root.stat().st_mode & 0o777 == 0o700
        files = [p for p in paths.root.rglob("*") if p.is_file() and p.suffix not in public]
        assert [p for p in files if p.stat().st_mode & 0o077] == []
        assert paths.secret in files


def test_nothing_but_loopback_is_spoken_to(deployment):
    pids = [p for daemon in deployment.daemons.values() for p in fed.descendants(daemon.pid)]
    found = {address for pid in pids for address in ends(pid)}
    assert found <= {"127.0.0.1", "0.0.0.0"}  # the latter is the far end of a listening socket
    assert found


def ends(pid: int) -> set[str]:
    """Local and remote addresses of a process's TCP sockets; none if it has just ended."""
    inodes = set()
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in inodes:
                found |= {address(word.split(":")[0]) for word in words[1:3]}
    return found


def address(word: str) -> str:
    raw = bytes.fromhex(word)
    return ".".join(str(byte) for byte in reversed(raw)) if len(raw) == 4 else word
