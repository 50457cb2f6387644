"""The 64 recipes of the project: they can be built, and their numbers agree with themselves."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path

import pytest

from fedshift import build
from fedshift.claims.claim import read_claims
from fedshift.claims.run import scenario_of
from fedshift.claims.store import Results
from fedshift.core.scenario import Scenario
from fedshift.engine.preflight import check_needs
from fedshift.recipes.plan import scenarios_of
from fedshift.recipes.read import find_recipes, names
from fedshift.recipes.recipe import Recipe, RecipeRow, protocol_of

ROOT = Path(__file__).parents[2]
EXPECTED = {  # paper: tables, figures
    "fdse": (range(1, 5), (3, 4, 5, 6)),
    "f2dc": (range(1, 8), (1, 2, 4, 5, 6, 7, 8)),
    "fedka": (range(1, 6), (2, 3, 4)),
    "csac": (range(1, 7), (4, 5, 6, 7, 8, 9)),
    "feddebias": (range(1, 12), (2, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14)),
}


@pytest.fixture(scope="module")
def recipes() -> dict[str, Recipe]:
    return {recipe.name: recipe for recipe in find_recipes(["all"])}


def test_every_table_and_figure_of_the_five_papers_is_a_recipe(recipes):
    wanted = [
        f"{paper}/{kind}{number}"
        for paper, (tables, figures) in EXPECTED.items()
        for kind, numbers in (("table", tables), ("fig", figures))
        for number in numbers
    ]
    assert len(wanted) == 64
    assert names() == wanted == list(recipes)
    assert all((r.kind == "figure") == ("/fig" in r.name) for r in recipes.values())


def clients(scenario: Scenario) -> int:
    """How many clients a scenario has, by its partition and without its data."""
    plan = scenario.partition
    if plan.kind == "f2dc":
        return sum(plan.clients.values())
    if plan.kind == "class-halves":
        return 2 * len(scenario.domains)
    return plan.clients if hasattr(plan, "clients") else len(scenario.domains)


def test_every_method_and_scenario_of_every_recipe_can_be_built(recipes):
    built = {m: build(m) for recipe in recipes.values() for m in recipe.methods}
    checked = set()
    for recipe in recipes.values():
        for scale in ("laptop", "bench", "paper"):
            found = scenarios_of(recipe, scale)
            for row, column, method in recipe.cells():
                scenario = found[row.name, column.name]
                if isinstance(scenario, str):
                    assert "has no scale bench" in scenario
                    continue
                assert protocol_of(recipe, row, column) in scenario.protocols, recipe.name
                key = method, scenario.model_dump_json()
                if key not in checked:
                    check_needs(built[method], scenario, clients(scenario))
                checked.add(key)
    assert len(built) > 100


def numbers(row: RecipeRow, recipe: Recipe) -> dict[str, float]:
    named = zip((c.name for c in recipe.column), row.published, strict=False)
    return {name: value for name, value in named if value != "-"}


def test_published_averages_are_the_means_of_the_columns_that_they_average(recipes):
    """Typing errors would show. Three averages are printed that are not: each was looked up."""
    found, odd = 0, set()
    for recipe in recipes.values():
        for row in recipe.rows:
            own = numbers(row, recipe)
            for column in recipe.column:
                parts = [own[n] for n in column.mean_of if n in own]
                if column.name in own and parts and len(parts) == len(column.mean_of):
                    apart = abs(statistics.fmean(parts) - own[column.name])
                    odd |= {(recipe.name, row.name, column.name)} if apart > 0.055 else set()
                    found += 1
    assert found > 60
    assert odd == {
        ("csac/table1", "DMG", "Average"),
        ("csac/table4", "Semantic average", "PACS Average"),
        ("fedka/table4", "f-DAN", "Avg"),
    }


def test_f2dcs_avg_and_std_are_those_of_its_four_domains_with_ddof_1(recipes):
    """Nine printed STDs are not, each was looked up; one is F2DC's own on PACS."""
    odd = set()
    for name, starts in (
        ("table1", (0, 6)),
        ("table2", (0,)),
        ("table6", (0, 6)),
        ("table7", (0,)),
    ):
        recipe = recipes[f"f2dc/{name}"]
        for row in recipe.rows:
            for start in starts:
                *domains, avg, std = row.published[start : start + 6]
                assert statistics.fmean(domains) == pytest.approx(avg, abs=0.016), row.name
                if statistics.stdev(domains) != pytest.approx(std, abs=0.035):
                    odd.add((name, row.name, start))
    assert odd == {
        *(("table1", "FedRCL", 0), ("table1", "FedHEAL", 0), ("table1", "F2DC", 6)),
        *(("table6", "row 2", 6), ("table6", "row 3", 6), ("table6", "row 6: F2DC", 6)),
        *(("table7", "f+", 0), ("table7", "f*", 0), ("table7", "f~", 0)),
    }


