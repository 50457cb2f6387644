from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fedshift.base.errors import RunError
from fedshift.base.locks import only_writer
from fedshift.base.tensor_files import read_tensors
from fedshift.core.config import configure
from fedshift.core.state import DiskStore, MemoryStore
from fedshift.experiment import compare as comparing
from fedshift.experiment.compare import compare
from fedshift.experiment.run import execute, run
from fedshift.experiment.session import Options, prepare
from fedshift.report.load import load_run
from fedshift.runs.record import read_lines
from fedshift.testing import tiny_scenario


def timeless(rows: list[dict]) -> list[dict]:
    return [{k: v for k, v in r.items() if "seconds" not in k} for r in rows]


def test_a_run_directory_holds_all_that_a_report_needs(tmp_path: Path):
    result = run("scaffold", tiny_scenario(), out=tmp_path / "r", rounds=2)
    names = {p.name for p in (tmp_path / "r").iterdir()}
    assert names == {
        "config.json",
        "experiment.toml",
        "metrics.jsonl",
        "ledger.jsonl",
        "preparation.json",
        "predictions.safetensors",
        "summary.json",
        "weights.safetensors",
        "best",
        "best.safetensors",
        "checkpoints",
    }
    again = load_run(tmp_path / "r")
    assert again.summary == result.summary
    assert again.history == result.history
    assert again.config == result.config


def test_the_ledger_weighs_what_crossed_the_wire(tmp_path: Path):
    run("scaffold", tiny_scenario(), out=tmp_path / "r", rounds=2)
    rows = [r for r in read_lines(tmp_path / "r" / "ledger.jsonl") if r["task"] == "train"]
    assert len(rows) == 2 * 2 * 4  # rounds x directions x clients
    shared = read_tensors(tmp_path / "r" / "weights.safetensors")[0]
    model = sum(v.numel() * v.element_size() for v in shared.values())
    weights = sum(
        4 * v.numel() for k, v in shared.items() if "running" not in k and "num_" not in k
    )
    for row in rows:
        assert row["kinds"]["shared"] == model
        assert row["kinds"]["payload/control-variates"] == weights
        assert row["bytes"] == sum(row["kinds"].values())


def test_the_same_content_has_the_same_name_and_other_content_another():
    a = run("fedprox", tiny_scenario(), rounds=1).config
    b = run("fedprox[mu=0.01]", tiny_scenario(), rounds=1).config
    c = run("fedprox[mu=0.02]", tiny_scenario(), rounds=1).config
    assert a.fingerprint == b.fingerprint  # 0.01 is the default
    assert a.fingerprint != c.fingerprint
    assert a.fingerprint != run("fedprox", tiny_scenario(), rounds=1, seed=1).config.fingerprint


def test_a_finished_run_is_read_not_played(tmp_path: Path):
    first = run("fedavg", tiny_scenario(), out=tmp_path / "r", rounds=1)
    stamp = (tmp_path / "r" / "summary.json").stat().st_mtime_ns
    second = run("fedavg", tiny_scenario(), out=tmp_path / "r", rounds=1)
    assert second.summary == first.summary
    assert (tmp_path / "r" / "summary.json").stat().st_mtime_ns == stamp


def test_an_unfinished_run_asks_for_resume(tmp_path: Path):
    run("fedavg", tiny_scenario(), out=tmp_path / "r", rounds=1)
    (tmp_path / "r" / "summary.json").unlink()
    with pytest.raises(
        RunError, match="unfinished after round 1 of 1; continue it with resume=True"
    ):
        run("fedavg", tiny_scenario(), out=tmp_path / "r", rounds=1)


def test_a_torn_line_is_dropped_and_the_round_played_again(tmp_path: Path):
    whole = run("fedbn", tiny_scenario(), out=tmp_path / "whole")
    run("fedbn", tiny_scenario(), out=tmp_path / "torn")
    (tmp_path / "torn" / "summary.json").unlink()
    with (tmp_path / "torn" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "losses": {"ta')
    resumed = run("fedbn", tiny_scenario(), out=tmp_path / "torn", resume=True)
    assert timeless(resumed.history) == timeless(whole.history)


@pytest.mark.parametrize("store", ["memory", "disk"])
def test_a_lost_round_never_shows_in_a_clients_state(store: str, tmp_path: Path):
    kept = MemoryStore() if store == "memory" else DiskStore(tmp_path)
    for round_ in (1, 3, 4):
        kept.save("c", round_, {"part": {"a/b": torch.tensor(float(round_))}})
    assert kept.load("c", before=5)["part"]["a/b"] == 4
    assert kept.load("c", before=4)["part"]["a/b"] == 3  # round 4 was lost
    assert kept.load("never seen", before=9) == {}


def test_the_disk_keeps_two_versions_per_client_and_nothing_for_the_stateless(tmp_path: Path):
    store = DiskStore(tmp_path)
    for round_ in range(1, 9):
        store.save("c", round_, {"part": {"x": torch.zeros(2)}})
        store.save("stateless", round_, {})
    assert sorted(p.name for p in tmp_path.rglob("*.safetensors")) == [
        "7.safetensors",
        "8.safetensors",
    ]


@pytest.mark.exhaustive  # a sample of chaos shows it too
def test_a_process_killed_at_any_moment_resumes_to_the_same_bits(tmp_path: Path):
    code = (
        "import sys; from fedshift import run; from fedshift.testing import "
        "tiny_scenario; run('ditto', tiny_scenario(rounds=16), out=sys.argv[1], resume=True)"
    )
    command = [sys.executable, "-c", code]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*command, str(whole)], check=True, timeout=120)
    kills = 0
    while kills < 2:
        process = subprocess.Popen([*command, str(killed)])
        target = 4 * (kills + 1)
        while len(read_lines(killed / "metrics.jsonl")) < target and process.poll() is None:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert not (killed / "summary.json").exists()
    subprocess.run([*command, str(killed)], check=True, timeout=120)
    a, b = load_run(whole), load_run(killed)
    assert timeless(a.history) == timeless(b.history)
    for name in ("weights.safetensors", "best.safetensors"):
        left, right = read_tensors(whole / name), read_tensors(killed / name)
        assert left[1] == right[1]
        assert all(torch.equal(left[0][k], right[0][k]) for k in left[0] | right[0])
    ledgers = [(p / "ledger.jsonl").read_text() for p in (whole, killed)]
    assert ledgers[0] == ledgers[1]


