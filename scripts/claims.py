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
from fedshift.base.errors import DataError
from fedshift.base.process import one_thread
from fedshift.core.config import configure
from fedshift.data.dealing.label_skew import SequentialDirichlet
from fedshift.data.dealing.partitions import PerDomain
from fedshift.data.dealing.splits import Random
from fedshift.evaluate.protocols import evaluate
from fedshift.experiment.progress import ProgressBoard
from fedshift.experiment.session import Session, prepare
from fedshift.methods.f2dc.layers import DecouplingNeck
from fedshift.report.results import Cell, Comparison, RunResult
from fedshift.transports import InProcess

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
LEFT_OUT = {
    "domains": ("caltech", "amazon", "webcam"),
    "unseen": "dslr",
    "private_at_new_site": "mean",
}
F2DC = ("fedavg", "f2dc", "f2dc[modules=shared]")
FEDDEBIAS = ("fedavg", "feddebias", "feddebias[max_step=false]")
COMPONENTS = ("feddebias - contrastive-projector", "feddebias - balanced-output")
BOTH = ("avg", "worst")
SKEWED = {"partition": SequentialDirichlet(clients=2)}
FEDKA = ("fedavg", "fedka", "fedka - federated-voting")
VOTING = ("fedka - global-disentangler - embedding-matching",)
PHOTO = {"domains": ("scan", "print", "meter", "outline"), "unseen": "photo"}
ORACLE = {"selection": "oracle"}
WHOLE = {"partition": PerDomain()}  # one client per look with all its images, the paper's layout
HALVES = {"partition": PerDomain(clients_per_domain=2)}  # all images of a look at its two sites
CSAC = ("fedavg", "csac", "csac[acquisition=1]", "csac[lam=0]")
TABLE_4 = ("csac[distance=average]", "csac[distance=similarity]")

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
        Claim("f2dc-digits-whole", "digits", F2DC, ("global",), HALVES),
        Claim("f2dc-office", "f2dc/office-caltech", F2DC, ("global",)),
        Claim("f2dc-pacs", "f2dc/pacs", F2DC, ("global",)),
    ],
    "fedka": [
        Claim("fedka-photo", "digits", (*FEDKA, *VOTING), ("unseen",), PHOTO | ORACLE),
        Claim("fedka-photo-whole", "digits", FEDKA, ("unseen",), PHOTO | ORACLE | WHOLE),
        Claim("fedka-outline-whole", "digits", FEDKA, ("unseen",), ORACLE | WHOLE),
        Claim("fedka-mnist-m", "fedka/digit-five/mnist-m", FEDKA, ("unseen",)),
        Claim("fedka-books", "fedka/amazon/books", FEDKA, ("unseen",)),
    ],
    "csac": [
        Claim("csac-digits", "digits", (*CSAC, *TABLE_4), ("unseen",)),
        Claim("csac-deg0", "csac/rotated-mnist/deg0", (*CSAC, *TABLE_4), ("unseen",)),
        Claim("csac-deg75", "csac/rotated-mnist/deg75", (*CSAC, *TABLE_4), ("unseen",)),
    ],
    "feddebias": [
        Claim("feddebias-digits", "digits", (*FEDDEBIAS, *COMPONENTS), ("global",), keys=BOTH),
        Claim("feddebias-skewed", "digits", FEDDEBIAS, ("global",), SKEWED, keys=BOTH),
        Claim(
            "feddebias-rotated",
            "csac/rotated-mnist/deg75",
            FEDDEBIAS,
            ("global",),
            {"split": Random()},
            keys=BOTH,
        ),
        Claim("feddebias-pacs", "feddebias/pacs", FEDDEBIAS, ("global",), keys=BOTH),
    ],
}


def measure(claim: Claim) -> str:
    """The table of one claim, running what is missing."""
    with ProgressBoard() as board:
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
    return found.cell(runs[0].label, runs[0].config.scenario_label, protocol, key)


def _value(run: RunResult, protocol: str, key: str) -> float:
    outcome = run.outcome(protocol, "selected")
    return math.nan if outcome is None else getattr(outcome.metrics, key)


def _gap(runs: list[RunResult], base: list[RunResult], protocol: str, key: str) -> str:
    """Mean over seeds of the difference within each seed, and its standard error."""
    pairs = zip(runs, base, strict=True)
    gaps = [_value(a, protocol, key) - _value(b, protocol, key) for a, b in pairs]
    error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    return f"{statistics.fmean(gaps):+.1f} ± {error:.1f}"


def maps(seeds: int = 3) -> str:
    """F2DC's Table 7 on finished runs: which of the four maps the classifier sees."""
    names = ("final", "robust", "related", "rectified")
    lines = ["| method | f~ | f+ | f- | f* |", "|---|---|---|---|---|"]
    for method in F2DC[1:]:
        found: dict[str, list[float]] = {name: [] for name in names}
        for seed in range(seeds):
            scenario = fedshift.find_scenario("digits", protocols=("global",))
            config, whole = configure(method, scenario, seed=seed)
            with one_thread():
                session = prepare(config, whole, RUNS / config.name)
                for name in names:
                    found[name].append(_scored_on(session, name))
        lines.append(f"| `{method}` | " + " | ".join(str(Cell.of(found[n])) for n in names) + " |")
    return "\n".join([*lines, ""])


def _scored_on(session: Session, name: str) -> float:
    """Global accuracy of the last round's model with one of the maps."""
    assert isinstance(session.transport, InProcess)
    for net in (session.server.net, session.transport.worker.net):
        for neck in (m for m in net.modules() if isinstance(m, DecouplingNeck)):
            neck.scored = name
    scored = evaluate(session.server, session.transport, session.federation, session.record)
    return scored["global"]["test"].avg


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
            write(claim.name, table)
        if method == "f2dc" and (not wanted or {"f2dc", "f2dc-maps"} & set(wanted)):
            write("f2dc-maps", maps())


def write(name: str, table: str) -> None:
    """Keep a table for the docs, and show it."""
    (TABLES / f"{name}.md").write_text(table)
    print(name, table, sep="\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
