"""One message of Flower's, played in a child process that has imported everything already.

The executor's fork server imports this module once (with Flower's runtime and every registered
method); each message is then played by a child of it, which starts in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

import flwr.superlink.cli.flwr_serverapp  # noqa: F401  what a task imports first
from flwr.supercore.logger import mirror_output_to_queue, restore_output
from flwr.superlink.runtime import run_serverapp
from flwr.supernode.runtime import run_clientapp as flower

from fedshift.base.logs import to_streams
from fedshift.base.process import tune_process
from fedshift.core.registry import BACKBONES, METHODS, SCENARIOS
from fedshift.data.registry import DATASETS
from fedshift.deploy.flower.apps import client

for registry in (METHODS, BACKBONES, SCENARIOS, DATASETS):
    registry.entries()


@dataclass(frozen=True)
class ChildTask:
    """What the executor hands to a child, through a pipe."""

    kind: str  # server or client
    address: str  # of the Runtime API on this machine
    token: str = field(repr=False)
    root_certificates: str | None
    parent: int | None

    def arguments(self) -> dict[str, Any]:
        """As Flower's own entry points pass them on."""
        ca = self.root_certificates
        return {
            "runtime_api_address": self.address,
            "token": self.token,
            "insecure": ca is None,
            "certificates": Path(ca).read_bytes() if ca else None,
            "parent_pid": self.parent,
            "runtime_dependency_install": False,
        }


def play(task: ChildTask) -> None:
    """Run to the end; Flower leaves by SystemExit."""
    to_streams()
    tune_process()
    {"server": play_server, "client": play_client}[task.kind](task)


def play_client(task: ChildTask) -> None:
    """Play a visit with the app that is installed here, whatever code the server has sent."""

    def nothing(*_args: object, **_kwargs: object) -> None:
        """Instead of unpacking the server's bundle."""

    def ours(**_kwargs: object) -> Callable[..., Any]:
        return lambda *_args: client

    vars(flower).update(install_from_fab=nothing, get_load_client_app_fn=ours)
    flower.run_clientapp(**task.arguments())


def play_server(task: ChildTask) -> None:
    """Play a run."""
    lines: Queue[str | None] = Queue()
    mirror_output_to_queue(lines)
    try:
        run_serverapp(log_queue=lines, **task.arguments())
    finally:
        restore_output()
