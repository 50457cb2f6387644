"""Power failures: every moment of a run's writing is replayed as a disk would show it afterwards.

A disk keeps what was synced and may lose or keep anything else. Three extremes are replayed. In
``forgetful`` nothing survives that was not synced, names and deletions included; in ``deleting``
deletions do survive. In ``eager`` every name survives at once, but data that were not synced are
lost, so that files are empty or end early. Whatever is left, resuming must give the run that was
never interrupted.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fedshift.base import files
from fedshift.base.errors import FedshiftError
from fedshift.testing import play, require_same, start

SMALL = {"rounds": 3, "epochs": None, "steps": 1, "protocols": ("personal",), "unseen": None}
CHECKPOINT = Path("checkpoints/server.safetensors")


class Disk:
    """What would be left of ``root`` at every event, in the three extremes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data: dict[int, bytes] = {}  # inode -> what of it is on the disk
        self.names: dict[Path, int] = {}  # names that are on the disk
        self.kept: list[int] = []  # open files, so that no inode is used twice
        self.moments: list[tuple[str, dict[Path, bytes]]] = []

    def current(self) -> dict[Path, int]:
        found = {p: p.stat().st_ino for p in sorted(self.root.rglob("*")) if p.is_file()}
        for path, inode in found.items():
            if inode not in self.data:
                self.data[inode] = b""
                self.kept.append(os.open(path, os.O_RDONLY))
        return found

    def sync_data(self, path: Path) -> None:
        self.current()
        self.data[path.stat().st_ino] = path.read_bytes()

    def sync_names(self, folder: Path) -> None:
        now = self.current()
        self.names = {p: i for p, i in self.names.items() if p.parent != folder}
        self.names |= {p: i for p, i in now.items() if p.parent == folder}

    def sync_all(self) -> None:
        now = self.current()
        for path in now:
            self.sync_data(path)
        self.names = now

    def note(self, event: str) -> None:
        now = self.current()
        deleting = {p: i for p, i in self.names.items() if p in now}
        modes = {"forgetful": self.names, "deleting": deleting, "eager": now}
        for mode, names in modes.items():
            left = {p.relative_to(self.root): self.data[i] for p, i in names.items()}
            if all(left != other for _, other in self.moments):
                self.moments.append((f"{mode}, {event}", left))


@pytest.fixture
def traced(monkeypatch, tmp_path):
    """``traced(method)``: the uninterrupted run, and every state that a power failure leaves."""

    def run(method, *, broken=""):
        root = tmp_path / "run"
        root.mkdir()
        disk = Disk(root)
        replace, unlink = Path.replace, Path.unlink

        def noted_replace(self, target):
            disk.note(f"before {target.name}")
            out = replace(self, target)
            disk.note(f"after {target.name}")
            return out

        def noted_unlink(self, missing_ok=False):
            unlink(self, missing_ok)
            disk.note(f"without {self.name}")

        def settle(folder):
            disk.note("before settling")
            if broken != "settle":
                disk.sync_all()

        def sync_folder(folder):
            disk.note("before the folder")
            if broken != "folder":
                disk.sync_names(folder)

        with monkeypatch.context() as patch:
            patch.setattr(files, "settle", settle)
            patch.setattr(files, "sync_folder", sync_folder)
            patch.setattr(Path, "replace", noted_replace)
            patch.setattr(Path, "unlink", noted_unlink)
            session = play(start(method, path=root, **SMALL))
            disk.note("end")
        return session, disk

    return run


def resumed(method, left, folder):
    """The run that is continued from what a power failure has left."""
    shutil.rmtree(folder, ignore_errors=True)
    for path, blob in left.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(blob)
    return play(start(method, path=folder, **SMALL))


@pytest.mark.parametrize(
    "method", ["scaffold", pytest.param("fedbn", marks=pytest.mark.exhaustive)]
)
def test_a_run_survives_a_power_failure_at_every_moment(traced, tmp_path, method):
    whole, disk = traced(method)
    moments = [(event, left) for event, left in disk.moments if CHECKPOINT in left]
    assert len(moments) >= 12
    assert {event.partition(",")[0] for event, _ in moments} >= {"forgetful", "eager"}
    for event, left in moments[::2]:
        require_same(whole, resumed(method, left, tmp_path / "after"), event)


@pytest.mark.parametrize("broken", ["settle", "folder"])
def test_the_replay_finds_an_order_that_is_not_safe(traced, tmp_path, broken):
    """Without either sync some moment leaves a run that cannot be continued to the same end."""
    whole, disk = traced("scaffold", broken=broken)
    moments = [left for _, left in disk.moments if CHECKPOINT in left]

    def replay():
        for left in reversed(moments):
            require_same(whole, resumed("scaffold", left, tmp_path / "after"), "after")

    with pytest.raises((AssertionError, FedshiftError)):
        replay()
