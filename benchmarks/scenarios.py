"""FedAvg in every paper's scenario whose data are at hand, at laptop scale, beside chance.

    FEDSHIFT_SOURCES=path/to/sources python benchmarks/scenarios.py [--seeds 2] [NAME...]
    python benchmarks/scenarios.py --table      docs/tables/scenarios.md again, nothing is run

A name may be a pattern (``csac/pacs/*``); what has no data is skipped and named. A finished run is
a line of results/scenarios.jsonl and never repeated, and the table is written after each, so that
this can be ended at any time and goes on where it was. First seeds of all scenarios come before
second ones. Chance is the best constant answer, mean over domains: one class of all domains, or of
each where every site has its own model. Minutes are processor time of one core, so that other
programs hardly count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

import fedshift
from fedshift.base.errors import DataError
from fedshift.base.process import tune_process
from fedshift.claims.store import Results, row_of
from fedshift.core.config import RunConfig
from fedshift.core.registry import SCENARIOS
from fedshift.data.federation import Splits
from fedshift.engine.federation import federate
from fedshift.experiment.compare import Job, plan
from fedshift.experiment.run import execute

ROOT = Path(__file__).parents[1]
STORE, TABLE = ROOT / "results" / "scenarios.jsonl", ROOT / "docs" / "tables" / "scenarios.md"
NEAR = 5.0  # points above chance that a quick look has to reach, or say why not
REASONS: dict[str, str] = {}  # by pattern: why a scenario stays near chance
HEAD = (
    "| scenario | protocol | round by | accuracy | per domain | chance | seeds | minutes | note |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)
Row = dict[str, Any]


def missing(names: list[str], seeds: int, store: Results) -> Iterator[Job]:
    """Runs that are not in the store, first seeds first; a scenario without data is named once."""
    left = list(names)
    for seed in range(seeds):
        for name in list(left):
            try:
                (job,) = plan(["fedavg"], [fedshift.find_scenario(name)], [seed], None)
            except DataError as error:
                print(f"skipped {name}: {error}", file=sys.stderr)
                left.remove(name)
            else:
                if job.config.name not in store.rows:
                    yield job


def chance(config: RunConfig) -> float:
    """Accuracy of the best constant answer in per cent, mean over the scored domains."""
    protocol, held = config.scenario.protocols[0], federate(config.scenario, config.seed)
    unseen = [held.unseen] if held.unseen and protocol.startswith("unseen") else []
    return 100 * constant(unseen or list(held.domains.values()), own=protocol == "personal")


def constant(scored: Sequence[Splits], *, own: bool) -> float:
    """The largest share of a class among test samples, mean over domains: each one's, or of all."""
    classes = 1 + max(int(splits.test.labels.max()) for splits in scored)
    counts = [splits.test.labels.bincount(minlength=classes) for splits in scored]
    shares = torch.stack([count / count.sum() for count in counts])  # (D, K)
    return float(shares.amax(1).mean() if own else shares.mean(0).max())


def measured(job: Job) -> Row:
    """One run: its numbers, how the scenario differs from the paper's, chance, and minutes."""
    began = time.process_time()
    row = row_of(execute(job.config, job.method, None))
    minutes = (time.process_time() - began) / 60
    changed = job.config.scenario.changed
    return row | {"changed": changed, "chance": chance(job.config), "minutes": round(minutes, 2)}


def line(name: str, rows: list[Row]) -> str:
    """One row of the table: means over seeds, and the seeds' own values."""
    scenario = fedshift.find_scenario(name)
    protocol, rule = scenario.protocols[0], scenario.selection
    scores = [row["scores"][protocol][rule] for row in rows]
    averages = [score["avg"] for score in scores]
    each = f" ({', '.join(f'{one:.1f}' for one in averages)})" if len(rows) > 1 else ""
    domains = [f"{d} {mean(s['domains'][d] for s in scores)}" for d in scores[0]["domains"]]
    guess, minutes = (mean(row[key] for row in rows) for key in ("chance", "minutes"))
    accuracy, apart = mean(averages), "; ".join(domains) if len(domains) > 1 else ""
    note = why(name) if float(accuracy) < float(guess) + NEAR else ""
    cells = [f"`{name}`", protocol, rule, accuracy + each, apart, guess, str(len(rows)), minutes]
    return f"| {' | '.join([*cells, note])} |\n"


def mean(values: Iterable[float]) -> str:
    """One digit after the point."""
    return f"{statistics.fmean(values):.1f}"


def why(name: str) -> str:
    """The mark of a row near chance, with its reason if there is one."""
    found = [reason for pattern, reason in REASONS.items() if fnmatch(name, pattern)]
    return ": ".join([f"within {NEAR:g} points of chance", *found[:1]])


def table(store: Results) -> str:
    """Every scenario that has a run at its present values."""
    lines = []
    for name in papers(["*"]):
        changed = fedshift.find_scenario(name).changed
        kept = [r for r in store.rows.values() if (r["scenario"], r["changed"]) == (name, changed)]
        if kept:
            lines.append(line(name, sorted(kept, key=lambda row: row["seed"])))
    return HEAD + "".join(lines)


def papers(patterns: list[str]) -> list[str]:
    """The names of papers' scenarios that are asked for."""
    known = [name for name, entry in SCENARIOS.entries().items() if "scale" in entry.options]
    return [name for name in known if any(fnmatch(name, pattern) for pattern in patterns)]


def main(words: list[str]) -> None:
    """Run what is missing, and write the table after each run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=["*"], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="from the store alone; run nothing")
    told = parser.parse_args(words)
    tune_process()
    store = Results.open(STORE)
    for job in () if told.table else missing(papers(told.names), told.seeds, store):
        store.add(measured(job))
        TABLE.write_text(table(store))
        print(f"{time.strftime('%H:%M')} {job.config.name}", flush=True)
    TABLE.write_text(table(store))


if __name__ == "__main__":
    main(sys.argv[1:])
