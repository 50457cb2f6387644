"""Flower's SuperExec, warm, and silent about its tokens.

Flower starts an interpreter per message and passes it a token on the command line, for all users of
the machine to see. Here each message is played by a child of a process that has imported
everything once; the token reaches it through a pipe. Run as a file, not as a module: it imports
nothing of fedshift itself, and torch is in memory once.
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
    """Start the task in a child."""
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
    """In the child."""
    from fedshift.deploy.flower import tasks  # noqa: PLC0415  its parent has imported it

    tasks.play(tasks.ChildTask(*task))


@cache
def context() -> Any:
    """Children of a clean process."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["fedshift.deploy.flower.tasks"])
    return found


def main() -> None:
    """Serve until told to stop."""
    setattr(SubprocessExecutor, "launch", launch)  # noqa: B010  mypy forbids the assignment
    context().Process(target=print, args=("",), kwargs={"end": ""}, daemon=True).start()  # warm up
    flower_superexec()


if __name__ == "__main__":
    main()
