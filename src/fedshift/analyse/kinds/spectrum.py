"""Singular values of the feature covariance and effective rank (F2DC, Fig. 1).

Few large singular values mean that the features of all inputs lie in a small subspace: dimensional
collapse. The effective rank (Roy and Vetterli, EUSIPCO 2007) counts the directions that are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedshift.analyse.alike import Series, caption, series_of
from fedshift.analyse.finding import Finding, Rows
from fedshift.analyse.outputs import Array, features_of
from fedshift.analyse.pictures import draw
from fedshift.analyse.registry import register_kind
from fedshift.report.results import RunResult


@register_kind("spectrum", paper="F2DC Fig. 1", group="features")
def spectrum(
    results: Sequence[RunResult],
    *,
    site: str | None = None,
    domains: str = "",
    samples: int = 500,
    values: int = 100,
    each: bool = True,
    mixed: bool = False,
) -> Finding:
    """Singular values of the covariance of test features, largest first, and their effective rank.

    Options: site: whose own model; by default the one for all, or where a method has none, of each
    domain its first site's; domains: names joined by commas; samples: the largest number per
    domain; values: how many are listed and drawn, while the rank counts all; each: a spectrum per
    domain besides that of all.
    """
    found = series_of(results, mixed=mixed)
    table: Rows = []
    notes: list[str] = []
    for one in found:
        options = {"site": site, "domains": domains, "samples": samples}
        own, said = _rows(one, values, each=each, **options)
        table, notes = table + own, notes + said
    ranks = {r["method"]: r["effective_rank"] for r in table if r["domain"] == "all"}
    best = max(ranks, key=ranks.__getitem__)
    size = next(r["dimension"] for r in table if r["method"] == best)
    sentence = (
        f"The features of {best} use most directions: effective rank {ranks[best]:.1f} of {size}; "
        f"the least is {min(ranks.values()):.1f}."
    )
    figure = draw(lambda d: _figure(d, table, caption(found)))
    return Finding(table, figure, sentence, tuple(dict.fromkeys(notes)))


def _rows(one: Series, listed: int, *, each: bool, **options: Any) -> tuple[Rows, list[str]]:
    """Spectra of a method, averaged over its seeds; per domain, and of all features together."""
    held = [features_of(run, **options) for run in one.runs]
    names = held[0].names if each and len(held[0].names) > 1 else ()
    groups: dict[str, list[Array]] = {
        name: [f.features[f.domains == i] for f in held] for i, name in enumerate(names)
    }
    groups["all"] = [f.features for f in held]
    table: Rows = []
    for name, features in groups.items():
        if any(len(z) < 2 for z in features):
            continue  # a domain without a model
        spectra = [singular_values(z) for z in features]
        rank = float(np.mean([effective_rank(values) for values in spectra]))
        table += [
            {
                "method": one.label,
                "domain": name,
                "index": i,
                "singular_value": float(value),
                "effective_rank": rank,
                "dimension": features[0].shape[1],
                "n": len(spectra),
            }
            for i, value in enumerate(np.mean(spectra, axis=0)[:listed], 1)
        ]
    return table, [f.note for f in held if f.note]


def singular_values(features: Array) -> Array:
    """Singular values (D,) of the covariance of features (N, D), largest first.

    The covariance is sum_i (z_i - mean)(z_i - mean)^T / N; its singular values are the squared ones
    of the centred features, divided by N.
    """
    centred = features - features.mean(0)
    values = np.linalg.svd(centred, compute_uv=False) ** 2 / len(features)
    return np.pad(values, (0, features.shape[1] - len(values)))


def effective_rank(values: Array) -> float:
    """The exponential of the entropy of singular values as shares, between 1 and their number.

    >>> round(effective_rank(np.array([2.0, 2.0, 0.0, 0.0])), 6)
    2.0
    """
    total = values.sum()
    if total <= 0:
        return 0.0
    shares = values[values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def _figure(d: Any, table: Rows, note: str) -> Any:
    panels: dict[str, list[Any]] = {}
    for name in dict.fromkeys(row["domain"] for row in table):
        own = [row for row in table if row["domain"] == name]
        for method in dict.fromkeys(row["method"] for row in own):
            rows = [row for row in own if row["method"] == method]
            floor = max(row["singular_value"] for row in rows) * 1e-10 or 1e-300
            y = [max(row["singular_value"], floor) for row in rows]
            panels.setdefault(name, []).append(d.Line(method, [r["index"] for r in rows], y))
    chart = d.Chart("singular values of the feature covariance", note, x="index", scale="log")
    return d.lines(panels, chart)
