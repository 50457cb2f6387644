"""The committed table of the laptop scale: each scenario learns something, or says why not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from fedshift.claims.store import Results
from fedshift.data.federation import Splits
from fedshift.data.samples import Samples
from fedshift.experiment.scenario import find_scenario

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("quick_look", ROOT / "benchmarks" / "scenarios.py")
assert spec is not None
assert spec.loader is not None
quick_look = importlib.util.module_from_spec(spec)
spec.loader.exec_module(quick_look)
LINES = quick_look.TABLE.read_text().splitlines()
HEADS = [head.strip() for head in LINES[0].strip("|").split("|")]
TABLE = [
    dict(zip(HEADS, (cell.strip() for cell in line[1:-1].split("|")), strict=True))
    for line in LINES[2:]
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["scenario"])
def test_a_quick_look_ends_five_points_above_chance_or_its_row_says_why_not(row):
    above = float(row["accuracy"].split()[0]) - float(row["chance"])
    assert above >= 5 or row["note"].startswith("within 5 points of chance: ")
    assert 0 < float(row["minutes"]) <= 4


def test_the_table_is_that_of_the_runs_at_the_scenarios_present_values():
    assert quick_look.table(Results.open(quick_look.STORE)) == quick_look.TABLE.read_text()


def made(name: str, accuracy: float, seed: int = 0) -> dict:
    """A kept run whose best constant answer has 20 per cent."""
    scenario = find_scenario(name)
    score = {"avg": accuracy, "domains": dict.fromkeys(scenario.domains, accuracy)}
    scores = {scenario.protocols[0]: {scenario.selection: score}}
    row = {"run": f"r{seed}", "scenario": name, "seed": seed, "changed": scenario.changed}
    return row | {"scores": scores, "chance": 20.0, "minutes": 1.25}


def test_a_row_near_chance_is_marked_and_has_its_reason(monkeypatch):
    assert quick_look.line("fdse/pacs", [made("fdse/pacs", 25.0)]).endswith("| 1 | 1.2 |  |\n")
    near = [made("fdse/pacs", 24.0), made("fdse/pacs", 25.0, 1)]
    told = quick_look.line("fdse/pacs", near)
    assert "| 24.5 (24.0, 25.0) |" in told
    assert told.endswith("| within 5 points of chance |\n")
    monkeypatch.setitem(quick_look.REASONS, "fdse/*", "few images")
    assert "within 5 points of chance: few images" in quick_look.line("fdse/pacs", near)


def test_a_run_at_other_values_is_not_in_the_table(tmp_path):
    row = made("fdse/pacs", 50.0)
    old = row | {"run": "old", "changed": "rounds 500 -> 12"}
    store = Results(tmp_path / "r.jsonl", {"old": old, "r0": row})
    assert quick_look.table(store) == quick_look.HEAD + quick_look.line("fdse/pacs", [row])
    assert quick_look.table(Results(tmp_path / "r.jsonl", {"old": old})) == quick_look.HEAD


def test_chance_is_the_best_constant_answer_of_the_test_samples():
    def domain(*test: int) -> Splits:
        y = torch.tensor([2, 2, 2, 2, *test])
        parts = ([0, 1], [2], range(4, len(y)))
        return Splits(*(Samples(torch.zeros(len(y), 1), y, torch.tensor(rows)) for rows in parts))

    scored = [domain(0, 0, 0, 1), domain(1, 1, 2, 0, 0)]  # 0: 3/4 and 2/5; 1: 1/4 and 2/5
    assert quick_look.constant(scored, own=True) == pytest.approx((3 / 4 + 2 / 5) / 2)
    assert quick_look.constant(scored, own=False) == pytest.approx((3 / 4 + 2 / 5) / 2)
    scored[1] = domain(1, 1, 2, 2, 2)  # 0: 3/4 and 0; 1: 1/4 and 2/5; 2: 0 and 3/5
    assert quick_look.constant(scored, own=True) == pytest.approx((3 / 4 + 3 / 5) / 2)
    assert quick_look.constant(scored, own=False) == pytest.approx(3 / 8)
