"""How far domains are apart: train on one and test on the others, and distances of their features.

The proxy A-distance (Ben-David et al., NIPS 2006) is 2 (1 - 2 err) for the held-out error of a
linear classifier that tells two domains apart: 0 if it cannot, 2 if it never errs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedshift.analyse.alike import Series, caption, require_classes, series_of
from fedshift.analyse.finding import Finding, Rows
from fedshift.analyse.outputs import (
    Array,
    features_of,
    federation_of,
    outputs,
    own_models,
    require_on_disk,
    some,
    test_samples,
)
from fedshift.analyse.pictures import draw
from fedshift.analyse.registry import register_kind
from fedshift.base import seeds
from fedshift.base.errors import ConfigError, FedshiftError
from fedshift.report.results import RunResult


@register_kind("domain-gap", paper="Ben-David et al., NIPS 2006", group="domains")
def domain_gap(
    results: Sequence[RunResult],
    *,
    on: str = "features",
    samples: int = 200,
    mixed: bool = False,
) -> Finding:
    """Accuracy of each domain's own models on every domain, and distances between the domains.

    Rows of the accuracy matrix are the domains that a model was trained on, columns those that it
    is tested on; it needs models of single sites: the method `local`, or a run with the protocol
    personal-trained. Proxy A-distance and MMD are between the test samples of two domains.

    Options: on: features of the model for all, or inputs; samples: the largest number per domain.
    """
    if on not in ("features", "inputs"):
        raise ConfigError(f"on is {on!r}; distances are on features or on inputs")
    found = series_of(results, mixed=mixed)
    require_classes(found, "a domain gap")
    if len(found) > 1:
        names = ", ".join(one.label for one in found)
        raise ConfigError(f"a domain gap is of one method, and these are {names}; give one's runs")
    crossed, why = _crossed(found[0])
    apart = _apart(found[0], on, samples)
    domains = list(apart.names)
    table: Rows = [
        {
            "train": a,
            "test": b,
            "accuracy": crossed.get((a, b)),
            "proxy_a": apart.proxy.get((a, b)),
            "mmd": apart.mmd.get((a, b)),
            "n": len(found[0].runs),
        }
        for a in domains
        for b in domains
    ]
    far = max(apart.proxy, key=apart.proxy.__getitem__)
    sentence = (
        f"{far[0]} and {far[1]} are furthest apart in their {on}: proxy A-distance "
        f"{apart.proxy[far]:.2f} of 2."
    )
    if crossed:
        lost = [crossed[a, a] - v for (a, b), v in crossed.items() if a != b and (a, a) in crossed]
        sentence += f" A model of one domain loses {np.mean(lost):.1f} points on another."
    figure = draw(lambda d: _figure(d, table, domains, caption(found)))
    return Finding(table, figure, sentence, tuple(why))


def _crossed(one: Series) -> tuple[dict[tuple[str, str], float], list[str]]:
    """Accuracy by (trained, tested) domain, mean over sites and seeds; nothing if not kept."""
    hits: dict[tuple[str, str], list[float]] = {}
    for run in one.runs:
        require_on_disk(run)
        federation = federation_of(run)
        try:
            models = own_models(run, list(federation.sites))
        except FedshiftError as error:
            return {}, [" ".join((f"no accuracy across domains: {error}", *error.options))]
        for site, model in models.items():
            for name, held in test_samples(federation, run).items():
                _, logits, y = outputs(model, held)
                key = federation.sites[site].domain, name
                hits.setdefault(key, []).append(
                    100 * float((logits.argmax(1) == y).double().mean())
                )
    return {key: float(np.mean(values)) for key, values in hits.items()}, []


class _Apart:
    """Distances by pair of domains, the mean over seeds; symmetric."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.proxy: dict[tuple[str, str], float] = {}
        self.mmd: dict[tuple[str, str], float] = {}


def _apart(one: Series, on: str, samples: int) -> _Apart:
    found: _Apart | None = None
    for run in one.runs:
        points = _inputs(run, samples) if on == "inputs" else _features(run, samples)
        found = found or _Apart(list(points))
        for i, a in enumerate(found.names):
            for b in found.names[i + 1 :]:
                share = 1 / len(one.runs)
                for table, distance in ((found.proxy, proxy_a_distance), (found.mmd, mmd)):
                    value = share * distance(points[a], points[b])
                    table[a, b] = table[b, a] = table.get((a, b), 0.0) + value
    assert found is not None
    if len(found.names) < 2:
        raise ConfigError("these runs have one domain; a gap is between two")
    return found


def _features(run: RunResult, samples: int) -> dict[str, Array]:
    held = features_of(run, samples=samples)
    points = {name: held.features[held.domains == i] for i, name in enumerate(held.names)}
    return {name: z for name, z in points.items() if len(z)}


def _inputs(run: RunResult, samples: int) -> dict[str, Array]:
    held: Mapping[str, Any] = test_samples(federation_of(run), run)
    chunks = {name: [x for x, _ in some(own, samples, name).chunks()] for name, own in held.items()}
    return {
        name: np.concatenate([x.flatten(1).numpy() for x in parts]).astype(float)
        for name, parts in chunks.items()
    }


def proxy_a_distance(a: Array, b: Array) -> float:
    """2 (1 - 2 err) of a logistic regression that tells rows of ``a`` from rows of ``b``.

    Half of the rows fit it and the other half give the error, both ways; below 0 counts as 0.
    """
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415  slow to import

    n = min(len(a), len(b))
    x = np.concatenate([a[:n], b[:n]])
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-12)
    y = np.repeat([0, 1], n)
    order = seeds.numpy("analyse", "proxy-a").permutation(2 * n)
    halves = order[:n], order[n:]
    wrong = []
    for fit, held in (halves, halves[::-1]):
        model = LogisticRegression(C=0.1, max_iter=200).fit(x[fit], y[fit])
        wrong.append(float((model.predict(x[held]) != y[held]).mean()))
    return max(0.0, 2 * (1 - 2 * float(np.mean(wrong))))


def mmd(a: Array, b: Array, width: float | None = None) -> float:
    """Unbiased MMD^2 with the kernel exp(-|x - y|^2 / (2 width^2)) (Gretton et al., JMLR 2012).

    The width is by default the square root of half the median squared distance of all rows.
    """
    from scipy.spatial.distance import cdist  # noqa: PLC0415  slow to import

    both = np.concatenate([a, b])
    squared = cdist(both, both, "sqeuclidean")
    if width is None:
        width = float(np.sqrt(np.median(squared[np.triu_indices(len(both), 1)]) / 2)) or 1.0
    k = np.exp(-squared / (2 * width**2))
    n, m = len(a), len(b)
    own = (k[:n, :n].sum() - n) / (n * (n - 1)) + (k[n:, n:].sum() - m) / (m * (m - 1))
    return float(own - 2 * k[:n, n:].mean())


def _figure(d: Any, table: Rows, domains: Sequence[str], note: str) -> Any:
    def matrix(key: str) -> Array:
        found = [np.nan if row[key] is None else row[key] for row in table]
        return np.array(found, dtype=float).reshape(len(domains), -1)

    titles = {"accuracy": "accuracy: trained on row", "proxy_a": "proxy A-distance", "mmd": "MMD²"}
    panels = {t: matrix(k) for k, t in titles.items() if np.isfinite(matrix(k)).any()}
    return d.matrices(panels, domains, domains, d.Chart("gap between domains", note))
