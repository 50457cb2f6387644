"""What left the sites, per method, as a table of a page: the ledger, added up.

``report.html`` shows it. One run per method is read, that of the lowest seed: what leaves a site
follows from the method, and ledgers can be large. A kind that no part declares is marked.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedshift.base.errors import FedshiftError
from fedshift.report.grids import Grid, Score, places_of
from fedshift.report.results import Comparison, RunResult
from fedshift.report.tables import Summary, shared, size
from fedshift.runs.what_left import what_left

HEADS = ("method", "kind", "what it is", "sites", "bytes", "per site and round")
UNDECLARED = "NOT DECLARED by any part"
LARGEST = 200_000_000  # bytes of a ledger that a page still adds up


def shares(comparison: Comparison, summary: Summary) -> Grid:
    """Which data-derived payload left the sites, per method, by what its parts declare."""
    found = [(row.method, comparison.of(row.method, summary.scenario)[0]) for row in summary.rows]
    lines = [[method, shared(run)] for method, run in found]
    places = places_of(comparison, [method for method, _ in found])
    return Grid("", ("method", "beside model weights"), lines, methods=places)


def departed(comparison: Comparison, summary: Summary) -> Grid:
    """One line per method and kind of payload that left a site."""
    lines: list[list[str | Score]] = []
    names: list[str] = []
    for row in summary.rows:
        runs = comparison.of(row.method, summary.scenario)
        found = _kinds(min(runs, key=lambda r: r.config.seed))
        lines += [[row.method, *line] for line in found]
        names += [row.method] * len(found)
    return Grid("", HEADS, lines, methods=places_of(comparison, names))


def _kinds(run: RunResult) -> Sequence[Sequence[str | Score]]:
    """(kind, what it is, sites, bytes, bytes per site and round) of one run."""
    if run.path is None:
        return [_unread(run, "the run was kept in memory")]
    file = run.path / "ledger.jsonl"
    if file.exists() and file.stat().st_size > LARGEST:
        return [_unread(run, "its ledger is larger than 200 MB; read it with the ledger command")]
    try:
        left = what_left(run.path)
    except FedshiftError as error:
        return [_unread(run, str(error))]
    out: list[list[str | Score]] = []
    for task, kind in dict.fromkeys((one.task, one.kind) for one in left):
        own = [one for one in left if (one.task, one.kind) == (task, kind)]
        total, sites = sum(one.bytes for one in own), len({one.client for one in own})
        visits = len({(one.client, one.round) for one in own})
        mark = "" if own[0].declared else UNDECLARED
        out.append(
            [
                f"{task}: {kind}",
                Score(own[0].declared, mark=mark),
                Score(str(sites), value=sites),
                Score(size(total), value=total),
                Score(size(total / visits), value=total / visits),
            ]
        )
    return out


def _unread(run: RunResult, why: str) -> Sequence[str | Score]:
    """A line for a run whose ledger cannot be read: what its parts declared."""
    none = Score("\N{EN DASH}")
    return [f"not read: {why}", f"beside model weights: {shared(run)}", none, none, none]
