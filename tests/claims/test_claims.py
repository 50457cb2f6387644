"""Claims as data: those of the project can be built, and one of a user's own is run and judged."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from fedshift import build
from fedshift.base.errors import RunError, UnknownNameError
from fedshift.base.registry import Entry
from fedshift.claims.claim import Claim, chosen, read_claims
from fedshift.claims.run import Sides, plan_claims, scenario_of
from fedshift.claims.store import Results, row_of, value
from fedshift.claims.table import judge, markdown
from fedshift.cli import main
from fedshift.core.registry import SCENARIOS
from fedshift.experiment.budget import matched_rounds
from fedshift.experiment.compare import compare
from fedshift.experiment.run import run
from fedshift.testing import tiny_scenario

ROOT = Path(__file__).parents[2]
MINE = """
[[claim]]
name = "mine/bn"
paper = "mine"
says = "FedBN | is better"
method = "fedbn"
control = "fedavg"
scenario = "tiny"
scale = "laptop"
protocol = "personal"
rule = "last"
seeds = 2
set = { rounds = 2 }
"""


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    def made(scale="laptop"):
        return tiny_scenario(rounds=3, scale=scale)

    entry = Entry("tiny", made, "")
    monkeypatch.setitem(SCENARIOS._entries, "tiny", entry)


def called(*words, code=0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == code


def test_a_claim_may_be_about_a_scenario_of_one_scale():
    """As the embedded digits and people's own data are."""
    claim = read_claims()[0].model_copy(update={"scenario": "digits", "set": {"rounds": 7}})
    assert scenario_of(claim).rounds == 7


@pytest.mark.parametrize("claim", read_claims(), ids=lambda c: c.name)
def test_every_claim_names_methods_and_a_scenario_that_exist(claim):
    build(claim.method)
    build(claim.control)
    small = claim.model_copy(update={"scale": "laptop"})
    scenario = scenario_of(small)
    assert claim.protocol in scenario.protocols
    assert (claim.control_protocol or claim.protocol) in scenario.protocols


def test_each_paper_has_one_main_claim_with_five_seeds_and_it_comes_first():
    claims = read_claims()
    main_claims = [c for c in claims if c.main]
    assert claims[: len(main_claims)] == main_claims
    papers = [c.name.split("/")[0] for c in main_claims]
    assert sorted(papers) == ["csac", "f2dc", "fdse", "feddebias", "fedka"]
    assert all(c.seeds >= 5 for c in main_claims)
    assert len(claims) >= 18
    assert all(c.seeds >= 3 or c.exact for c in claims)


def test_a_name_may_be_a_papers_and_an_unknown_one_is_refused():
    claims = read_claims()
    assert {c.name.split("/")[0] for c in chosen(claims, ["fdse"])} == {"fdse"}
    assert [c.name for c in chosen(claims, ["csac/unseen"])] == ["csac/unseen"]
    with pytest.raises(UnknownNameError, match="csac/unseen"):
        chosen(claims, ["csac/unsen"])


def test_a_claim_of_ones_own_is_run_once_and_judged(tmp_path: Path, capsys):
    file, stored = tmp_path / "mine.toml", tmp_path / "found.jsonl"
    file.write_text(MINE)
    options = ["--file", str(file), "--results", str(stored), "--out", str(tmp_path / "runs")]
    called("claims", "run", *options, "--workers", "1", "--quiet")
    first = capsys.readouterr().out
    assert "4 runs to make for 1 claims" in first
    lines = [json.loads(line) for line in stored.read_text().splitlines()]
    rows = [line for line in lines if "run" in line]
    assert [line["claim"] for line in lines if "run" not in line] == ["mine/bn"]
    assert [r["seed"] for r in rows] == [0, 0, 1, 1]  # pairs are complete as early as can be
    assert sorted((r["method"], r["seed"]) for r in rows) == [
        (m, s) for m in ("fedavg", "fedbn") for s in (0, 1)
    ]
    stored.write_text(stored.read_text() + '{"run": "cut sh')  # killed while it wrote
    called("claims", "run", *options, "--workers", "1", "--hours", "1", "--quiet")
    assert "0 runs to make" in capsys.readouterr().out
    called("claims", "table", *options[:4])
    said = capsys.readouterr().out
    by = {(r["method"], r["seed"]): r["scores"]["personal"]["last"]["avg"] for r in rows}
    mean = statistics.fmean(by["fedbn", s] - by["fedavg", s] for s in (0, 1))
    assert f"{mean:+.2f}" in said
    assert "is better" in said
    assert r"FedBN \|" in said
    called("claims", "list", "--file", str(file))
    assert "fedbn against fedavg" in capsys.readouterr().out
    file.write_text(MINE.replace('rule = "last"', 'rule = "validation"'))  # not what was planned
    called("claims", "table", *options[:4])
    assert "not run" in capsys.readouterr().out


def test_runs_of_claims_can_be_printed_and_given_to_a_scheduler(tmp_path: Path, capsys):
    """One command per run that is missing, each to its own directory; nothing is trained."""
    file = tmp_path / "mine.toml"
    file.write_text(MINE)
    words = ["--file", str(file), "--results", str(tmp_path / "r.jsonl"), "--out", str(tmp_path)]
    called("claims", "run", *words, "--print-jobs")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(set(lines)) == 4  # two methods, two seeds
    assert all(line.startswith("fedshift run ") and "--requeue" in line for line in lines)
    assert not list(tmp_path.glob("*/summary.json"))
    called("claims", "run", *words, "--executor", "mainframe", code=2)
    assert "mainframe" in capsys.readouterr().err


