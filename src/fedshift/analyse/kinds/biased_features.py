"""Biased local features and classifier outputs (FedDebias, Figs. 2, 3, 8 and 9).

A site's model after its local training, F_i, beside the global one, F_g. X1 is what the site has
seen: samples of its classes, or of its domain; X2 is the rest. Definition 3.3: local features are
biased if F_i(X1) is far from F_g(X1), or if F_i(X1) and F_i(X2) are close; the local classifier is
biased if it gives X2 the classes of X1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift.analyse.alike import caption, require_classes, series_of
from fedshift.analyse.finding import Finding, Rows
from fedshift.analyse.kinds.embedding import plane
from fedshift.analyse.outputs import Array, federation_of, outputs, own_models, some
from fedshift.analyse.pictures import draw
from fedshift.analyse.registry import register_kind
from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.data.federation import Federation
from fedshift.data.samples import union
from fedshift.experiment.models import load_model
from fedshift.report.results import RunResult


@register_kind("biased-features", paper="FedDebias Figs. 2, 3, 8, 9", group="features")
def biased_features(
    results: Sequence[RunResult],
    *,
    site: str = "",
    by: str = "auto",
    samples: int = 200,
    mixed: bool = False,
) -> Finding:
    """Local and global features of what a site has seen and has not, and what it predicts of it.

    ``shift`` is the mean distance |F_i(x) - F_g(x)| over X1, ``gap`` the distance of the means of
    X1 and X2; both are divided by the spread of the same model's features of X1. ``true``,
    ``local`` and ``global`` are the shares of each class among X2: of the labels, and predicted;
    ``one_local`` and ``one_global`` are the probabilities that both give to X2's first sample.
    F_i is the model that the site has trained, before aggregation, which the protocol
    personal-trained keeps, or its own one if the method keeps entries private. F_g is the model of
    a run on pooled data (`deepall`) if there is one among the runs, as in the paper; else the
    global model of the same run and round.

    Options: site: whose model, by default the first; by: what the site has not seen, classes or
    domains, by default classes if it lacks any; samples: the largest number per domain.
    """
    found = series_of(results, mixed=mixed)
    require_classes(found, "a biased classifier")
    pooled = [one for one in found if one.runs[0].config.build().pools_sites]
    looked_at = [one for one in found if one not in pooled]
    if not looked_at:
        raise ConfigError("runs on pooled data have no local model; give a federated run, too")
    table: Rows = []
    panels, numbers = {}, {}
    for one in looked_at:
        reference = pooled[0].runs[0] if pooled else None
        looked = _look(one.runs[0], reference, site, (by, samples))
        panels[one.label] = looked
        numbers[one.label] = looked.numbers()
        table += [
            {"method": one.label, "site": looked.site, "unseen": looked.by}
            | row
            | numbers[one.label]
            for row in looked.shares()
        ]
    least = min(numbers, key=lambda name: numbers[name]["shift"])
    first = next(iter(panels.values()))
    sentence = (
        f"Local training at {first.site} moves the features of {least} least: by "
        f"{numbers[least]['shift']:.2f} of their spread; it predicts "
        f"{100 * numbers[least]['into_own']:.0f} % of what it has not seen as classes it has seen."
    )
    whose = f"F_g: {pooled[0].label}" if pooled else "F_g: of the same round"
    note = (
        f"{caption(found)}; {whose}; X1: {first.by} that {first.site} holds, X2: the others; t-SNE"
    )
    figure = draw(lambda d: _figure(d, panels, note))
    return Finding(table, figure, sentence)


@dataclass(frozen=True)
class LocalBias:
    """Features and outputs of a site's model and of the global one, on X1 and X2."""

    site: str
    by: str
    classes: tuple[str, ...]
    own: Array  # (K,) how many training samples of each class the site has
    local: tuple[Array, Array]  # features of X1 and X2 by the site's model
    glob: tuple[Array, Array]  # the same by the global model
    labels: tuple[Array, Array]
    predicted: tuple[Array, Array]  # classes of X2: by the site's model, by the global one
    one: tuple[Array, Array]  # probabilities (K,) of the first sample of X2, by both

    def numbers(self) -> dict[str, float]:
        """Shift, gaps, and the share of X2 that is predicted as a class of the site."""
        into = [float((self.own[k] > 0).mean()) for k in self.predicted]
        return {
            "shift": shift(self.local[0], self.glob[0]),
            "gap_local": gap(*self.local),
            "gap_global": gap(*self.glob),
            "into_own": into[0],
            "into_own_global": into[1],
        }

    def shares(self) -> Rows:
        """Per class: samples at the site, and its share among X2's labels and predictions."""
        columns = [
            np.bincount(k, minlength=len(self.classes)) / max(1, len(k))
            for k in (self.labels[1], *self.predicted)
        ]
        return [
            {
                "class": name,
                "at_site": int(self.own[i]),
                "true": float(columns[0][i]),
                "local": float(columns[1][i]),
                "global": float(columns[2][i]),
                "one_local": float(self.one[0][i]),
                "one_global": float(self.one[1][i]),
            }
            for i, name in enumerate(self.classes)
        ]