def test_compare_skips_what_is_done_and_gives_the_same_side_by_side(tmp_path: Path):
    scenario = tiny_scenario(rounds=1)
    alone = compare(["fedavg", "fedbn"], [scenario], seeds=[0, 1], workers=1)
    first = compare(["fedavg"], [scenario], seeds=[0, 1], out=tmp_path, workers=1)
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/summary.json")}
    both = compare(["fedavg", "fedbn"], [scenario], seeds=[0, 1], out=tmp_path, workers=1)
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in stamps.items())
    assert len(first.results) == 2
    assert [r.config.name for r in both.results] == [r.config.name for r in alone.results]
    for a, b in zip(alone.results, both.results, strict=True):
        assert timeless(a.history) == timeless(b.history)


def test_a_run_that_diverges_does_not_end_a_comparison(tmp_path: Path):
    scenario = tiny_scenario(rounds=2)
    found = compare(["fedprox[mu=1e30]", "fedavg"], [scenario], seeds=[0], out=tmp_path, workers=1)
    assert [r.label for r in found.results] == ["fedavg"]
    assert "loss term" in found.failures[0].reason or "not finite" in found.failures[0].reason


def test_config_json_replays_the_run(tmp_path: Path):
    run("fedprox", tiny_scenario(), settings={"mu": 0.3}, out=tmp_path / "r", rounds=1)
    stored = json.loads((tmp_path / "r" / "config.json").read_text())
    config = load_run(tmp_path / "r").config
    assert stored["name"] == config.name
    assert config.build().parts[0].mu == 0.3
    assert {"torch", "threads"} <= stored["environment"].keys()
    assert stored["environment"]["threads"] == 1


def test_a_folder_has_one_writer_at_a_time(tmp_path: Path):
    with (
        only_writer(tmp_path / "run"),
        pytest.raises(RunError, match=r"another process is writing .*run; wait"),
    ):
        run("fedavg", tiny_scenario(rounds=1), out=tmp_path / "run")
    run("fedavg", tiny_scenario(rounds=1), out=tmp_path / "run")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_personal_entries_are_on_disk_and_a_torn_round_does_not_reach_the_next(tmp_path: Path):
    config, whole = configure("fdse", tiny_scenario(rounds=2))
    session = prepare(config, whole, tmp_path / "r")
    session.advance()
    client = min(session.server.roster)
    first = session.server.personal_of(client)
    files = sorted((tmp_path / "r" / "checkpoints" / "personal" / client).iterdir())
    assert [f.name for f in files] == ["1.safetensors"]
    torn = {k: v + 1.0 for k, v in first.items()}
    session.server.personal.save(client, 2, {"net": torn})  # and then the process was killed
    again = prepare(config, whole, tmp_path / "r", Options(resume=True))
    again.server.round = 2  # as at the start of round 2
    messages = again.server.broadcast("train", client)
    assert messages.personal.keys() == first.keys()
    assert all(torch.equal(messages.personal[k], v) for k, v in first.items())


def test_the_roster_is_written_when_it_changes_and_comes_back(tmp_path: Path):
    config, whole = configure("fedavg", tiny_scenario(rounds=3))
    session = prepare(config, whole, tmp_path / "r")
    session.advance()
    roster = tmp_path / "r" / "checkpoints" / "roster.json"
    written = roster.stat().st_mtime_ns
    session.advance()
    assert roster.stat().st_mtime_ns == written
    again = prepare(config, whole, tmp_path / "r", Options(resume=True))
    assert again.server.roster == session.server.roster


def test_a_single_run_of_a_comparison_gets_all_workers_and_several_get_one_each(monkeypatch):
    seen = []
    monkeypatch.setattr(
        comparing, "execute", lambda *args: (seen.append(args[3]), execute(*args[:3]))[1]
    )
    compare(["fedavg"], [tiny_scenario(rounds=1)], workers=3)
    assert [(o.transport, o.workers) for o in seen] == [("auto", 3)]
    seen.clear()
    compare(["fedavg", "fedbn"], [tiny_scenario(rounds=1)], workers=1)
    assert [(o.transport, o.workers) for o in seen] == [("auto", 1)] * 2