def test_a_file_that_holds_no_claims_is_one_line(tmp_path: Path, capsys):
    bad = tmp_path / "bad.toml"
    for text in ("", "claim = 3", "[[claim]]\nname = 'x'", "not toml"):
        bad.write_text(text)
        called("claims", "list", "--file", str(bad), code=2)
        assert str(bad) in "".join(capsys.readouterr().err.split("\n"))
    bad.write_text(MINE + MINE)
    called("claims", "list", "--file", str(bad), code=2)
    assert "two claims are called" in capsys.readouterr().err


def test_what_is_kept_of_a_run_has_every_rule_and_its_numbers():
    result = run("fedavg", tiny_scenario(rounds=3), quiet=True)
    row = row_of(result)
    curve = [v for _, v in result.curve("personal")]
    scores = row["scores"]["personal"]
    assert scores["last"]["avg"] == curve[-1]
    assert scores["oracle"]["avg"] == max(curve)
    assert scores["last5"]["avg"] == pytest.approx(statistics.fmean(curve))
    claim = read_claims()[0].model_copy(update={"metric": "bright", "rule": "last"})
    assert (
        value(row, claim, "personal")
        == result.outcome("personal", "last").metrics.domains["bright"]
    )
    with pytest.raises(RunError, match="which fedavg has not"):
        value(row, claim, "unseen")


def test_a_claim_may_speak_of_an_analysis():
    """The mean of its last five rounds, here of all three."""
    result = run("fedavg", tiny_scenario(rounds=3, analyses=("group-effect",)), quiet=True)
    told = [row["group-effect"]["group_effect_refined"] for row in result.history]
    claim = read_claims()[0].model_copy(update={"metric": "group_effect_refined"})
    assert value(row_of(result), claim, "unseen") == pytest.approx(sum(told) / 3)


def test_the_page_has_the_table_of_the_results_file():
    """Every claim has a row, whose verdict is one of three words."""
    made = subprocess.run([sys.executable, ROOT / "scripts/claims_page.py", "--check"], check=False)
    assert made.returncode == 0, "run python scripts/claims_page.py"
    rows = [r.split(" | ") for r in (ROOT / "docs/claims.md").read_text().split("\n") if " | " in r]
    verdicts = {row[0].removeprefix("| ").split(":")[0]: row[1] for row in rows}
    assert {claim.name for claim in read_claims()} <= verdicts.keys()
    judged = [verdicts[claim.name] for claim in read_claims()]
    assert {*judged} <= {"holds", "does not hold", "undecided"}


def fake(name, avg, parameters=1):
    return {
        "run": name,
        "method": name,
        "scores": {"global": {"last5": {"avg": avg, "domains": {}}}},
        "parameters": parameters,
        "bytes": 1,
        "seconds": 60.0,
    }


def test_differences_are_taken_seed_by_seed_and_the_right_way_round():
    base = {"name": "x", "paper": "p", "says": "s", "method": "fedbn", "control": "fedavg"}
    base |= {"scenario": "tiny", "protocol": "global"}
    more = Claim(**base)
    less = Claim(**base, lower=True)
    half = Claim(**base, metric="parameters", lower=True, share=0.5)
    rows = {f"m{i}": fake(f"m{i}", 70 + i, 40) for i in range(4)}
    rows |= {f"c{i}": fake(f"c{i}", 68 + 1.1 * i, 100) for i in range(3)}
    sides = {"x": Sides({i: f"m{i}" for i in range(4)}, {i: f"c{i}" for i in range(4)})}
    judged = judge([more], sides, rows)[0]
    assert judged.difference.values == pytest.approx((2.0, 1.9, 1.8))
    assert judged.verdict == "holds"
    assert judge([less], sides, rows)[0].verdict == "does not hold"
    exact = judge([half], sides, rows)[0]
    assert exact.difference.values == (10.0, 10.0, 10.0)
    assert exact.verdict == "holds"
    assert "not run" in markdown(judge([more], {}, {}))


def test_equal_steps_gives_fedavg_the_steps_of_csacs_acquisition():
    scenario = tiny_scenario(rounds=5, equal="steps")
    found = matched_rounds(["csac[acquisition=4]", "fedavg"], scenario)
    assert found == {"csac[acquisition=4]": 5, "fedavg": 5 + 3}
    assert matched_rounds(["fedavg", "fedprox"], scenario) == {"fedavg": 5, "fedprox": 5}


def test_equal_bytes_gives_fedavg_the_bytes_of_scaffolds_variates():
    scenario = tiny_scenario(rounds=6, equal="bytes")
    found = matched_rounds(["scaffold", "fedavg"], scenario)
    assert found["scaffold"] == 6
    assert 9 <= found["fedavg"] <= 12  # twice the weights both ways, less what is not trained


def test_compare_at_equal_steps_is_one_table_with_other_rounds():
    scenario = tiny_scenario(rounds=2, equal="steps")
    found = compare(["csac[acquisition=4]", "fedavg"], scenario, workers=1, quiet=True)
    assert [r.summary["rounds"] for r in found.results] == [2, 5]
    assert len(found.scenarios) == 1
    assert "equal=steps" in found.scenarios[0]
    assert "rounds" not in found.scenarios[0]


def test_a_control_may_have_other_values_of_the_scenario(tmp_path):
    claim = Claim(
        name="x/y",
        paper="p",
        says="s",
        method="fedavg",
        control="fedavg",
        scenario="tiny",
        scale="laptop",
        protocol="global",
        control_set={"rounds": 7},
    )
    todo = plan_claims([claim], Results.open(tmp_path / "r.jsonl"), tmp_path)
    assert sorted({job.config.scenario.rounds for job in todo.jobs}) == [3, 7]
