"""One attempt at a run: the real command, in a process that is forked for it.

The caller imports torch and fedshift once and starts no thread; so a forked process is complete,
and an attempt costs what the run costs. Worker processes of the pool come from one fork server that
all attempts share, as they share it within a run.
"""

from __future__ import annotations

import multiprocessing.forkserver
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import chaos_faults

from fedshift.cli.main import main
from fedshift.transports import pool as pool_module

CRASHED = 70  # the exit code of an attempt that ended with a traceback
PATIENCE = 120.0  # seconds after which an attempt counts as hanging


@dataclass(frozen=True)
class Ended:
    """How an attempt ended: exit code (negative: the signal), what it said, how long it took."""

    code: int
    said: str
    seconds: float
    hung: bool = False

    @property
    def lines(self) -> list[str]:
        """What it said, without notes and progress."""
        skipped = ("note: ", "resource_tracker:")
        return [x for x in self.said.splitlines() if x.strip() and not x.startswith(skipped)]

    @property
    def refused(self) -> bool:
        """Whether it ended as bad input should: one line, exit code 2."""
        return self.code == 2 and len(self.lines) == 1 and self.lines[0].startswith("error: ")


def start_fork_server() -> None:
    """Start the fork server of the pools, for all attempts."""
    pool_module._context()
    multiprocessing.forkserver.ensure_running()


def require_one_thread() -> None:
    """Raise if a fork would copy locks that another thread may hold."""
    tasks = len(list(Path("/proc/self/task").iterdir()))
    if tasks != 1:
        raise RuntimeError(f"this process has {tasks} threads; a fork of it is not safe")


def attempt(words, fault, run: Path, beside: Path) -> Ended:
    """Run ``fedshift WORDS`` with a fault, in a forked process; wait for it."""
    require_one_thread()
    (beside / "said").unlink(missing_ok=True)
    began = time.monotonic()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # the child has our handler at first
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if pid == 0:
        _child(words, fault, run, beside)
    return _wait(pid, began, fault, beside)


def _child(words, fault, run: Path, beside: Path) -> None:
    """The forked process: never returns."""
    code = CRASHED
    try:
        os.setsid()
        said = os.open(beside / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(said, 1)
        os.dup2(said, 2)
        tempfile.tempdir = str(beside / "tmp")
        multiprocessing.forkserver._forkserver.ensure_running = lambda: None  # the parent's
        watch = chaos_faults.install(fault, run, beside)
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else CRASHED
        watch.fault = {}
        watch.count(beside / "counted")
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait(pid: int, began: float, fault, beside: Path) -> Ended:
    signals = {"kill-time": signal.SIGKILL, "term-time": signal.SIGTERM}
    due = began + fault["after"] if fault["kind"] in signals else None
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        now = time.monotonic()
        if found:
            code = os.waitstatus_to_exitcode(status)
            return Ended(code, _read(beside / "said"), now - began)
        if due is not None and now > due:
            os.kill(pid, signals[fault["kind"]])
            due = None
        if now - began > PATIENCE:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return Ended(-9, _read(beside / "said"), now - began, hung=True)
        time.sleep(0.003)


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def workers_left(beside: Path, patience: float = 10.0) -> list[int]:
    """Worker processes of a run that are still there after a while, though it has ended."""
    journal = _read(beside / "journal").splitlines()
    pids = [int(x.split()[1]) for x in journal if x.startswith("worker ")]
    until = time.monotonic() + patience
    while left := [pid for pid in pids if _alive(pid)]:
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    return left


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" and b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
