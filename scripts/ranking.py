"""Rank all methods: make the runs that are missing, then write docs/ranking.md and its pictures.

    python scripts/ranking.py run [--seeds 3] [--hours 2] [--workers 1] [--board digits] [METHOD...]
    python scripts/ranking.py page                  from results/ranking.jsonl alone
    python scripts/ranking.py page --check          exit code 1 if the page has other numbers

Every method has the same budget and the scenario's own rate; nothing is tuned. On the embedded
digits all registered methods are run, on real data (FEDSHIFT_SOURCES, at laptop scale) those that
are made for the protocol. First seeds come before second ones. Finished runs are lines of
results/ranking.jsonl and are never repeated, so that the computation can go on elsewhere and later;
a method that cannot run in a scenario has a line that says why.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.base.errors import ConfigError, FedshiftError
from fedshift.base.process import tune_process
from fedshift.claims.store import Results, row_of
from fedshift.core.registry import METHODS
from fedshift.experiment.compare import Job, plan, played
from fedshift.experiment.progress import ProgressBoard
from fedshift.experiment.scenario import scenario_from
from fedshift.report.looks import COLOURS
from fedshift.report.ranking import Ranking, rank
from fedshift.report.results import RunResult

ROOT = Path(__file__).parents[1]
STORE, RUNS = ROOT / "results" / "ranking.jsonl", ROOT / "runs" / "ranking"
PAGE, ASSETS = ROOT / "docs" / "ranking.md", ROOT / "docs" / "assets"
BLOCK = re.compile(r"(<!-- generated -->\n).*(<!-- end of generated -->)", flags=re.DOTALL)
NONE = "\N{EN DASH}"
Row = dict[str, Any]


@dataclass(frozen=True)
class Board:
    """One ranking: a scenario, the protocols that it is read under, and which groups take part."""

    scenario: str
    protocols: tuple[str, ...]
    groups: tuple[str, ...] = ()  # none: every registered method
    scale: str | None = None

    @property
    def name(self) -> str:
        """For file names."""
        return self.scenario.replace("/", "-")

    def methods(self) -> list[str]:
        """FedAvg and local training are in every ranking."""
        known = METHODS.entries().items()
        return [n for n, e in known if not self.groups or e.group in (*self.groups, "reference")]


BOARDS = (
    Board("digits", ("personal", "global", "unseen", "unseen-adapted")),
    Board("fdse/office-caltech10", ("personal",), ("personal",), "laptop"),
    Board("f2dc/digits", ("global",), ("optimisation", "prototypes", "aggregation"), "laptop"),
    Board(
        "csac/rotated-mnist/deg75",
        ("unseen",),
        ("alignment", "augmentation", "adaptation"),
        "laptop",
    ),
    Board("feddebias/rotated-mnist", ("global",), ("label skew", "optimisation"), "laptop"),
)


def jobs(board: Board, wanted: Sequence[str], seed: int, store: Results) -> Iterator[Job]:
    """Runs of one seed that are not in the store; what cannot be run is noted there."""
    scenario = scenario_from(board.scenario, board.scale, None, {})
    for method in wanted or board.methods():
        if refusal(board.scenario, method) in store.rows:
            continue
        try:
            (job,) = plan([method], [scenario], [seed], RUNS)
        except FedshiftError as error:
            store.add({"run": refusal(board.scenario, method), "why": str(error)})
            continue
        if job.config.name not in store.rows:
            yield job


def refusal(scenario: str, method: str) -> str:
    """The name under which the store keeps why a method cannot run in a scenario."""
    return f"{method} refused in {scenario}"


def make(told: argparse.Namespace) -> None:
    """Make the runs that are missing, first seeds first."""
    tune_process()
    store = Results.open(STORE)
    ends = time.monotonic() + 3600 * told.hours if told.hours else float("inf")
    boards = [b for b in BOARDS if told.board in (None, b.scenario)]
    with ProgressBoard(quiet=True) as progress:
        for seed in range(told.seeds):
            for board in boards:
                waiting = list(jobs(board, told.methods, seed, store))
                while waiting and time.monotonic() < ends:
                    batch, waiting = waiting[: told.workers], waiting[told.workers :]
                    play(board, batch, progress, store)


def play(board: Board, batch: list[Job], progress: ProgressBoard, store: Results) -> None:
    """Make some runs at a time; what its data or its protection refuse is noted, one by one."""
    try:
        for job, outcome in played(batch, progress.watch, len(batch)):
            keep(store, job, outcome)
    except ConfigError as error:
        if len(batch) == 1:
            why = {"run": refusal(board.scenario, batch[0].config.label), "why": str(error)}
            store.add(why)
            return
        for job in batch:
            if job.config.name not in store.rows:
                play(board, [job], progress, store)


def keep(store: Results, job: Job, outcome: Any) -> None:
    """Add a finished run to the store, or why it diverged."""
    name = job.config.name
    if isinstance(outcome, RunResult):
        store.add(row_of(outcome))
    else:
        store.add({"run": name, "method": job.config.label, "why": outcome.reason})
    print(f"{time.strftime('%H:%M')} {name}", flush=True)


def complete(board: Board, protocol: str, store: Results) -> dict[str, list[Row]]:
    """By method, its rows of the seeds that every ranked method has; those behind are left out.

    The number of seeds is the largest for which at least half of the methods that have one are
    complete.
    """
    scenario = scenario_from(board.scenario, board.scale, None, {}).name
    by_method: dict[str, dict[int, Row]] = {}
    for row in store.rows.values():
        if row.get("scores", {}).get(protocol) and row["scenario"] == scenario:
            by_method.setdefault(row["method"], {})[row["seed"]] = row
    if not by_method:
        return {}
    counts = sorted((len(rows) for rows in by_method.values()), reverse=True)
    seeds = range(counts[(len(counts) - 1) // 2])
    return {
        method: [rows[seed] for seed in seeds]
        for method, rows in by_method.items()
        if {*seeds} <= rows.keys()
    }


def scores(rows: dict[str, list[Row]], protocol: str) -> dict[str, list[float]]:
    """Accuracy of each method in each block: every domain at every seed."""
    out = {}
    for method, own in rows.items():
        domains = [row["scores"][protocol]["validation"]["domains"] for row in own]
        out[method] = [found[name] for found in domains for name in sorted(found)]
    return out


def section(board: Board, protocol: str, store: Results) -> str:
    """Heading, sentence, picture and table of one ranking."""
    rows = complete(board, protocol, store)
    if len(rows) < 3:
        return f"### {board.scenario}, {protocol}\n\nNot run yet.\n"
    found = rank(scores(rows, protocol))
    seeds = len(next(iter(rows.values())))
    best = next(iter(found.ranks))
    level = found.level_with(best)
    told = (
        f"{len(rows)} methods, {seeds} seed{'s' if seeds > 1 else ''}, {found.blocks} blocks "
        f"(domains x seeds). Friedman p = {found.p:.2g}; mean ranks that differ by less than "
        f"{found.critical:.1f} are not told apart: `{best}` has the best mean rank, and "
        f"{len(level)} other methods are level with it."
    )
    lines = [f"### {board.scenario}, {protocol}", "", told, ""]
    lines += [f"![mean ranks](assets/ranking-{board.name}-{protocol}.png)", ""]
    lines += [
        "| | method | mean rank | accuracy | worst domain | upload | time |",
        "|---|---|---|---|---|---|---|",
    ]
    base = rows.get("fedavg")
    for place, (method, mean) in enumerate(found.ranks.items(), 1):
        lines.append(
            f"| {place} | `{method}` | {mean:.1f} | {cells(rows[method], base, protocol)} |"
        )
    return "\n".join(lines) + "\n"


def cells(own: list[Row], base: list[Row] | None, protocol: str) -> str:
    """Accuracy, worst domain, and upload and time as multiples of FedAvg's."""
    found = [row["scores"][protocol]["validation"] for row in own]
    accuracy = [one["avg"] for one in found]
    error = (
        f" ± {statistics.stdev(accuracy) / len(accuracy) ** 0.5:.1f}" if len(accuracy) > 1 else ""
    )
    worst = statistics.fmean(one["worst"] for one in found)
    ratios = [NONE, NONE]
    if base is not None:
        ratios = [
            f"{sum(r[key] for r in own) / sum(r[key] for r in base):.2f}"
            for key in ("bytes", "seconds")
        ]
    return f"{statistics.fmean(accuracy):.1f}{error} | {worst:.1f} | {ratios[0]} | {ratios[1]}"


