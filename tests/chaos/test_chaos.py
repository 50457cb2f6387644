"""A short sample of ``make chaos``, and whether its judge would notice a broken promise."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import chaos_results
import pytest
from chaos_campaign import campaign, table
from chaos_cases import FAMILIES, TRANSPORTS, harm

from fedshift.experiment.run import run
from fedshift.testing import tiny_scenario

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "chaos.py"
SAMPLE = [
    *("kills/inprocess/2", "kills/pool/0", "kills/wire/1", "kills/flower/1"),
    "damage/inprocess/4",
]
SMALL = {"rounds": 2, "epochs": None, "steps": 1, "protocols": ("personal",), "unseen": None}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and looks into /proc")
@pytest.mark.timeout(600)
def test_a_sample_of_chaos_breaks_no_promise(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, *SAMPLE, "--methods", "scaffold,local-dp", "--out", tmp_path],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(x) for x in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row["case"] for row in rows] == SAMPLE
    assert sum(row["kills"] for row in rows) >= 3  # those that depend on no clock
    assert "| all | 5 |" in (tmp_path / "results.md").read_text()


def test_a_campaign_has_every_family_on_every_transport():
    cases = campaign(0.1, list(FAMILIES))
    assert {tuple(case.split("/")[:2]) for case in cases} == {
        (family, transport) for family in FAMILIES for transport in TRANSPORTS
    }
    assert len(cases) == len(set(cases))
    assert "| pool | 0 |" in table([], 0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of the same seed, and one of another."""
    root = tmp_path_factory.mktemp("runs")
    for name, seed in (("a", 0), ("b", 0), ("other", 1)):
        run("local-dp", tiny_scenario(**SMALL), out=root / name, seed=seed, quiet=True)
    return root


def test_the_judge_finds_another_result(runs):
    assert chaos_results.differences(runs / "a", runs / "b", untroubled=True) == []
    odd = chaos_results.differences(runs / "a", runs / "other", untroubled=True)
    assert any(name.startswith("weights.safetensors") for name in odd)
    assert any(name.startswith("metrics.0") for name in odd)


def test_the_judge_finds_a_line_too_many_and_a_file_too_few(runs, tmp_path):
    copy = shutil.copytree(runs / "a", tmp_path / "copy")
    ledger = copy / "ledger.jsonl"
    ledger.write_text(ledger.read_text() + ledger.read_text().splitlines(keepends=True)[-1])
    odd = chaos_results.differences(runs / "a", copy, untroubled=True)
    assert [name.partition(":")[0] for name in odd] == ["ledger"]
    assert chaos_results.differences(runs / "a", copy, untroubled=False) == []
    (copy / "metrics.jsonl").unlink()
    assert "cannot be read" in chaos_results.differences(runs / "a", copy, untroubled=True)[0]


def test_the_judge_counts_requests(runs):
    asked = ["train", "1", "dark-0"]
    assert chaos_results.undercounted(runs / "a", [asked] * 2) == []
    assert chaos_results.undercounted(runs / "a", [asked] * 3) == ["dark-0"]


def test_the_judge_reads_the_ledger_against_what_happened(runs):
    lost = ["lost", "1", "train", "dark-0", "drop-reply"]
    assert chaos_results.untold(runs / "a", []) == []
    assert chaos_results.untold(runs / "a", [lost]) == [("1", "train", "dark-0")]


@pytest.mark.parametrize("how", ["delete", "empty", "cut", "line", "flip"])
def test_damage_is_done_and_is_the_same_for_the_same_seed(tmp_path, how):
    def damaged(seed):
        file = tmp_path / "file"
        file.write_bytes(b"one\ntwo\nthree\n")
        assert harm(file, how, random.Random(seed))
        return file.read_bytes() if file.exists() else None

    assert damaged(3) == damaged(3) != b"one\ntwo\nthree\n"
