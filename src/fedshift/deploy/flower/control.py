"""Commands to a running SuperLink: register sites, start, stop and watch runs.

``deploy.runs`` and ``cli.deploy`` use it on the server's own machine; from another one the gate
refuses it (``deploy.gate``). The code bundle that it sends with a run holds no code but an import
of the installed fedshift.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import httpx

import fedshift.transports.flower.quiet  # noqa: F401  before Flower looks at the environment

# isort: split
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, run_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from fedshift.base.errors import RunError
from fedshift.base.version import __version__
from fedshift.deploy.credentials import PublicKey
from fedshift.deploy.folders import ServerPaths, read_server

BUNDLE = {  # Flower starts no run without a code bundle; ours only imports our apps
    "pyproject.toml": f"""\
[project]
name = "fedshift-deployed"
version = "{__version__}"
description = "Runs the fedshift that is installed"
license = {{ text = "Apache-2.0" }}
dependencies = []

[tool.flwr.app]
publisher = "fedshift"

[tool.flwr.app.components]
serverapp = "fedshift_deployed:server"
clientapp = "fedshift_deployed:client"

[tool.flwr.app.config]
run = ""
""",
    "fedshift_deployed.py": """\
\"\"\"The apps of the fedshift that is installed.\"\"\"

from fedshift.deploy.flower.apps import client, server

__all__ = ["client", "server"]
""",
}


@dataclass(frozen=True)
class RegisteredSite:
    """A registered site as the SuperLink sees it."""

    id: int  # Flower's node
    site: str
    status: str  # registered (never seen), online, offline
    key: bytes


class Control:
    """A connection to the SuperLink of a server folder; use it as a context manager."""

    def __init__(self, paths: ServerPaths) -> None:
        self.paths = paths
        self._client = ControlHttpClient.from_server_address(
            read_server(paths.root).local_address,
            insecure=False,
            root_certificates=paths.ca.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def register(self, key: PublicKey) -> None:
        """Register a site's public key under its id."""
        with self._readable_errors():
            self._client.RegisterNode(RegisterNodeRequest(public_key=key.pem, name=key.site))

    def unregister(self, node: RegisteredSite) -> None:
        """Withdraw a site's registration."""
        with self._readable_errors():
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=node.id))

    def nodes(self) -> dict[str, RegisteredSite]:
        """Registered sites by their ids."""
        with self._readable_errors():
            found = self._client.ListNodes(ListNodesRequest()).nodes_info
        nodes = [RegisteredSite(n.node_id, n.name, n.status, n.public_key) for n in found]
        return {n.site: n for n in nodes if n.status != "unregistered"}

    def start(self, request: str) -> int:
        """Start a run whose ServerApp reads the file ``request``; returns Flower's number of it."""
        with warnings.catch_warnings():  # from a library that Flower calls by a deprecated name
            warnings.simplefilter("ignore", DeprecationWarning)
            blob, _ = build_fab_from_files({n: text.encode() for n, text in BUNDLE.items()})
        config = user_config_to_proto({"run": request})
        with self._readable_errors():
            answer = self._client.StartRun(
                StartRunRequest(
                    fab=fab_to_proto(Fab(hashlib.sha256(blob).hexdigest(), blob, {})),
                    override_config=config,
                )
            )
        return int(answer.run_id)

    def stop(self, run: int) -> None:
        """Stop a run."""
        with self._readable_errors():
            self._client.StopRun(StopRunRequest(run_id=run))

    def state(self, run: int) -> tuple[str, str]:
        """A run's state (pending, starting, running, finished), and its error if it has failed."""
        with self._readable_errors():
            found = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict
        if run not in found:
            return "finished", "the server does not know this run any more"
        status = run_from_proto(found[run]).status
        return status.status, "" if status.sub_status == "completed" else status.details

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        """Turn errors of Flower and of the connection into ours, which say what to do."""
        try:
            yield
        except httpx.HTTPStatusError as error:
            found = FlowerError.from_json(error.response.text)
            raise RunError(f"Flower refused: {found.message if found else error}") from None
        except httpx.HTTPError:
            raise RunError(
                f"the server of {self.paths.root} does not answer; run "
                f"`fedshift server start {self.paths.root}`, then this command again"
            ) from None
