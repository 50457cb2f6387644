"""``fedshift watch``: one frame of runs as they go."""

from __future__ import annotations

import json

import pytest

from fedshift.base.locks import lock_of
from fedshift.cli import main


def line(round_: int, waited: dict) -> str:
    value = 20.0 + round_
    one = dict.fromkeys(("avg", "std", "all", "worst", "loss"), value)
    one |= {"domains": {"dark": value - 7, "bright\x1b[2J": value + 7}, "clients": {}}
    row = {"round": round_, "losses": {"task": 0.75, "proximal": 0.031}, "seconds": 40.0}
    scores = {"personal": {"val": one | {"avg": 33.3}, "test": one}}
    return json.dumps(row | {"scores": scores, "seconds_waited": waited}) + "\n"


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    held = {"method": "fedprox", "settings": {"mu": 0.1}, "scenario": {"name": "x", "rounds": 10}}
    (folder / "config.json").write_text(json.dumps({"run": held}))
    (folder / "metrics.jsonl").write_text(line(1, {"va": 1.0, "nh": 1.0, "slow-one": 38.0}))
    lost = {"round": 1, "task": "train", "client": "gone", "direction": "lost", "bytes": 0}
    (folder / "ledger.jsonl").write_text(
        json.dumps(lost | {"kinds": {}, "reason": "no reply"}) + "\n"
    )
    return tmp_path / "runs"


def watched(capsys, *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main(["watch", *words])
    told = capsys.readouterr()
    return stop.value.code or 0, told.out + told.err


def test_a_frame_has_rounds_time_losses_scores_by_domain_slow_and_lost_sites(
    runs, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "160")
    lock_of(runs / "a").write_text("elsewhere 1\n")  # somebody writes it on another machine
    code, told = watched(capsys, str(runs), "--once")
    assert code == 0
    words = ("fedprox, mu=0.1", "running", "1/10", "40 s", "6 min", "task 0.75", "proximal 0.031")
    words += (
        "14.0",
        "28.0",
        "21.0",
        "33.3",
        "slow site slow-one",
        "lost 1 times: gone",
        "no reply",
    )
    assert [word for word in words if word not in told] == []
    assert "\x1b[2J" not in told  # a name from a file cannot clear the screen


def test_the_same_as_json_and_what_is_no_folder_is_one_line(runs, capsys):
    code, told = watched(capsys, str(runs / "a"), "--json")
    (found,) = json.loads(told)
    assert code == 0
    assert (found["state"], found["round"], found["rounds"]) == ("stopped", 1, 10)
    assert found["slow"] == {"slow-one": 38.0}
    assert found["lost"][0]["client"] == "gone"
    code, told = watched(capsys, str(runs / "none"), "--once")
    assert (code, told.count("\n")) == (2, 1)
    (runs / "a" / "metrics.jsonl").write_text("oops\n")
    code, told = watched(capsys, str(runs), "--once", "--every", "2")
    assert code == 0
    assert "damaged line" in told
