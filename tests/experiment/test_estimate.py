"""What a dry run says: exact where it can be known, nothing written, and time left as rounds go."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from fedshift.base.registry import Entry
from fedshift.cli import main
from fedshift.core.registry import SCENARIOS
from fedshift.experiment import estimate as estimating
from fedshift.experiment import listener
from fedshift.experiment.estimate import estimate
from fedshift.experiment.identity import configure_run
from fedshift.experiment.run import run
from fedshift.testing import tiny_scenario


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    made = tiny_scenario(rounds=5, evaluate_every=2)
    monkeypatch.setitem(SCENARIOS._entries, "tiny", Entry("tiny", lambda: made, ""))


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "scaffold"])
def test_bytes_are_those_of_the_run(method):
    scenario = tiny_scenario(rounds=5, evaluate_every=2)
    guess = estimate(*configure_run(method, scenario))
    real = run(method, scenario, quiet=True).summary
    assert guess.down == real["bytes"]["total"]["down"]
    assert guess.up == pytest.approx(real["bytes"]["total"]["up"], rel=3e-3)  # scores are text
    assert (guess.rounds, guess.clients) == (5, 4)
    assert guess.seconds > 0
    assert guess.memory > 10e6


def test_disk_is_of_the_size_of_the_run_directory(tmp_path: Path):
    scenario = tiny_scenario(rounds=5)
    guess = estimate(*configure_run("fedbn", scenario)).disk
    run("fedbn", scenario, out=tmp_path / "r", quiet=True)
    found = {p.stat().st_ino: p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()}
    assert 0.5 < guess / sum(found.values()) < 2


def test_long_rounds_are_timed_by_two_short_ones(monkeypatch):
    times = {4: 1.0, 12: 3.0}  # seconds of a short round by its local steps

    def warm_up(config, method, steps=None):
        return None, {"seconds": times[steps], "seconds_scoring": 0.5}

    monkeypatch.setattr(estimating, "_warm_up", warm_up)
    monkeypatch.setattr(estimating, "_steps", lambda config: (4000.0, 40.0))
    config, method = configure_run("fedavg", tiny_scenario())
    _, training, scoring = estimating._timed(config, method)
    assert (training, scoring) == (1.0 + 0.25 * 36, 0.5)


def test_a_dry_run_writes_nothing_and_counts_what_is_done(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def fedshift(*words: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main(list(words))
        told = capsys.readouterr()
        assert (stop.value.code or 0) == 0, told.err
        return told.out

    told = fedshift("run", "--method", "fedavg", "--scenario", "tiny", "--dry-run")
    assert "nothing was written" in told
    assert max(map(len, told.splitlines())) <= 80
    words = ["compare", "--method", "fedavg,fedbn", "--scenario", "tiny", "--seeds", "2"]
    told = json.loads(fedshift(*words, "--workers", "1", "--dry-run", "--json"))
    assert [(row["method"], row["runs"]) for row in told["runs"]] == [("fedavg", 2), ("fedbn", 2)]
    assert told["seconds"] == pytest.approx(sum(2 * row["seconds"] for row in told["runs"]))
    assert list(tmp_path.iterdir()) == []
    config, _ = configure_run("fedavg", tiny_scenario(rounds=5, evaluate_every=2))
    run("fedavg", "tiny", out=tmp_path / "runs" / config.name, quiet=True)
    again = json.loads(fedshift(*words, "--dry-run", "--json"))
    assert [row["runs"] for row in again["runs"]] == [1, 2]


def test_the_time_left_follows_from_the_rounds_of_this_process(monkeypatch, caplog):
    now = iter([0.0, 100.0, 130.0, 160.0])
    monkeypatch.setattr(listener.time, "monotonic", lambda: next(now))
    clock = listener.Clock()
    clock.start(4)  # resumed: rounds 1 to 3 took no time here
    assert clock.left(4, 10) == "about 3 min left"  # 30 s a round, six to go
    assert clock.left(5, 10) == "about 2 min left"  # 60 s for two
    monkeypatch.undo()
    with caplog.at_level(logging.INFO, logger="fedshift"):
        run("fedavg", tiny_scenario(rounds=5), listener=listener.LogListener())
    lines = [r.message for r in caplog.records if "round" in r.message and "of 5" in r.message]
    assert [" left" in line for line in lines] == [True] * 4 + [False]
