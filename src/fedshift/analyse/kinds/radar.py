"""Accuracy of each domain as a radar chart (FDSE, Fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence

from fedshift.analyse.alike import caption, series_of, under_protocol
from fedshift.analyse.finding import Finding, Rows
from fedshift.analyse.pictures import draw
from fedshift.analyse.registry import register_kind
from fedshift.base.errors import ConfigError
from fedshift.report.results import RunResult, cell_of


@register_kind("radar", paper="FDSE Fig. 3", group="numbers of rounds")
def radar(
    results: Sequence[RunResult],
    *,
    protocol: str | None = None,
    scaled: bool = True,
    mixed: bool = False,
) -> Finding:
    """Test accuracy per domain at the reported round, one spoke per domain.

    Options: scaled: divide each spoke by its largest value, as the paper does.
    """
    found, notes = under_protocol(series_of(results, mixed=mixed), protocol, mixed=mixed)
    outcome = found[0].runs[0].outcome(found[0].protocol)
    assert outcome is not None  # it has the protocol
    domains = list(outcome.metrics.domains)
    if len(domains) < 3:
        raise ConfigError(
            f"a radar needs three domains, and {found[0].protocol} has {', '.join(domains)}; "
            "choose a protocol with more, or another kind"
        )
    table: Rows = []
    for one in found:
        cells = {name: cell_of(one.runs, one.protocol, name) for name in domains}
        table += [
            {
                "method": one.label,
                "protocol": one.protocol,
                "domain": name,
                "mean": cell.mean,
                "std": cell.std if cell.n > 1 else None,
                "n": cell.n,
            }
            for name, cell in cells.items()
        ]
    values = {one.label: [r["mean"] for r in table if r["method"] == one.label] for one in found}
    highest = [max(column) for column in zip(*values.values(), strict=True)]
    wins = {
        label: sum(v == top for v, top in zip(own, highest, strict=True))
        for label, own in values.items()
    }
    best = max(wins, key=wins.__getitem__)
    sentence = (
        f"{best} is best on {wins[best]} of {len(domains)} domains under {found[0].protocol}."
    )
    divisors = highest if scaled else [100.0] * len(domains)
    shares = {
        label: [v / d if d else 0.0 for v, d in zip(own, divisors, strict=True)]
        for label, own in values.items()
    }
    note = caption(found) + ("; each spoke divided by its largest value" if scaled else "")
    figure = draw(lambda d: d.radar(domains, shares, d.Chart("accuracy per domain", note)))
    return Finding(table, figure, sentence, tuple(notes))
