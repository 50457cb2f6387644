"""Choose learning rates of the scale bench: FedAvg, on validation data only.

    FEDSHIFT_SOURCES=path/to/data python scripts/bench_scale.py            every scenario
    FEDSHIFT_SOURCES=path/to/data python scripts/bench_scale.py fdse       those of one paper
    python scripts/bench_scale.py --table       docs/tables/bench_scale.md again, nothing is run

Rounds, image size and width stand in ``scenarios/*.py``; this script tries rates around the paper's
for one scenario of each group and prints, for each: accuracy on validation data (mean of the last
three scored rounds), what the last quarter of the rounds gained, accuracy on test data for
information, FedAvg's in the paper, and minutes. What goes into the scenario, for all methods, is
the best rate on validation data among those that reached a plateau, a last quarter that gains less
than a point. Where FedAvg stays below two thirds of the paper's, the row says why.
Finished runs are kept in docs/tables/bench_scale.jsonl and not repeated, so that it can be ended at
any time; the table is docs/tables/bench_scale.md. Run directories are those of ``fedshift claims
run``, so the run at the scenario's own rate serves the claims as well.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fedshift.base.errors import DivergedError
from fedshift.base.process import tune_process
from fedshift.experiment.compare import plan
from fedshift.experiment.run import execute
from fedshift.experiment.scenario import scenario_from
from fedshift.experiment.session import Options
from fedshift.recipes.read import find_recipes
from fedshift.report.results import RunResult

ROOT = Path(__file__).parents[1]
TABLES, RUNS = ROOT / "docs" / "tables", ROOT / "runs" / "claims"
RATES: dict[str, tuple[float, ...]] = {
    "fedka/digit-five/mnist-m": (0.003, 0.001),
    "feddebias/rotated-mnist": (0.2, 0.1, 0.05),
    "csac/rotated-mnist/deg75": (0.01, 0.03, 0.1),
    "fdse/office-caltech10": (0.1, 0.05, 0.2),
    "f2dc/digits": (0.2, 0.4),
    "fdse/pacs": (0.02, 0.05, 0.1),
    "f2dc/office-caltech": (0.01, 0.03, 0.1),
    "f2dc/pacs": (0.01, 0.03, 0.1),
    "fedka/office-caltech10/amazon": (0.0001, 0.0003, 0.001),
    "fedka/amazon/books": (0.0001, 0.0003, 0.001),
    "csac/pacs/photo": (0.003, 0.01, 0.03),
    "csac/pacs-imagenet/photo": (0.003, 0.01, 0.03),
    "feddebias/clean-cifar10": (0.03, 0.1, 0.3),
    "feddebias/cifar10": (0.03, 0.1, 0.3),
    "feddebias/pacs": (0.03, 0.1, 0.3),
}
SHARE = 2 / 3  # of the paper's FedAvg; below it a row says why
REASONS: dict[str, str] = {}  # by scenario
HEAD = (
    "| scenario | rounds | rate | decay | validation | gained in the last quarter | test | paper "
    "| minutes | note |\n|---|---|---|---|---|---|---|---|---|---|\n"
)
Row = dict[str, Any]


def measured(name: str, rate: float) -> Row:
    """One run of FedAvg."""
    scenario = scenario_from(name, "bench", None, {"lr": rate})
    (job,) = plan(["fedavg"], [scenario], [0], RUNS)
    row = {"scenario": name, "rate": rate, "rounds": scenario.rounds, "decay": scenario.lr_decay}
    try:
        result = execute(job.config, job.method, job.path, Options(resume=True))
    except DivergedError:
        return row | {"settings": "", "val": 0.0, "gain": 0.0, "test": 0.0, "minutes": 0.0}
    protocol = scenario.protocols[0]
    val = curve(result, protocol, "val")
    end, before = val[-3:], val[: -(len(val) // 4)][-3:]
    return row | {
        "settings": short(result),
        "val": sum(end) / len(end),
        "gain": sum(end) / len(end) - sum(before) / len(before),
        "test": result.accuracy(protocol, "last"),
        "minutes": result.summary["seconds"] / 60,
    }


def curve(result: RunResult, protocol: str, split: str) -> list[float]:
    """Accuracy of every scored round."""
    return [value for _, value in result.curve(protocol, "avg", split)]


def short(result: RunResult) -> str:
    """What differs from the paper's scale, as the run says it."""
    return result.config.scenario.changed


def published(name: str) -> float | None:
    """FedAvg's accuracy in this scenario's paper, from the first recipe that has it."""
    for recipe in find_recipes([name.partition("/")[0]]):
        for row in recipe.rows:
            if row.method != "fedavg" or row.set:
                continue
            for column, number in zip(recipe.column, row.published, strict=False):
                plain = column.metric == "avg" and not column.set
                if column.scenario == name and plain and number != "-":
                    return float(number)
    return None


def table(rows: list[Row]) -> str:
    """Markdown, scenario by scenario, what stands in each scenario in bold."""
    place = {name: i for i, name in enumerate(RATES)}
    rows = sorted(rows, key=lambda r: (place[r["scenario"]], -r["rounds"], r["decay"], r["rate"]))
    return HEAD + "".join(map(line, rows))


def line(row: Row) -> str:
    """One rate in one scenario."""
    name, now = row["scenario"], scenario_from(row["scenario"], "bench", None, {})
    taken = (row["rate"], row["rounds"], row["decay"]) == (now.lr, now.rounds, now.lr_decay)
    mark = "**" if taken else ""
    start = [f"`{name}`", str(row["rounds"]), f"{mark}{row['rate']:g}{mark}", f"{row['decay']:g}"]
    if not row["minutes"]:
        return f"| {' | '.join([*start, 'diverged', *[''] * 5])} |\n"
    paper = published(name)
    low = taken and paper is not None and row["test"] < SHARE * paper
    note = ": ".join(["below two thirds", *filter(None, [REASONS.get(name)])]) if low else ""
    cells = [f"{row['val']:.1f}", f"{row['gain']:+.1f}", f"{row['test']:.1f}"]
    cells += [f"{paper:.1f}" if paper is not None else "", f"{row['minutes']:.1f}", note]
    return f"| {' | '.join([*start, *cells])} |\n"


def main(papers: list[str]) -> None:
    """Run what is missing."""
    tune_process()
    kept = TABLES / "bench_scale.jsonl"
    rows = [json.loads(text) for text in kept.read_text().splitlines()] if kept.exists() else []
    if papers == ["--table"]:
        (TABLES / "bench_scale.md").write_text(table(rows))
        return
    done = {tuple(row[key] for key in ("scenario", "rate", "rounds", "decay")) for row in rows}
    for name, rates in RATES.items():
        if papers and not name.startswith(tuple(papers)):
            continue
        for rate in rates:
            now = scenario_from(name, "bench", None, {})
            if (name, rate, now.rounds, now.lr_decay) in done:
                continue
            rows.append(measured(name, rate))
            with kept.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            (TABLES / "bench_scale.md").write_text(table(rows))
            print(rows[-1], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
