"""Measures what the five core papers claim, small; writes docs/tables/claims/NAME.md.

``python scripts/claims.py fdse csac-digits`` runs what is missing of a method or of one table (all
without an argument) and writes it. Runs are resumable. Real data come through ``FEDSHIFT_SOURCES``;
a scenario whose data are not at hand is left out, and its table is not touched.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fedshift
from fedshift.cli.progress import Board
from fedshift.data.label_skew import SequentialDirichlet
from fedshift.errors import DataError
from fedshift.results import Comparison, RunResult

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "runs" / "claims"
TABLES = ROOT / "docs" / "tables" / "claims"


@dataclass(frozen=True)
class Claim:
    """Methods side by side in one scenario; the first one is what the others are compared with."""

    name: str  # of the table
    scenario: str
    methods: Sequence[str]
    protocols: Sequence[str]
    changes: dict[str, Any] = field(default_factory=dict)
    seeds: int = 3
    keys: Sequence[str] = ("avg",)  # and worst, where the claim is about it


PERSONAL = ("personal", "unseen", "unseen-adapted")
FDSE = ("fedavg", "fedbn", "fdse")
LEFT_OUT = {"domains": ("caltech", "amazon", "webcam"), "unseen": "dslr", "newcomer": "mean"}
F2DC = ("fedavg", "f2dc", "f2dc[modules=shared]")
FEDDEBIAS = ("fedavg", "feddebias", "feddebias[max_step=false]")
COMPONENTS = ("feddebias - contrastive-projector", "feddebias - balanced-output")
BOTH = ("avg", "worst")
SKEWED = {"partition": SequentialDirichlet(clients=2)}
FEDKA = ("fedavg", "fedka", "fedka - federated-voting")
VOTING = ("fedka - global-disentangler - embedding-matching",)
PHOTO = {"domains": ("scan", "print", "meter", "outline"), "unseen": "photo"}
ORACLE = {"selection": "oracle"}

CLAIMS: dict[str, list[Claim]] = {
    "fdse": [
        Claim("fdse-digits", "digits", FDSE, PERSONAL),
        Claim("fdse-office", "fdse/office-caltech10", FDSE, ("personal",)),
        Claim(
            "fdse-office-unseen",
            "fdse/office-caltech10",
            FDSE,
            PERSONAL,
            LEFT_OUT,
        ),
        Claim("fdse-pacs", "fdse/pacs", FDSE, ("personal",)),
    ],
    "f2dc": [
        Claim("f2dc-digits", "digits", F2DC, ("global",)),
        Claim("f2dc-office", "f2dc/office-caltech", F2DC, ("global",)),
        Claim("f2dc-pacs", "f2dc/pacs", F2DC, ("global",)),
    ],
    "fedka": [
        Claim("fedka-photo", "digits", (*FEDKA, *VOTING), ("unseen",), PHOTO | ORACLE),
        Claim("fedka-outline", "digits", FEDKA, ("unseen",), ORACLE),
        Claim("fedka-mnist-m", "fedka/digit-five/mnist-m", (*FEDKA, *VOTING), ("unseen",)),
        Claim("fedka-books", "fedka/amazon/books", FEDKA, ("unseen",)),
    ],
    "feddebias": [
        Claim("feddebias-digits", "digits", (*FEDDEBIAS, *COMPONENTS), ("global",), keys=BOTH),
        Claim("feddebias-skewed", "digits", FEDDEBIAS, ("global",), SKEWED, keys=BOTH),
        Claim("feddebias-rotated", "feddebias/rotated-mnist", FEDDEBIAS, ("global",), keys=BOTH),
        Claim("feddebias-pacs", "feddebias/pacs", FEDDEBIAS, ("global",), keys=BOTH),
    ],
}


def measure(claim: Claim) -> str:
    """The table of one claim, running what is missing."""
    with Board() as board:
        found = fedshift.compare(
            list(claim.methods),
            [claim.scenario],
            seeds=range(claim.seeds),
            out=RUNS,
            watch=board.watch,
            **({"protocols": tuple(claim.protocols)} | claim.changes),
        )
    columns = [(protocol, key) for protocol in claim.protocols for key in claim.keys]
    heads = [p if k == "avg" else f"{p}, {k}" for p, k in columns]
    lines = [
        "| method | " + " | ".join(heads) + f" | {heads[0]}: difference ± standard error |",
        "|---|" + "---|" * (len(columns) + 1),
    ]
    runs = {label: [r for r in found.results if r.label == label] for label in found.methods}
    base = next(iter(runs.values()))
    for label, own in runs.items():
        cells = [str(_cell(found, own, *column)) for column in columns]
        gap = "" if own is base else _gap(own, base, *columns[0])
        lines.append(f"| `{label}` | " + " | ".join(cells) + f" | {gap} |")
    lines += [f"| `{f.config.label}` | diverged: {f.reason} |" for f in found.failures]
    return "\n".join([*lines, ""])


def _cell(found: Comparison, runs: list[RunResult], protocol: str, key: str) -> object:
    return found.cell(runs[0].label, runs[0].config.place, protocol, key)


def _value(run: RunResult, protocol: str, key: str) -> float:
    outcome = run.outcome(protocol, "selected")
    return math.nan if outcome is None else getattr(outcome.metrics, key)


def _gap(runs: list[RunResult], base: list[RunResult], protocol: str, key: str) -> str:
    """Mean over seeds of the difference within each seed, and its standard error."""
    pairs = zip(runs, base, strict=True)
    gaps = [_value(a, protocol, key) - _value(b, protocol, key) for a, b in pairs]
    error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    return f"{statistics.fmean(gaps):+.1f} ± {error:.1f}"


def main(wanted: Sequence[str]) -> None:
    """Write the wanted tables: by method, by name, or all."""
    TABLES.mkdir(parents=True, exist_ok=True)
    for method, claims in CLAIMS.items():
        for claim in claims:
            if wanted and not {method, claim.name} & set(wanted):
                continue
            try:
                table = measure(claim)
            except DataError as error:
                print(f"{claim.name}: left out, {error}")
                continue
            (TABLES / f"{claim.name}.md").write_text(table)
            print(claim.name, table, sep="\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