def spread(features: Array) -> float:
    """Root mean squared distance of features (N, D) from their mean."""
    return float(np.sqrt(((features - features.mean(0)) ** 2).sum(1).mean()))


def shift(local: Array, glob: Array) -> float:
    """Mean |F_i(x) - F_g(x)| over the same inputs, in units of the spread of F_g."""
    return float(np.linalg.norm(local - glob, axis=1).mean() / max(spread(glob), 1e-300))


def gap(seen: Array, other: Array) -> float:
    """Distance of the means of two sets of features, in units of the spread of the first."""
    return float(np.linalg.norm(seen.mean(0) - other.mean(0)) / max(spread(seen), 1e-300))


def _look(
    run: RunResult, reference: RunResult | None, site: str, options: tuple[str, int]
) -> LocalBias:
    by, samples = options
    federation = federation_of(run)
    name = site or next(iter(federation.sites))
    if name not in federation.sites:
        raise UnknownNameError.of("site of this run", name, federation.sites)
    labels = federation.sites[name].data.train.labels
    own = np.bincount(labels.numpy(), minlength=len(federation.classes))
    kind = ("classes" if (own == 0).any() else "domains") if by == "auto" else by
    pool, seen = pool_of(federation, name, kind, own, samples)
    local = outputs(own_models(run, [name])[name], pool)
    whole = load_model(reference) if reference else load_model(run, protocol=_same_round(run))
    glob = outputs(whole, pool)
    if seen.all() or not seen.any():
        raise ConfigError(f"{name} has seen all {kind} or none, so there is nothing to compare")
    z, g, y = (t.numpy().astype(float) for t in (local[0], glob[0], local[2]))
    return LocalBias(
        name,
        kind,
        federation.classes,
        own,
        (z[seen], z[~seen]),
        (g[seen], g[~seen]),
        (y[seen].astype(int), y[~seen].astype(int)),
        (local[1].argmax(1).numpy()[~seen], glob[1].argmax(1).numpy()[~seen]),
        (_first(local[1], ~seen), _first(glob[1], ~seen)),
    )


def _first(logits: Tensor, chosen: Array) -> Array:
    """Probabilities (K,) of the first chosen sample, from logits (N, K)."""
    found: Array = logits[torch.from_numpy(chosen)][0].double().softmax(0).numpy()
    return found


def _same_round(run: RunResult) -> Any:
    """The protocol whose selected round the trained model is of: the global one must be of it."""
    trained = run.config.scenario.scored == "trained"
    return "personal" if trained else "personal-trained"


def pool_of(
    federation: Federation, site: str, kind: str, own: Array, samples: int
) -> tuple[Any, Array]:
    """Test samples of the training domains, and of each whether the site has seen its like."""
    if kind not in ("classes", "domains"):
        raise ConfigError(f"by is {kind!r}; a site lacks classes or domains")
    held = {n: some(s.test, samples, n) for n, s in federation.domains.items()}
    pool = union(list(held.values()))
    home = federation.sites[site].domain
    if kind == "classes":
        return pool, own[pool.labels.numpy()] > 0
    seen = torch.cat([torch.full((len(s),), n == home) for n, s in held.items()])
    return pool, seen.numpy()


BARS = {"true": "X2: labels", "local": "X2: F_i predicts", "global": "X2: F_g predicts"}


def _figure(d: Any, panels: dict[str, LocalBias], note: str) -> Any:
    rows = {}
    for label, found in panels.items():
        parts = found.glob[0], *found.local
        xy = plane(np.concatenate(parts), "tsne")
        labels = np.concatenate([found.labels[0], *found.labels])
        marks = np.repeat([0, 1, 2], [len(part) for part in parts])
        shares = found.shares()
        bars = {word: [row[k] for row in shares] for k, word in BARS.items()}
        rows[label] = d.Cloud(xy, labels, marks), bars
    first = next(iter(panels.values()))
    names = first.classes, ("F_g(X1)", "F_i(X1)", "F_i(X2)")
    words = {"x": "class", "y": "share of X2"}
    return d.clouds_and_bars(rows, names, d.Chart("local features and outputs", note, **words))
