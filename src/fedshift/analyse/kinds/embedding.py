"""Features in the plane by t-SNE or PCA: colours are classes, markers domains (FDSE, Fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedshift.analyse.alike import caption, require_classes, series_of
from fedshift.analyse.finding import Finding, Rows
from fedshift.analyse.outputs import Array, features_of
from fedshift.analyse.pictures import draw
from fedshift.analyse.registry import register_kind
from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.report.results import RunResult


@register_kind("embedding", paper="FDSE Fig. 4, F2DC Fig. 4, CSAC Fig. 8", group="features")
def embedding(
    results: Sequence[RunResult],
    *,
    by: str = "tsne",
    site: str | None = None,
    domains: str = "",
    samples: int = 150,
    perplexity: float = 30.0,
    mixed: bool = False,
) -> Finding:
    """Test features in the plane, one panel per method: classes are colours, domains markers.

    Distances in a t-SNE picture mean little; the silhouettes are those of the features themselves:
    near 1 if groups are apart, 0 if they overlap. Good features are apart by class, not by domain.

    Options: by: tsne or pca; site, domains, samples: as for spectrum; perplexity: of t-SNE.
    """
    if by not in METHODS:
        raise UnknownNameError.of("projection", by, METHODS)
    found = series_of(results, mixed=mixed)
    require_classes(found, "an embedding")
    if any(len(one.runs) > 1 for one in found):
        found = [type(one)(one.label, one.runs[:1]) for one in found]
    table: Rows = []
    panels, notes, told = {}, [], {}
    for one in found:
        held = features_of(one.runs[0], site=site, domains=domains, samples=samples)
        xy = plane(held.features, by, perplexity)
        told[one.label] = (
            silhouette(held.features, held.labels), silhouette(held.features, held.domains)
        )  # fmt: skip
        notes += [held.note] if held.note else []
        panels[one.label] = (xy, held)
        table += [
            {
                "method": one.label,
                "x": float(x),
                "y": float(y),
                "class": held.classes[k],
                "domain": held.names[d],
            }
            for (x, y), k, d in zip(xy, held.labels, held.domains, strict=True)
        ]
    best = max(told, key=lambda name: told[name][0])
    sentence = (
        f"Classes are furthest apart in the features of {best}: silhouette {told[best][0]:.2f} by "
        f"class, {told[best][1]:.2f} by domain."
    )
    notes += [f"{k}: silhouette {a:.3f} by class, {b:.3f} by domain" for k, (a, b) in told.items()]
    note = f"{caption(found)}; seed {found[0].runs[0].config.seed}; silhouettes by class, by domain"
    figure = draw(lambda d: _figure(d, panels, told, (f"features, {METHODS[by]}", note)))
    return Finding(table, figure, sentence, tuple(notes))


METHODS = {"tsne": "t-SNE", "pca": "PCA"}


def plane(features: Array, by: str, perplexity: float = 30.0) -> Array:
    """Features (N, D) in the plane (N, 2); the same numbers give the same picture."""
    if by == "pca":
        return pca(features)
    from sklearn.manifold import TSNE  # noqa: PLC0415  slow to import

    if len(features) < 4:
        raise ConfigError(f"t-SNE of {len(features)} samples says nothing; take more samples")
    near = min(perplexity, (len(features) - 1) / 3)
    made = TSNE(2, perplexity=near, init="pca", random_state=0, max_iter=500, n_jobs=1)
    return np.asarray(made.fit_transform(_standard(features).astype(np.float32)))


def _standard(features: Array) -> Array:
    """At most fifty principal components: t-SNE's usual first step, and much faster."""
    return pca(features, 50) if features.shape[1] > 50 else features - features.mean(0)


def pca(features: Array, wanted: int = 2) -> Array:
    """Coordinates (N, wanted) of features (N, D) along their principal axes, largest first.

    The sign of an axis is arbitrary; it is chosen so that its largest coordinate is positive.
    """
    centred = features - features.mean(0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    found = (u * s)[:, :wanted]
    found = np.pad(found, ((0, 0), (0, max(0, wanted - found.shape[1]))))
    largest = found[np.abs(found).argmax(0), np.arange(found.shape[1])]
    return found * np.where(largest < 0, -1.0, 1.0)


def silhouette(features: Array, groups: Array) -> float:
    """Mean silhouette of the groups; 0 where there is one group, or a sample of its own each."""
    from sklearn.metrics import silhouette_score  # noqa: PLC0415  slow to import

    count = len(np.unique(groups))
    return float(silhouette_score(features, groups)) if 1 < count < len(groups) else 0.0


def _figure(d: Any, panels: Any, told: Any, words: tuple[str, str]) -> Any:
    first = next(iter(panels.values()))[1]
    clouds = {
        f"{label} ({told[label][0]:.2f}, {told[label][1]:.2f})": d.Cloud(xy, h.labels, h.domains)
        for label, (xy, h) in panels.items()
    }
    return d.clouds(clouds, first.classes, first.names, d.Chart(*words))
