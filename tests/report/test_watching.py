"""A run is followed while it is written: only new lines are read, and nothing is in its way."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedshift.base import locks
from fedshift.base.errors import RunError
from fedshift.base.locks import FolderTakenError, lock_of, only_writer, writer_of
from fedshift.experiment.run import run
from fedshift.report.watching import Watched, Watchlist, slow_sites
from fedshift.testing import tiny_scenario


def scores(value: float) -> dict:
    domains = {"dark": value - 10, "bright": value + 10}
    one = dict.fromkeys(("avg", "std", "all", "worst", "loss"), value)
    one |= {"domains": domains, "clients": {}}
    return {"global": {"val": one, "test": one}}


def line(round_: int, **more) -> str:
    row = {
        "round": round_,
        "losses": {"task": 1.0 / round_},
        "seconds": 3.0,
        "seconds_scoring": 1.0,
    }
    return json.dumps(row | {"scores": scores(10.0 * round_)} | more) + "\n"


def begin(folder: Path, rounds: int = 10) -> Path:
    folder.mkdir(parents=True)
    held = {"method": "fedprox", "settings": {"mu": 0.1}, "without": ["mixup"], "seed": 3}
    scenario = {"name": "digits", "rounds": rounds}
    (folder / "config.json").write_text(json.dumps({"run": held | {"scenario": scenario}}))
    return folder


def append(file: Path, text: str) -> None:
    with file.open("a") as opened:
        opened.write(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return begin(tmp_path / "run")


def test_a_run_says_its_method_rounds_loss_terms_scores_and_the_time_left(folder):
    append(folder / "metrics.jsonl", line(1) + line(2))
    with only_writer(folder):
        watched = Watched(folder)
        assert watched.refresh()
        assert (watched.method, watched.seed) == ("fedprox, mu=0.1, without mixup", 3)
        assert (watched.round, watched.total, watched.state) == (2, 10, "running")
        assert watched.losses == {"task": 0.5}
        assert watched.scores["global"] == {
            "val": 20.0,
            "test": 20.0,
            "domains": {"dark": 10.0, "bright": 30.0},
        }
        assert watched.curve("global") == [(1, 10.0), (2, 20.0)]
        assert watched.curve("global", "dark") == [(1, 0.0), (2, 10.0)]
        assert watched.left == pytest.approx(8 * 4.0, abs=1.0)  # 8 rounds of 3 + 1 seconds
        assert not watched.stalled
        os.utime(folder / "metrics.jsonl", (0, time.time() - 25))  # five rounds and more
        assert not watched.refresh()
        assert watched.stalled
        assert watched.left == pytest.approx(8 * 4.0 - 25, abs=1.0)


def test_only_what_was_appended_is_read(folder, monkeypatch):
    watched, file = Watched(folder), folder / "metrics.jsonl"
    append(file, line(1))
    watched.refresh()
    read: set[int] = set()  # rounds

    def noted(blob: bytes) -> dict:
        read.add(json.loads(blob)["round"])
        return json.loads(blob)

    monkeypatch.setattr("fedshift.report.watching.from_json", noted)
    assert not watched.refresh()
    append(file, line(2) + line(3)[:20])
    assert watched.refresh()
    assert (read, watched.round) == ({2}, 2)  # half a line waits for its rest
    append(file, line(3)[20:])
    watched.refresh()
    assert (read, watched.round) == ({2, 3}, 3)


@pytest.mark.parametrize("kept", [1, 3])
def test_a_run_that_is_resumed_takes_lines_back(folder, kept):
    """Shorter than before, or by the next look as long again, with another second round."""
    watched, file = Watched(folder), folder / "metrics.jsonl"
    append(file, line(1) + line(2) + line(3))
    watched.refresh()
    os.truncate(file, len(line(1)))
    append(file, "".join(line(n + 2, seconds=9.125) for n in range(kept - 1)))
    if kept == 3:
        append(file, line(4))
    watched.refresh()
    assert [row["round"] for row in watched.rows] == ([1] if kept == 1 else [1, 2, 3, 4])
    if kept == 3:
        assert [row["seconds"] for row in watched.rows] == [4.0, 10.125, 10.125, 4.0]


def test_a_file_that_was_replaced_is_read_from_its_beginning(folder):
    watched, file = Watched(folder), folder / "metrics.jsonl"
    append(file, line(1) + line(2))
    watched.refresh()
    append(folder / "new", line(1) + line(2, losses={"other": 7.0}) + line(3))
    (folder / "new").replace(file)
    watched.refresh()
    assert [row["losses"] for row in watched.rows][1] == {"other": 7.0}
    assert watched.round == 3


def test_lost_sites_come_from_the_ledger(folder):
    row = {"round": 2, "task": "train", "client": "a", "direction": "up", "bytes": 1, "kinds": {}}
    lost = row | {"direction": "lost", "bytes": 0, "reason": "gone"}
    append(folder / "ledger.jsonl", json.dumps(row) + "\n" + json.dumps(lost) + "\n")
    watched = Watched(folder)
    watched.refresh()
    assert [(one.round, one.client, one.reason) for one in watched.lost] == [(2, "a", "gone")]


def test_a_site_is_slow_if_the_round_waited_for_it_alone():
    even = {"a": 1.0, "b": 1.1, "c": 1.2, "d": 1.1}
    assert slow_sites(even, 4.4) == {}
    assert slow_sites(even | {"d": 3.9}, 7.2) == {"d": 3.9}
    assert slow_sites({"a": 0.0, "b": 0.001, "c": 0.01}, 5.0) == {}  # nothing of the round


def test_the_server_notes_how_long_it_waited_for_each_site():
    result = run("fedavg", tiny_scenario(rounds=2), quiet=True)
    for row in result.history:
        waited = row["seconds_waited"]
        assert waited.keys() == result.history[0]["scores"]["personal"]["test"]["clients"].keys()
        assert 0 < sum(waited.values()) <= row["seconds"]


def test_a_view_says_whether_a_run_goes_on_ended_or_was_killed(folder):
    watched = Watched(folder)
    watched.refresh()
    assert watched.state == "stopped"  # begun, unfinished, and nobody writes it
    code = "import sys, time; from pathlib import Path; from fedshift.base.locks import only_writer"
    code += "\nwith only_writer(Path(sys.argv[1])): print('on', flush=True); time.sleep(60)"
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "on\n"
        watched.refresh()
        assert watched.state == "running"
        assert writer_of(folder).pid == other.pid
        other.kill()
    watched.refresh()
    assert watched.state == "killed"
    with only_writer(folder):  # what a killed process leaves is in nobody's way
        watched.refresh()
        assert watched.state == "running"
    (folder / "summary.json").write_text("{}")
    watched.refresh()
    assert watched.state == "finished"


def test_a_writer_on_another_machine_is_respected_while_it_gives_signs_of_life(folder):
    """Where a file system has no locks across machines, the kernel gives it to both."""
    lock = lock_of(folder)
    lock.write_text("elsewhere 17\n")
    assert writer_of(folder).alive
    with pytest.raises(FolderTakenError), only_writer(folder):
        pass
    assert lock.read_text() == "elsewhere 17\n"
    old = time.time() - locks.SILENT - 1
    os.utime(lock, (old, old))
    assert not writer_of(folder).alive
    with only_writer(folder):
        assert lock.read_text() == f"{socket.gethostname()} {os.getpid()}\n"
    assert not lock.exists()


def test_a_writer_gives_signs_of_life(folder, monkeypatch):
    monkeypatch.setattr(locks, "BEAT", 0.01)
    with only_writer(folder):
        lock = lock_of(folder)
        os.utime(lock, (0, 0))
        ends = time.monotonic() + 10
        while lock.stat().st_mtime == 0 and time.monotonic() < ends:
            time.sleep(0.01)
        assert writer_of(folder).age < 60


def test_runs_that_begin_later_are_found(tmp_path):
    begin(tmp_path / "runs" / "a")
    found = Watchlist([tmp_path / "runs"])
    assert [run.name for run in found.refresh()] == ["a"]
    begin(tmp_path / "runs" / "b")
    assert [run.name for run in found.refresh()] == ["a", "b"]
    assert [run.name for run in Watchlist([tmp_path / "runs" / "b"]).refresh()] == ["b"]
    with pytest.raises(RunError, match="is not a folder"):
        Watchlist([tmp_path / "none"])


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("config.json", "{", "not valid JSON"),
        ("config.json", '{"run": {"method": 3}}', "damaged"),
        ("metrics.jsonl", "{}\n", "damaged: 0.round"),
        ("metrics.jsonl", "oops\n", "damaged line"),
        ("ledger.jsonl", '{"direction": "lost"}\n', "damaged"),
    ],
)
def test_a_damaged_file_is_named(folder, file, text, told):
    (folder / file).write_text(text)
    with pytest.raises(RunError, match=told) as error:
        Watched(folder).refresh()
    assert file in str(error.value)


def test_a_view_needs_no_torch_and_writes_nothing(folder):
    append(folder / "metrics.jsonl", line(1))
    before = sorted(folder.parent.rglob("*"))
    code = "import sys; from pathlib import Path; from fedshift.report.watching import Watchlist\n"
    code += "print(Watchlist([Path(sys.argv[1])]).refresh()[0].round, 'torch' in sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["1", "False"]
    assert sorted(folder.parent.rglob("*")) == before
    shutil.rmtree(folder)
