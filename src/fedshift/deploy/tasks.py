"""One message of Flower's, played in a child process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any


@dataclass(frozen=True)
class Task:
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


def play(task: Task) -> None:
    """Run to the end; Flower leaves by SystemExit."""
    {"server": play_server, "client": play_client}[task.kind](task)


def play_client(task: Task) -> None:
    """Play a visit with the app that is installed here, whatever code the server has sent."""
    from flwr.supernode.runtime import run_clientapp as flower  # noqa: PLC0415  only in the child

    from fedshift.deploy.apps import client  # noqa: PLC0415

    def nothing(*_args: object, **_kwargs: object) -> None:
        """Instead of unpacking the server's bundle."""

    def ours(**_kwargs: object) -> Callable[..., Any]:
        return lambda *_args: client

    vars(flower).update(install_from_fab=nothing, get_load_client_app_fn=ours)
    flower.run_clientapp(**task.arguments())


def play_server(task: Task) -> None:
    """Play a run."""
    from flwr.supercore.logger import mirror_output_to_queue, restore_output  # noqa: PLC0415
    from flwr.superlink.runtime import run_serverapp  # noqa: PLC0415

    lines: Queue[str | None] = Queue()
    mirror_output_to_queue(lines)
    try:
        run_serverapp(log_queue=lines, **task.arguments())
    finally:
        restore_output()
