"""A comparison as one self-contained HTML page.

The commands ``compare`` and ``report`` write it. The page must never load anything from elsewhere,
and every name that comes from a user or a run is escaped: by the template in tables, by JSON and
``textContent`` in charts. A Content-Security-Policy in the page tells the browser the same: it runs
the page's own scripts, known by their hashes, and loads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedshift.base.errors import ConfigError
from fedshift.base.files import write_bytes
from fedshift.base.version import __version__
from fedshift.report import grids
from fedshift.report.answers import answers
from fedshift.report.chart_data import section_data
from fedshift.report.departed import departed, shares
from fedshift.report.page_parts import data_block, render
from fedshift.report.pictures import PagePicture
from fedshift.report.rerun import reruns
from fedshift.report.results import Comparison
from fedshift.report.tables import CHOICES, Summary, rows, runs_of, summaries

PROTOCOLS = {
    "personal": "Each client's own model on its own domain, after the round.",
    "personal-trained": "Each client's own model on its own domain, as it trained it: after its "
    "local training, before aggregation.",
    "global": "One model on every training domain.",
    "unseen": "One model on a domain that no client has.",
    "unseen-adapted": "The same after label-free adaptation to that domain; "
    "without a part that adapts it equals unseen.",
}


def write(
    comparison: Comparison,
    path: Path,
    against: str | None = None,
    pictures: Sequence[PagePicture] = (),
) -> Path:
    """Write the page, atomically; paths of run directories are relative to its folder.

    With ``against``, every table is followed by the differences to that method. ``pictures`` are
    figures of analyses, shown at the end.
    """
    if not comparison.results:
        raise ConfigError(f"no run is finished, so {path} would be empty; finish one first")
    write_bytes(path, page(comparison, path.parent, against, pictures).encode())
    return path


def page(
    comparison: Comparison,
    folder: Path,
    against: str | None = None,
    pictures: Sequence[PagePicture] = (),
) -> str:
    """The page as text, for a file in ``folder``."""
    found = summaries(comparison, against)
    anchors = [f"scenario-{i}" for i in range(1, len(found) + 1)]
    data = {
        "methods": comparison.methods,
        "sections": [section_data(comparison, s, a) for s, a in zip(found, anchors, strict=True)],
    }
    return render(
        "report.html.j2",
        "report.js",
        title=title(comparison),
        comparison=comparison,
        sections=[
            section(comparison, s, folder) | {"id": a} for s, a in zip(found, anchors, strict=True)
        ],
        environments=grids.environments(comparison.results),
        pictures=pictures,
        data=data_block(data),
        version=__version__,
    )


def title(comparison: Comparison) -> str:
    """Number of methods, and the scenarios."""
    count = len(comparison.methods)
    return f"{count} method{'s' * (count != 1)} on {', '.join(comparison.scenarios)}"


def section(comparison: Comparison, summary: Summary, folder: Path) -> dict[str, Any]:
    """Everything the page shows about one scenario."""
    runs = runs_of(comparison, summary.scenario)
    return {
        "name": summary.scenario,
        "text": runs[0].config.scenario.summary,
        "remark": comparison.remarks.get(runs[0].config.scenario.name, ""),
        "answers": answers(comparison, summary),
        "facts": grids.facts(runs),
        "note": summary.note,
        "summary": grids.overview(comparison, summary),
        "apart": grids.apart(comparison, summary),
        "apart_note": summary.apart_note,
        "protocols": [
            protocol(comparison, summary, name, number)
            for number, name in enumerate(summary.columns)
        ],
        "costs": grids.costs(comparison, summary),
        "shares": shares(comparison, summary),
        "departed": departed(comparison, summary),
        "privacy": {r.label: r.summary["privacy"] for r in runs if r.summary.get("privacy")},
        "confounders": summary.confounders,
        "reruns": reruns(comparison, summary.scenario),
        "runs": grids.run_list(comparison, runs, folder),
    }


def protocol(comparison: Comparison, summary: Summary, name: str, number: int) -> dict[str, Any]:
    """One protocol: places of its charts, and tables at the selected, last and oracle round.

    Charts are found by numbers: a name comes from a run's files and may hold anything.
    """
    found = {c: rows(comparison, summary.scenario, name, c) for c in CHOICES}
    confusion = any(
        o.metrics.confusion for r in runs_of(comparison, summary.scenario) if (o := r.outcome(name))
    )
    return {
        "name": name,
        "number": number,
        "text": PROTOCOLS.get(name, ""),
        "tables": {c: grids.per_domain(comparison, found[c], c) for c in CHOICES},
        "missing": [row.method for row in found["selected"] if not row.avg.n],
        "further": grids.further_measures(comparison, summary.scenario, name),
        "confusion": confusion,
    }
