"""Daemons in the foreground: all of them run, or none does."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from fedshift.errors import ConfigError, RunError

PR_SET_PDEATHSIG = 1  # of Linux's prctl.h
GRACE = 10.0  # seconds that a daemon has to end


def supervise(
    commands: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    ready: Callable[[], bool],
) -> None:
    """Run the commands until a signal comes; if one ends by itself, end the others and say so.

    ``ready`` is asked until it says yes.
    """
    stopping: list[int] = []
    waiting = True

    def stop(number: int, _frame: FrameType | None) -> None:
        stopping.append(number)

    before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            running[name] = subprocess.Popen(
                list(command),
                env=dict(environment),
                preexec_fn=follow_parent,  # noqa: PLW1509  no threads here
            )
        while not stopping:
            waiting = waiting and not ready()
            for name, process in running.items():
                if process.poll() is not None:
                    raise RunError(
                        f"the {name} ended (exit code {process.returncode}); its last lines above "
                        "say why; start it again"
                    )
            time.sleep(0.2)
    finally:
        end(list(running.values()))
        for number, handler in before.items():
            signal.signal(number, handler)


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask all to end, last started first, then insist."""
    for process in reversed(processes):
        process.terminate()
    until = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def follow_parent() -> None:
    """In the child: private files, no terminal's Ctrl-C, and the end when the parent ends."""
    os.umask(0o077)
    os.setpgid(0, 0)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def require_free(host: str, port: int, remedy: str) -> None:
    """Say that a port is taken before a daemon fails over it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(f"cannot listen on {host}:{port}: {reason}; {remedy}") from None


def listens(host: str, port: int) -> bool:
    """Whether somebody on this machine answers on a port."""
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