def test_gains_of_f2dcs_table_3_are_those_that_it_prints(recipes):
    rows = {row.name: row.published for row in recipes["f2dc/table3"].rows}
    printed = {
        "FedAvg": (13.88, 13.41, 5.07, 3.40, 8.94),
        "FPL": (10.18, 6.08, 0.27, 3.16, 4.93),
        "FedHEAL": (5.17, 0.13, 0.70, 0.87, 1.72),
        "FDSE": (2.98, 0.53, 1.91, 1.24, 1.66),
    }
    for name, gains in printed.items():
        pairs = zip(rows[f"{name} + DFD + DFC"], rows[name], strict=True)
        assert [a - b for a, b in pairs] == pytest.approx(gains, abs=0.006)


def test_rows_that_two_tables_of_a_paper_share_have_the_same_numbers(recipes):
    def of(name, row):
        return next(r.published for r in recipes[name].rows if r.name == row)

    assert of("fdse/table3", "A, B, C") == of("fdse/table1", "FDSE")
    assert of("f2dc/table6", "row 1: FedAvg") == of("f2dc/table1", "FedAvg")
    assert of("f2dc/table6", "row 5: without domain-aware aggregation")[6:11] == of(
        "f2dc/table3", "FedAvg + DFD + DFC"
    )
    assert of("f2dc/table7", "f~") == of("f2dc/table1", "F2DC")[6:]
    assert of("csac/table4", "CSAC") == of("csac/table5", "CSAC")
    assert of("csac/table4", "CSAC")[:5] == of("csac/table1", "CSAC")
    assert of("csac/table4", "CSAC")[5:] == of("csac/table2", "CSAC")[5:]
    for name in ("FedProx", "Moon", "DANN", "GroupDRO"):
        assert of("feddebias/table10", name)[:4] == of("feddebias/table1", name)[:4]
    assert of("feddebias/table3", "FedDebias")[:4] == of("feddebias/table1", "FedDebias")[:4]


def test_numbers_agree_with_those_of_the_claims(recipes):
    """They were typed twice, from the same papers."""
    pairs = {
        "fdse/own-domain": ("fdse/table1", "Office-Caltech10 AVG"),
        "fdse/own-domain-pacs": ("fdse/table1", "PACS AVG"),
        "fdse/consensus": ("fdse/table3", "PACS AVG"),
        "f2dc/global": ("f2dc/table2", "AVG"),
        "f2dc/even": ("f2dc/table2", "STD"),
        "f2dc/global-office": ("f2dc/table1", "Office AVG"),
        "fedka/target": ("fedka/table1", "→mm"),
        "csac/unseen": ("csac/table3", "M75"),
        "csac/divergence-over-average": ("csac/table4", "PACS Average"),
        "csac/cross-layer": ("csac/table5", "PACS Average"),
    }
    claims = {claim.name: claim for claim in read_claims()}
    for name, (recipe, column) in pairs.items():
        own = {r.method: numbers(r, recipes[recipe]).get(column) for r in recipes[recipe].rows}
        for method, value in claims[name].published.items():
            assert own[method] == value, (name, method)


def test_runs_of_the_claims_are_runs_of_recipes(recipes):
    """The same method and scenario, spelt alike: a run that one has made is found by the other."""
    cells = {
        (method, scenario.model_dump_json(exclude={"summary"}))
        for recipe in recipes.values()
        for (_, _, method), scenario in zip(
            recipe.cells(), scenarios_of(recipe, "bench").values(), strict=True
        )
        if not isinstance(scenario, str)
    }
    apart = {
        (claim.name, side)
        for claim in read_claims()
        for side in ("method", "control")
        if (getattr(claim, side), scenario_of(claim, side).model_dump_json(exclude={"summary"}))
        not in cells
    }
    assert apart == {("f2dc/local-modules", "control")}  # in no table of the paper


def test_the_documentation_has_the_recipes_as_they_are(recipes):
    spec = importlib.util.spec_from_file_location(
        "reproduction_page", ROOT / "scripts/reproduction_page.py"
    )
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = script.PAGE.read_text()
    kept = Results.open(ROOT / "results" / "claims.jsonl")
    new = script.page(text, list(recipes.values()), kept)
    assert new == text, "run python scripts/reproduction_page.py"
    assert all(f"| `{name}` |" in text for name in recipes)
