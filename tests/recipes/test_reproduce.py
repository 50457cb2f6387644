"""``fedshift reproduce``: a recipe of one's own is planned, run once, shown, and refused if bad."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from scipy import stats

from fedshift.base.registry import Entry
from fedshift.claims.claim import Claim
from fedshift.claims.run import plan_claims
from fedshift.claims.store import Results
from fedshift.cli import main
from fedshift.core.registry import SCENARIOS
from fedshift.engine.federation import federate
from fedshift.recipes.figure import draw
from fedshift.recipes.forecast import forecast, missing_data, together
from fedshift.recipes.formats import FORMATS
from fedshift.recipes.plan import keep, kept_plan, left_to_run, plan_recipe
from fedshift.recipes.read import find_recipes, read_recipe
from fedshift.recipes.recipe import Recipe, RecipeColumn, changes_of
from fedshift.recipes.table import CROSS, DASH, fill, number_of
from fedshift.testing import tiny_scenario

MINE = """
name = "mine/table1"
paper = "Mine <b>, Table 1"
caption = "Accuracy | of 5% & more_"
protocol = "personal"
rule = "last"
seeds = 2

[[column]]
name = "AVG"
scenario = "tiny"
set = { rounds = 2 }

[[column]]
name = "dark"
scenario = "tiny"
set = { rounds = 2 }
metric = "dark"

[[column]]
name = "both"
mean_of = ["AVG", "dark"]

[[row]]
name = "Fed_Avg"
method = "fedavg"
published = [86.26, "-"]
spread = [2.5]

[[row]]
name = "<i>Other</i>"
why = "not | implemented"
published = [50]

