"""Results in notebooks: as HTML tables, and as pandas data frames.

The methods ``_repr_html_`` and ``to_frame`` of results call it. Every name that comes from a user
or a run must be escaped, because a notebook executes what its HTML contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from fedshift.evaluate.metrics import Metrics
from fedshift.report import optional
from fedshift.report.cells import Cell
from fedshift.report.results import Comparison, RunResult
from fedshift.report.sweeps import Sweep
from fedshift.report.tables import MEASURES, joined, measure_name, measure_note, summaries


def run_table(result: RunResult) -> str:
    """One line per protocol: the selected round, AVG, STD, ALL, worst, and every domain."""
    outcomes = {name: result.outcome(name) for name in result.summary["protocols"]}
    domains = list(dict.fromkeys(d for o in outcomes.values() if o for d in o.metrics.domains))
    heads = ["protocol", "round", "chosen by", *map(measure_name, MEASURES), *domains]
    lines = []
    for name, outcome in outcomes.items():
        if outcome is None:
            continue
        numbers = [getattr(outcome.metrics, measure) for measure in MEASURES]
        numbers += [outcome.metrics.domains.get(domain) for domain in domains]
        shown = ["" if value is None else f"{value:.1f}" for value in numbers]
        lines.append([name, str(outcome.round), outcome.rule, *shown])
    title = f"{result.label} on {result.config.scenario_label}, seed {result.config.seed}"
    where = f"kept in {result.path}" if result.path else "not kept on disk"
    return _table(title, heads, lines, f"{measure_note(result)}; {where}.")


def comparison_tables(comparison: Comparison) -> str:
    """One table per scenario, the best of each column in bold, then the runs that failed."""

    def cell(value: Cell, mark: str, best: bool) -> str:
        text = escape(f"{value.shown}{mark}")
        return f"<b>{text}</b>" if best else text

    out = []
    for summary in summaries(comparison):
        lines = [
            [escape(method), *cells, *traffic] for method, cells, traffic in summary.lines(cell)
        ]
        note = f"{summary.note}. {joined(summary.confounders)}."
        out.append(_table(summary.scenario, summary.headings, lines, note, raw=True))
        if summary.apart:
            title = f"difference to {summary.against}"
            out.append(_table(title, summary.apart_headings, summary.apart, summary.apart_note))
    failed = [f"{f.config.label}: {f.reason}" for f in comparison.failures]
    return "".join(out) + "".join(f"<p>failed: {escape(line)}</p>" for line in failed)


def sweep_table(sweep: Sweep) -> str:
    """One line per setting."""
    return _table(f"sweep of {sweep.title}", sweep.headings, sweep.lines, f"{sweep.note}.")


def _table(
    title: str,
    heads: Sequence[str],
    lines: Iterable[Sequence[str]],
    note: str,
    *,
    raw: bool = False,
) -> str:
    """An HTML table; cells are escaped here unless they are ``raw``, that is, HTML already."""
    shown = [[cell if raw else escape(cell) for cell in line] for line in lines]
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{c}</td>' for c in line)}</tr>" for line in shown)
    return (
        f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table><p><small>{escape(note)}</small></p>"
    )


def history(result: RunResult) -> Any:
    """A data frame: one row per scored round, protocol and split, with measures and domains."""
    rows = [
        {"round": row["round"], "protocol": protocol, "split": split} | _numbers(numbers)
        for row in result.history
        for protocol, splits in row.get("scores", {}).items()
        for split, numbers in splits.items()
    ]
    return optional.pandas().DataFrame(rows)


def selected(comparison: Comparison) -> Any:
    """A data frame: one row per run and protocol, with the numbers of the selected round."""
    rows = []
    for result in comparison.results:
        first = {
            "method": result.label,
            "scenario": comparison.scenario_of(result),
            "seed": result.config.seed,
        }
        for protocol, found in result.summary["protocols"].items():
            chosen = found["selected"]
            about = {"protocol": protocol, "round": chosen["round"], "rule": chosen["rule"]}
            rows.append(first | about | _numbers(chosen["metrics"]))
    return optional.pandas().DataFrame(rows)


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Measures by name, domains as ``domain:NAME``."""
    found = Metrics.from_json(metrics)
    plain = {key: found.value(key) for key in (*MEASURES, "loss")} | found.measures
    return plain | {f"domain:{name}": value for name, value in metrics["domains"].items()}
