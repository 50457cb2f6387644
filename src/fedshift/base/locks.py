"""One writer per folder: a lock with a sign of life, for processes of this and of other machines.

Whoever writes a run directory holds its lock meanwhile; whoever only looks at runs reads who that
is (:func:`writer_of`) and never takes the lock. The file is beside the folder, hidden. It must
never be left behind by a process that ends, and one that a killed process leaves must never be in
the way for longer than it takes to tell that it is dead.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fedshift.base.errors import RunError
from fedshift.base.files import readable_errors
from fedshift.base.logs import printable

if sys.platform != "win32":
    import fcntl

BEAT = 15.0  # seconds between two signs of life
SILENT = 90.0  # without one for so long, a writer on another machine is taken for dead


class FolderTakenError(RunError):
    """Another process is writing the folder."""


@dataclass(frozen=True)
class FolderWriter:
    """Who has the lock of a folder, or had it when it was killed."""

    host: str
    pid: int
    age: float  # seconds since its last sign of life

    @property
    def alive(self) -> bool:
        """Whether it still writes; on this machine we know, of others we see the sign of life."""
        if self.host == socket.gethostname() and self.pid and sys.platform != "win32":
            return _runs(self.pid)
        return self.age < SILENT


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        return True
    return True


def lock_of(folder: Path) -> Path:
    """The lock file of a folder, whatever links lead to it."""
    real = Path(os.path.realpath(folder))
    return real.with_name(f".{real.name}.lock")


def writer_of(folder: Path) -> FolderWriter | None:
    """Who writes a folder, without taking the lock; None if nobody does."""
    return _signed(lock_of(folder))


def _signed(lock: Path) -> FolderWriter | None:
    try:
        age = time.time() - lock.stat().st_mtime
        host, _, pid = lock.read_text(errors="replace")[:300].strip().partition(" ")
    except OSError:
        return None
    return FolderWriter(printable(host), int(pid) if pid.isdecimal() else 0, max(0.0, age))


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock a folder for the block, so that no second process writes to it.

    On one machine the lock is an ``flock``, which the kernel releases when the process ends for
    whatever reason, so a crash leaves no stale lock. Most network file systems carry it to other
    machines too. For those that do not, the file names its writer, who touches it every ``BEAT``
    seconds: a lock of another machine that was touched within ``SILENT`` seconds is respected.
    Windows has no ``flock``; there, only other machines are kept out.
    """
    lock = lock_of(folder)
    with readable_errors(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(lock)
    if file is None:
        raise FolderTakenError(
            f"another process is writing {folder}; wait for it, or choose another folder",
            "out=DIR",
        )
    with file, _beating(lock):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _locked(lock: Path) -> IO[str] | None:
    """The lock file, open, locked and signed; None if another process has it.

    Whoever ends deletes the file, so a file that we opened before and locked after that is no
    longer the one that the next process will open. Then we start again with the new one.
    """
    while True:
        file = lock.open("a")  # never truncated: its age is its writer's sign of life
        try:
            if sys.platform != "win32":
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if sys.platform == "win32" or _is_open_as(file, lock):
                if _is_elsewhere(lock):
                    file.close()
                    return None
                file.truncate(0)
                file.write(f"{socket.gethostname()} {os.getpid()}\n")
                file.flush()
                return file
            file.close()
        except BlockingIOError:
            file.close()
            return None


def _is_elsewhere(lock: Path) -> bool:
    """Whether a process of another machine has signed the lock, and still lives."""
    held = _signed(lock)
    return held is not None and held.host not in ("", socket.gethostname()) and held.alive


def _is_open_as(file: IO[str], path: Path) -> bool:
    """Whether ``path`` still names the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def _beating(lock: Path) -> Iterator[None]:
    """Touch the lock every ``BEAT`` seconds, in a thread, while the block runs."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT):
            with suppress(OSError):  # a file system that is away for a moment
                os.utime(lock)

    thread = threading.Thread(target=beat, daemon=True, name="fedshift-lock")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
