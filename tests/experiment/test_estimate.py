"""What a dry run says: exact where it can be known, nothing written, and time left as rounds go."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedshift.base.registry import Entry
from fedshift.cli import main
from fedshift.core.registry import SCENARIOS
from fedshift.engine.federation import federate
from fedshift.experiment import estimate as estimating
from fedshift.experiment import listener
from fedshift.experiment.estimate import estimate
from fedshift.experiment.identity import configure_run
from fedshift.experiment.run import run
from fedshift.report.load import load
from fedshift.report.tables import size
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
    # A message names the rounds of earlier visits, whose digits are counted.
    assert guess.down == pytest.approx(real["bytes"]["total"]["down"], rel=3e-4)
    assert guess.up == pytest.approx(real["bytes"]["total"]["up"], rel=3e-3)  # scores are text
    assert (guess.rounds, guess.clients) == (5, 4)
    batches = sum(-(-len(s.data.train) // 4) for s in federate(scenario, 0).sites.values())
    assert guess.steps == 5 * 2 * batches  # rounds, epochs
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
        return None, times[steps], 0.5

    monkeypatch.setattr(estimating, "_warm_up", warm_up)
    monkeypatch.setattr(estimating, "local_steps", lambda *_: (4000.0, 40.0))
    config, method = configure_run("fedavg", tiny_scenario())
    _, training, scoring = estimating._timed(config, method)
    assert (training, scoring) == (1.0 + 0.25 * 36, 0.5)


def test_a_first_round_that_is_longer_counts_once(monkeypatch):
    """9 s, then 1 s each: five rounds are 13 s, not 45."""
    rows = iter([{"seconds": 9.0}, {"seconds": 1.0, "seconds_scoring": 0.5}])
    played = SimpleNamespace(
        advance=lambda: next(rows), transport=SimpleNamespace(close=lambda: None)
    )
    monkeypatch.setattr(estimating, "prepare", lambda *_: played)
    config, method = configure_run("csac", tiny_scenario(rounds=5))
    _, training, scoring = estimating._warm_up(config, method)
    assert (5 * training, scoring) == (pytest.approx(13.0), 0.5)


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


def typed(capsys, *words: str) -> str:
    """What a command tells on the error stream, where progress is."""
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    told = capsys.readouterr()
    assert (stop.value.code or 0) == 0, told.err
    return told.err


def test_a_short_run_says_after_its_first_scored_round_what_it_takes_in_all(tmp_path, capsys):
    words = ["run", "--method", "fedavg", "--scenario", "tiny", "--workers", "1"]
    told = typed(capsys, *words, "--out", str(tmp_path / "r"))
    lines = [line for line in told.splitlines() if "of memory" in line]
    (line,) = lines
    assert line.startswith("fedavg · tiny · seed 0: about ")
    down = json.loads((tmp_path / "r" / "summary.json").read_text())["bytes"]["total"]["down"]
    assert f"{size(down)} down" in line
    assert "on disk" in line
    assert told.index("round 2/5") < told.index(line) < told.index("round 3/5")  # scored
    assert "of memory" not in typed(capsys, *words, "--out", str(tmp_path / "q"), "--quiet")


def test_a_long_run_is_timed_before_it_begins_and_keeps_its_bits(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(estimating, "SHARE", 0.2)  # one round of five
    words = ["run", "--method", "fedbn", "--scenario", "tiny", "--workers", "1"]
    told = typed(capsys, *words, "--out", str(tmp_path / "r"))
    assert "in all: about" in told
    assert told.index("in all: about") < told.index("round 1/5")
    assert "nothing was written" not in told
    plain = run("fedbn", "tiny", quiet=True)
    found = load(tmp_path / "r")
    assert [row["losses"] for row in found.history] == [row["losses"] for row in plain.history]
    assert found.curve("personal") == plain.curve("personal")


def test_a_comparison_says_how_long_all_runs_take(tmp_path, capsys, monkeypatch):
    words = ["compare", "--method", "fedavg", "--scenario", "tiny", "--workers", "1"]
    told = typed(capsys, *words, "--out", str(tmp_path / "runs"), "--seeds", "2")
    assert "1 of 2 runs are done, about" in told
    assert "in all: about" not in told  # two runs of five rounds: a warm-up would cost a tenth
    monkeypatch.setattr(estimating, "SHARE", 0.2)
    more = typed(capsys, *words, "--out", str(tmp_path / "runs"), "--seeds", "3")
    assert "in all: about" in more  # one run is left
    assert "runs are done" not in more


def test_a_warm_up_must_cost_at_most_a_fiftieth():
    config, _ = configure_run("fedavg", tiny_scenario(rounds=25))
    assert not estimating.worth_a_warm_up(config)
    assert estimating.worth_a_warm_up(config, runs=2)
