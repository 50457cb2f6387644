"""Flower's SuperExec, changed so that tasks start fast and their tokens stay secret.

``deploy.flower.daemons`` runs this file beside the SuperLink or SuperNode, from which SuperExec
fetches tasks: at the server a task is a whole run, at a site the answer to one message. Flower
would start a new interpreter per task, which takes seconds to import torch, and pass it the task's
token on the command line.

The fork server. Here a task is a child of a fork server, a process without threads that has
imported Flower's runtime, torch and every registered method once (``deploy.flower.tasks``). A child
starts in milliseconds and shares the memory of those imports. The file is run by its path, not as
a module, and must import nothing of fedshift at its top: so torch is in memory only once, in the
fork server.

The token. With it a process may act for its task at the Runtime API: read its messages, send its
reply. Every user of the machine can read a command line (``ps``), so a token must never be on one.
multiprocessing passes arguments to a child through a pipe, which no other user can read.
"""

from __future__ import annotations

import multiprocessing
from functools import cache
from typing import Any

from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor

KINDS = {TaskType.SERVER_APP: "server", TaskType.CLIENT_APP: "client"}


def launch(_executor: SubprocessExecutor, spec: ExecutionSpec) -> LaunchResult:
    """In place of ``SubprocessExecutor.launch``: start the task in a child of the fork server."""
    kind = KINDS.get(spec.task_type)
    if kind is None:
        return LaunchResult.failed(f"fedshift plays no {spec.task_type}")
    task = (
        kind,
        spec.runtime_api_address,
        spec.token,
        spec.root_certificates_path,
        spec.parent_pid,
    )
    context().Process(target=play, args=task, daemon=True).start()
    return LaunchResult.accepted()


def play(*task: Any) -> None:
    """Run a task, in the child."""
    from fedshift.deploy.flower import tasks  # noqa: PLC0415  the fork server has imported it

    tasks.play(tasks.ChildTask(*task))


@cache
def context() -> Any:
    """The fork server, made once; it imports ``deploy.flower.tasks`` before its first child."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["fedshift.deploy.flower.tasks"])
    return found


def main() -> None:
    """Run SuperExec until a signal ends it."""
    setattr(SubprocessExecutor, "launch", launch)  # noqa: B010  mypy forbids the assignment
    # A task that does nothing: the fork server starts and imports now, not at the first message.
    context().Process(target=print, args=("",), kwargs={"end": ""}, daemon=True).start()
    flower_superexec()


if __name__ == "__main__":
    main()
