"""One Flower task, carried out in a child process of the executor's fork server.

The fork server of ``deploy.flower.executor`` imports this module once, and with it Flower's
runtime, torch and every registered method: that is why registries are filled at import. Each task
(a run at the server, the answer to one message at a site) is then a forked child, which imports
nothing more and starts in milliseconds. At a site, code that the server sends must never be run.
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
    """What the executor passes to a child, through a pipe: on a command line all could read it."""

    kind: str  # server or client
    address: str  # of the Runtime API on this machine
    token: str = field(repr=False)
    root_certificates: str | None
    parent: int | None  # process id; the task ends when that process ends

    def arguments(self) -> dict[str, Any]:
        """Arguments for Flower's runtime, as Flower's own commands would make them."""
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
    """Carry out a task; Flower ends the process by SystemExit."""
    to_streams()
    tune_process()
    {"server": play_server, "client": play_client}[task.kind](task)


def play_client(task: ChildTask) -> None:
    """Answer one message with the ClientApp that is installed here.

    Flower would unpack the code bundle that came with the run and import its app. Both functions
    are replaced, so that a server cannot run code at a site.
    """

    def nothing(*_args: object, **_kwargs: object) -> None:
        """In place of unpacking the bundle."""

    def ours(**_kwargs: object) -> Callable[..., Any]:
        return lambda *_args: client

    vars(flower).update(install_from_fab=nothing, get_load_client_app_fn=ours)
    flower.run_clientapp(**task.arguments())


def play_server(task: ChildTask) -> None:
    """Carry out a run; its output goes to Flower's log as well."""
    lines: Queue[str | None] = Queue()
    mirror_output_to_queue(lines)
    try:
        run_serverapp(log_queue=lines, **task.arguments())
    finally:
        restore_output()