def draw(found: Ranking, path: Path) -> None:
    """Mean ranks with bars of half the critical difference; overlapping ones are level."""
    from fedshift.report.figures import Drawing, save, style  # noqa: PLC0415  an extra

    with style():
        figure = Drawing(figsize=(6.4, 0.6 + 0.16 * len(found.ranks)), layout="constrained")
        axes = figure.subplots()
        places = range(len(found.ranks))
        means = list(found.ranks.values())
        axes.errorbar(
            means,
            places,
            xerr=found.critical / 2,
            fmt="o",
            markersize=3,
            color=COLOURS[0],
            elinewidth=0.8,
        )
        axes.axvspan(means[0] - found.critical / 2, means[0] + found.critical / 2, alpha=0.12)
        axes.set_yticks(places, list(found.ranks), fontsize=6)
        axes.set_ylim(len(means) - 0.5, -0.5)
        axes.set_xlim(1, len(means))
        axes.set_xlabel("mean rank, 1 is best; bars are half the critical difference to each side")
        save(figure, path)


def refused(store: Results) -> str:
    """Methods that cannot run somewhere, and why."""
    rows = [row for row in store.rows.values() if "why" in row]
    if not rows:
        return ""
    lines = ["### Not ranked", "", "| run | why |", "|---|---|"]
    lines += [
        f"| {row['run']} | {' '.join(row['why'].split()).replace('|', '/')} |" for row in rows
    ]
    return "\n".join(lines) + "\n"


def page(check: bool) -> int:
    """Write the generated part of the page, or compare it."""
    store = Results.open(STORE)
    sections = [section(board, p, store) for board in BOARDS for p in board.protocols]
    text = "\n".join([*sections, refused(store)])
    old = PAGE.read_text()
    new = BLOCK.sub(lambda m: f"{m[1]}\n{text}\n{m[2]}", old)
    if check:
        return int(old != new)
    PAGE.write_text(new)
    for board in BOARDS:
        for protocol in board.protocols:
            if len(rows := complete(board, protocol, store)) >= 3:
                draw(rank(scores(rows, protocol)), ASSETS / f"ranking-{board.name}-{protocol}.png")
    return 0


def main(args: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("methods", nargs="*", metavar="METHOD")
    run.add_argument("--seeds", type=int, default=3)
    run.add_argument("--hours", type=float, default=0.0, help="start no run after so many hours")
    run.add_argument("--workers", type=int, default=1)
    run.add_argument("--board", choices=[board.scenario for board in BOARDS])
    verbs.add_parser("page").add_argument("--check", action="store_true")
    told = parser.parse_args(args)
    if told.verb == "page":
        return page(told.check)
    make(told)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