[[sweep]]
method = "fedprox"
over = { mu = [0.1] }
"""


@pytest.fixture(scope="module", autouse=True)
def _tiny():
    with pytest.MonkeyPatch.context() as patch:
        entry = Entry("tiny", lambda scale="laptop": tiny_scenario(rounds=3, scale=scale), "")
        SCENARIOS.entries()
        patch.setitem(SCENARIOS._entries, "tiny", entry)
        yield


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.toml").write_text(MINE)
    return folder


def options(folder: Path) -> list[str]:
    return ["--results", str(folder / "found.jsonl"), "--out", str(folder / "runs"), "--quiet"]


def called(*words: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", *words])
    assert ended.value.code == code


@pytest.fixture(scope="module")
def made(mine: Path) -> Results:
    """The recipe, run from the command line."""
    called(str(mine / "mine.toml"), *options(mine), "--workers", "1")
    return Results.open(mine / "found.jsonl")


def test_a_recipe_of_ones_own_is_run_once_and_shown(mine: Path, made: Results, capsys):
    assert len(made.rows) == 4  # two methods, two seeds
    called(str(mine / "mine.toml"), *options(mine), "--hours", "1", "--format", "csv")
    told = capsys.readouterr()
    assert "0 runs to make" in told.err
    lines = {(r["row"], r["column"]): r for r in csv.DictReader(io.StringIO(told.out))}
    rows = [r for r in made.rows.values() if r["method"] == "fedavg"]
    avg = [r["scores"]["personal"]["last"]["avg"] for r in rows]
    line = lines["Fed_Avg", "AVG"]
    assert float(line["ours"]) == pytest.approx(statistics.fmean(avg))
    low, high = stats.t.interval(0.95, 1, statistics.fmean(avg), stats.sem(avg))
    assert float(line["interval"]) == pytest.approx((high - low) / 2)
    assert (line["n"], line["paper"], line["paper_spread"]) == ("2", "86.26", "2.5")
    assert (line["scale"], line["protocol"], line["rule"]) == ("laptop", "personal", "last")
    dark = [r["scores"]["personal"]["last"]["domains"]["dark"] for r in rows]
    assert float(lines["Fed_Avg", "both"]["ours"]) == pytest.approx(statistics.fmean(avg + dark))
    assert lines["<i>Other</i>", "AVG"]["why"] == "not | implemented"
    assert lines["mu=0.1", "AVG"]["method"] == "fedprox[mu=0.1]"


def test_names_and_texts_are_escaped_in_every_format(mine: Path, made: Results):
    filled = fill(kept_plan(read_recipe(mine / "mine.toml"), "laptop", made), made.rows)
    text = {name: form(filled) for name, form in FORMATS.items()}
    assert r"\<i\>Other\</i\>" in text["md"]
    assert r"Accuracy \| of 5% & more\_" in text["md"]
    table = [line for line in text["md"].splitlines() if line.startswith("| ")]
    assert {len(line.replace(r"\|", "").split("|")) for line in table} == {6}
    assert "86.26 ± 2.5 / " in text["md"]
    assert f"50 / {CROSS}" in text["md"]
    assert "&lt;i&gt;Other&lt;/i&gt;" in text["html"]
    assert "<i>" not in text["html"]
    assert "<script" not in text["html"]
    assert r"Fed\_Avg & 86.26 $\pm$ 2.5 & " in text["latex"]
    body = [line for line in text["latex"].splitlines() if line.startswith("    Fed")]
    assert body[0].count("&") == 6
    for word in ("scale laptop", "n = 2 seeds", "protocol personal", "the same rounds", "95 %"):
        assert word in text["md"]


def test_what_is_not_run_is_a_dash_and_rows_run_before_stay(mine: Path, tmp_path: Path, capsys):
    called(str(mine / "mine.toml"), *options(tmp_path), "--hours", "1e-9", "--seeds", "1")
    none = f"{DASH} / {DASH}"
    line = f"| Fed\\_Avg | 86.26 ± 2.5 / {DASH} | {none} | {none} |"
    assert line in capsys.readouterr().out
    words = (str(mine / "mine.toml"), *options(tmp_path), "--workers", "1", "--seeds", "1")
    called(*words, "--only", "fedavg")
    called(*words, "--only", "mu=0.1")
    told = capsys.readouterr()
    assert told.err.count("1 runs to make") == 2
    last = told.out.rpartition("###")[2]
    assert "n = 1 seed, so without an interval" in last
    assert f" / {DASH} " not in last.partition("Fed\\_Avg")[2].partition("\n")[0]
    assert last.count(" ± ") == 1  # the paper's


def test_a_claim_and_a_recipe_share_their_runs(mine: Path, made: Results, tmp_path: Path):
    values = {"name": "c", "paper": "", "says": "", "method": "fedprox[mu=0.1]"}
    values |= {"control": "fedavg", "scenario": "tiny", "scale": "laptop", "set": {"rounds": 2}}
    claim = Claim.model_validate(values | {"protocol": "personal", "seeds": 2})
    empty = Results(tmp_path / "empty.jsonl")
    assert {j.config.name for j in plan_claims([claim], empty, mine / "runs").jobs} == {*made.rows}


def test_a_recipe_that_has_changed_takes_no_run_for_its_own(mine: Path, made: Results):
    recipe = read_recipe(mine / "mine.toml")
    assert len(kept_plan(recipe, "laptop", made).runs) == 4
    column = recipe.column[0].model_copy(update={"set": {"rounds": 1}})
    changed = recipe.model_copy(update={"column": (column, *recipe.column[1:])})
    assert not kept_plan(changed, "laptop", made).runs
    assert not kept_plan(recipe, "bench", made).runs


def test_a_dry_run_counts_steps_and_keeps_and_trains_nothing(
    mine: Path, made: Results, monkeypatch, capsys
):
    monkeypatch.setattr("fedshift.engine.visit.descend", None, raising=False)
    monkeypatch.setattr("fedshift.claims.run.played", None)
    recipe = read_recipe(mine / "mine.toml")
    lines, told = forecast(recipe, "laptop", Results(mine / "none.jsonl"))
    assert [line.method for line in lines] == ["fedavg", "fedprox[mu=0.1]"]
    sites = federate(tiny_scenario(), 0).sites.values()
    each = [math.ceil(len(site.data.train) / 4) for site in sites]
    assert {line.steps for line in lines} == {2 * 2 * sum(each)}  # rounds x epochs x batches
    assert all(line.seconds > 0 and line.clients == 4 and not line.missing for line in lines)
    assert told == ["<i>Other</i>: not | implemented"]
    assert len(together([*lines, *lines])) == 2
    seconds = [r["seconds"] for r in made.rows.values() if r["method"] == "fedavg"]
    (first, _), _ = forecast(recipe, "laptop", made)
    assert (first.kept, first.left) == (2, 0.0)
    assert first.seconds == pytest.approx(statistics.fmean(seconds))
    called(
        str(mine / "mine.toml"), *options(mine), "--dry-run", "--seeds", "5", "--only", "Fed_Avg"
    )
    assert "3 different runs" in " ".join(capsys.readouterr().out.split())


def test_data_and_scales_that_are_missing_are_reasons(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_SOURCES", raising=False)
    (recipe,) = find_recipes(["fdse/fig4"])
    lines, told = forecast(recipe, "bench", Results(tmp_path / "none.jsonl"), seeds=1)
    assert all("is not prepared" in line.missing for line in lines)
    assert told == ["scenario 'fdse/domainnet' has no scale bench; take laptop or paper"]
    plan = plan_recipe(recipe, "bench", tmp_path, seeds=1)
    assert not plan.jobs
    filled = fill(plan, {})
    assert {cell.measured for cell in filled.cells.values()} == {CROSS}
    assert sorted(filled.reasons.values()) == ["DomainNet", "Office-Caltech10", "PACS"]
    assert missing_data(tiny_scenario()) == ""


def test_first_seeds_fedavg_and_the_papers_own_method_come_first(tmp_path: Path):
    text = MINE.replace("mine/table1", "fedprox/table1").replace('"fedavg"', '"fedbn"')
    text += '\n[[row]]\nname = "FedAvg"\nmethod = "fedavg"\n'
    (tmp_path / "r.toml").write_text(text)
    plan = plan_recipe(read_recipe(tmp_path / "r.toml"), "laptop", tmp_path)
    todo = left_to_run([plan], Results(tmp_path / "none.jsonl"))
    order = [(job.config.seed, job.config.method) for job in todo]
    assert [seed for seed, _ in order] == [0, 0, 0, 1, 1, 1]
    assert {method for _, method in order[:2]} == {"fedavg", "fedprox[mu=0.1]"}
    assert order[2] == (0, "fedbn")


def test_numbers_of_a_run_as_a_whole_and_rounds_to_a_threshold():
    row = {"rounds": 10, "bytes": 500, "seconds": 20.0, "parameters": 7, "method": "m"}
    row |= {"curves": {"global": [(5, 40.0), (10, 61.0)]}, "scores": {}}

    def found(**values):
        return number_of(row, RecipeColumn(name="c", scenario="s", **values), "last", "global")

    assert found(metric="bytes_per_round", factor=0.1) == pytest.approx(5.0)
    assert found(metric="seconds_per_round") == 2.0
    assert found(metric="parameters") == 7.0
    assert found(metric="rounds_to", threshold=60.0) == 10
    assert found(metric="rounds_to", threshold=62.0) is None
    assert found(metric="avg") is None


def test_other_values_of_a_cell_are_the_rows_before_the_columns_before_the_recipes():
    (recipe,) = find_recipes(["fedka/table4"])
    row, column = recipe.rows[0], recipe.column[0]
    assert changes_of(recipe, row, column, "paper")["backbone_options"] == {"stem": "small"}
    small = changes_of(recipe, row, column, "bench")["backbone_options"]
    assert small == {"stem": "small", "width": 0.25}
    own = row.model_copy(update={"set": {"backbone": "lenet", "unseen": "none"}})
    changed = changes_of(recipe, own, column, "paper")
    assert changed["backbone"] == "lenet"
    assert changed["unseen"] is None


def test_a_figure_is_the_analysis_of_its_runs_or_their_curves(
    mine: Path, made: Results, tmp_path: Path, monkeypatch
):
    recipe = Recipe.model_validate(
        read_recipe(mine / "mine.toml").model_dump()
        | {"kind": "figure", "analysis": "curves", "options": {"key": "avg"}}
    )
    plan = kept_plan(recipe, "laptop", made)
    (told,) = draw(plan, made.rows, tmp_path)  # no run directories there
    assert "in place of curves" in told
    (file,) = (tmp_path / "figures").iterdir()
    lines = csv.DictReader(io.StringIO(file.read_text()))
    kept = [line for line in lines if line["row"] == "Fed_Avg"]
    curves = [r["curves"]["personal"] for r in made.rows.values() if r["method"] == "fedavg"]
    assert [float(r["avg"]) for r in kept] == [v for curve in curves for _, v in curve]
    seen = {}

    def analyse(kind, results, **options):
        seen.update(options, kind=kind, runs=len(results))
        return types.SimpleNamespace(table=[{"a": 1}], figure=None, sentence="So it is.")

    module = types.ModuleType("fedshift.analyse")
    module.__spec__, module.analyse = ModuleSpec("fedshift.analyse", None), analyse
    module.options_of = lambda kind: {"protocol": None}
    monkeypatch.setitem(sys.modules, "fedshift.analyse", module)
    lines = draw(plan, made.rows, mine / "runs")
    assert lines[0] == "AVG: So it is."
    assert seen == {"kind": "curves", "runs": 4, "key": "avg", "protocol": "personal"}
    assert (mine / "runs/figures/mine-table1-laptop-AVG.csv").read_text() == "a\n1\n"


def test_plans_are_kept_together_and_a_line_is_not_written_twice(mine: Path, made: Results):
    plan = kept_plan(read_recipe(mine / "mine.toml"), "laptop", made)
    before = (mine / "found.jsonl").read_text()
    keep(plan, made)
    assert (mine / "found.jsonl").read_text() == before
    held = json.loads([li for li in before.splitlines() if '"claim"' in li][-1])
    assert held["claim"] == "recipe mine/table1 at laptop"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name =", "name", "is no recipe"),
        ('method = "fedavg"', 'method = "fedavgg"', "no method"),
        ('method = "fedavg"', "", "has no method; give one"),
        ('scenario = "tiny"', 'scenario = "tinny"', "no scenario or dataset"),
        ("seeds = 2", "seeds = 2\ncolour = 1", "colour"),
        ('[86.26, "-"]', "[1, 2, 3, 4]", "more numbers than there are columns"),
        ('["AVG", "dark"]', '["AVG", "darc"]', "is a mean of 'darc'"),
        ("rounds = 2", "rouns = 2", "has no option 'rouns'"),
        ('name = "dark"', 'name = "AVG"', "two columns are called 'AVG'"),
        ('metric = "dark"', 'metric = "rounds_to"', "threshold belongs to"),
    ],
)
def test_a_bad_recipe_is_one_line_and_exit_code_2(old, new, said, tmp_path: Path, capsys):
    assert old in MINE
    (tmp_path / "bad.toml").write_text(MINE.replace(old, new))
    called(str(tmp_path / "bad.toml"), *options(tmp_path), "--dry-run", code=2)
    told = capsys.readouterr().err
    assert said in told
    assert len(told.strip().splitlines()) == 1


def test_unknown_names_are_one_line_and_suggest(tmp_path: Path, capsys):
    called("fdse/table9", code=2)
    assert "fdse/table" in capsys.readouterr().err
    called(str(tmp_path / "absent.toml"), code=2)
    assert "is no recipe" in capsys.readouterr().err
    called("fdse/table1", "--only", "fedavgg", "--dry-run", code=2)
    assert "did you mean" in capsys.readouterr().err
    called("fdse/table1", "--scale", "small", code=2)


def test_the_list_has_every_recipe(capsys):
    called("list")
    told = capsys.readouterr().out
    assert told.count("\n    ") == 64
    assert "csac/fig7: Weight of each client" in told
