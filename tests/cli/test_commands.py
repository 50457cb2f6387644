"""The commands as a script uses them: what is on standard output, what is on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedshift.base.registry import Entry
from fedshift.cli import main
from fedshift.cli.commands import split_methods
from fedshift.core.registry import SCENARIOS
from fedshift.testing import tiny_scenario


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    made = tiny_scenario(rounds=2)
    monkeypatch.setitem(SCENARIOS._entries, "tiny", Entry("tiny", lambda: made, ""))


@pytest.fixture
def fedshift(capsys):
    def command(*args: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main(list(args))
        told = capsys.readouterr()
        assert stop.value.code in (0, None), told.err
        return told.out

    return command


@pytest.fixture
def runs(fedshift, tmp_path: Path) -> Path:
    out = tmp_path / "runs"
    fedshift(
        *("compare", "--method", "fedavg,fedprox[mu=0.1, lr=1]", "--scenario", "tiny"),
        *("--seeds", "2", "--workers", "1", "--quiet", "--out", str(out)),
    )
    return out


def test_run_as_json_is_the_summary_and_resume_reads_it_again(fedshift, tmp_path: Path):
    out = tmp_path / "run"
    args = ["run", "--method", "fedbn", "--scenario", "tiny", "--out", str(out), "--json"]
    first = json.loads(fedshift(*args))
    assert first["method"] == "fedbn"
    assert set(first["protocols"]) == {
        "personal"
    }  # BatchNorm is private and private_at_new_site is refuse
    again = json.loads(fedshift("run", "--resume", "--out", str(out), "--json"))
    assert again == first
    assert json.loads(fedshift("show", str(out), "--json")) == {
        k: v for k, v in first.items() if k != "path"
    }


def test_settings_reach_method_scenario_backbone_and_partition(fedshift, tmp_path: Path):
    out = tmp_path / "run"
    fedshift(
        *("run", "--method", "fedprox", "--scenario", "tiny", "--out", str(out), "--quiet"),
        *("--set", "mu=0.3", "--set", "scenario.lr=0.01", "--set", "backbone.width=2"),
        *("--set", "scenario.partition.clients_per_domain=1", "--set", "scenario.clip=none"),
        *("--clients-per-round", "1", "--rounds", "1", "--seed", "3"),
        *("--set", "scenario.protocols=global,unseen"),
    )
    config = json.loads((out / "config.json").read_text())["run"]
    assert config["composition"]["parts"] == [{"name": "proximal", "mu": 0.3}]
    scenario = config["scenario"]
    assert (scenario["lr"], scenario["rounds"], scenario["clients_per_round"]) == (0.01, 1, 1)
    assert scenario["protocols"] == ["global", "unseen"]
    assert scenario["backbone_options"] == {"width": 2}
    assert scenario["partition"]["clients_per_domain"] == 1
    assert config["seed"] == 3


def test_compare_writes_a_page_and_its_runs_can_be_shown(fedshift, runs: Path):
    assert (runs / "report.html").exists()
    assert len(list(runs.glob("*/summary.json"))) == 4
    table = fedshift("show", str(runs))  # labels may be folded at the width of the screen
    assert "fedavg" in table
    assert "fedprox" in table
    assert len(json.loads(fedshift("show", str(runs), "--json"))) == 4


@pytest.mark.parametrize(
    ("form", "sign"), [("markdown", "| method"), ("latex", r"\toprule"), ("csv", "run,method")]
)
def test_reports_in_every_form(fedshift, runs: Path, tmp_path: Path, form, sign):
    assert sign in fedshift("report", str(runs), "--format", form)
    target = tmp_path / "table.txt"
    fedshift("report", str(runs), "--format", form, "--out", str(target))
    assert sign in target.read_text()


def test_the_page_can_be_made_again(fedshift, runs: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    fedshift("report", str(runs), "--out", str(page))
    assert "<table" in page.read_text()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("parts", "control-variates"),
        ("scenarios", "f2dc/pacs"),
        ("backbones", "resnet10"),
        ("datasets", "pacs"),
    ],
)
def test_lists_have_one_line_each(fedshift, kind, name):
    """Methods have headings besides: test_show_method.py."""
    lines = fedshift("list", kind).splitlines()
    assert sum(line.startswith(name + " ") for line in lines) == 1
    assert len(json.loads(fedshift("list", kind, "--json"))) == len(lines)


def test_a_partition_is_a_table_and_a_picture(fedshift, tmp_path: Path):
    out = fedshift("partition", "tiny", "--plot", str(tmp_path / "who.png"))
    assert "dark-1" in out
    assert (tmp_path / "who.png").stat().st_size > 1000


def test_version(fedshift):
    assert fedshift("--version").startswith("fedshift ")


def test_commas_separate_methods_except_in_brackets():
    assert split_methods(["a,b[x=1,y=2] + c", "d"]) == ["a", "b[x=1,y=2] + c", "d"]
