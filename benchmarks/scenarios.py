"""FedAvg in every paper's scenario whose data are at hand, at laptop scale, three seeds.

Reads FEDSHIFT_SOURCES (or prepared stores), skips what has no data and says so, resumes what is
unfinished, and writes docs/tables/scenarios.md. Names on the command line choose some of them
(``csac/pacs/* fdse/*``); all of them take about 45 minutes on two cores.
"""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from pathlib import Path

import fedshift
from fedshift.base.errors import DataError
from fedshift.core.registry import SCENARIOS
from fedshift.engine.federation import federate
from fedshift.experiment.progress import ProgressBoard
from fedshift.report.results import Comparison

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "runs" / "scenarios"
TABLE = ROOT / "docs" / "tables" / "scenarios.md"
SEEDS = range(3)


def with_data(patterns: list[str]) -> list[str]:
    """Scenarios of papers that are asked for and can be dealt out here."""
    found = []
    for name in SCENARIOS.entries():
        if "/" not in name or not any(fnmatch(name, pattern) for pattern in patterns):
            continue
        try:
            federate(fedshift.find_scenario(name), 0)
        except DataError as error:
            print(f"skipped {name}: {error}", file=sys.stderr)
        else:
            found.append(name)
    return found


def row(table: Comparison, name: str) -> str:
    """One line: protocol, how the round was chosen, every domain, AVG."""
    (run, *_) = table.of("fedavg", name)
    protocol = next(iter(run.summary["protocols"]))
    outcome = run.outcome(protocol)
    assert outcome is not None
    cells = [f"{d} {table.cell('fedavg', name, protocol, d)}" for d in outcome.metrics.domains]
    average = table.cell("fedavg", name, protocol) if len(cells) > 1 else ""
    return f"| `{name}` | {protocol} | {outcome.rule} | {'; '.join(cells)} | {average} |"


def main() -> None:
    """Run what is missing, then write the table."""
    names = with_data(sys.argv[1:] or ["*"])
    with ProgressBoard() as board:
        table = fedshift.compare(["fedavg"], names, seeds=SEEDS, out=RUNS, watch=board.watch)
    head = "| scenario | protocol | round by | accuracy per domain | AVG |\n|---|---|---|---|---|\n"
    TABLE.write_text(head + "\n".join(row(table, name) for name in table.scenarios) + "\n")
    print(f"written: {TABLE}")


if __name__ == "__main__":
    main()
