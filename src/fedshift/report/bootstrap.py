"""The bootstrap over test samples: how sure the numbers of a single seed are.

``report.results`` calls it for runs that kept their predictions. Test samples are drawn again with
replacement within each domain, and every measure is computed for each draw. A draw is a vector of
weights, how often each sample occurs, so all draws go through each formula at once; with weights of
one the formulas are those of ``core.objective``, which a test holds them to. The draws follow from
the name of the domain and its number of samples alone: two methods that were scored on the same
samples get the same draws, and their difference is paired.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift.base import seeds
from fedshift.core.objective import Objective, Regression
from fedshift.runs.predictions import KeptPredictions

Array = NDArray[Any]
Draws = dict[str, Array]  # by measure: its value in each draw, NaN where it is not defined
DRAWS = 1000
AT_ONCE = 20_000_000  # weights in memory
PAIRS = 200_000  # pairs of a positive and a negative sample that are compared one by one
KEPT = 4000  # samples of a domain up to which its draws are kept for the next method


def half_width(values: Array) -> float:
    """Half of the distance between the 2.5th and the 97.5th percentile; NaN if it is not known.

    A width of zero (a model that is never wrong) tells nothing of the population and is not known.
    """
    known = values[~np.isnan(values)]
    if len(known) < 0.9 * len(values):
        return float("nan")
    low, high = np.percentile(known, [2.5, 97.5])
    return float(high - low) / 2 if high > low else float("nan")


def domain_draws(found: Sequence[KeptPredictions], task: Objective, *, areas: bool = True) -> Draws:
    """Every measure of one domain in each draw: the mean over the models scored on it.

    Without ``areas`` the AUROC is left out, which takes most of the time.
    """
    each = [_draws(p, task, areas) for p in found]
    return {name: _mean([row[name] for row in each]) for name in each[0]}


def mean_draws(domains: Sequence[Draws]) -> Draws:
    """The mean over domains in each draw, over those for which a measure is defined."""
    return {name: _mean([row[name] for row in domains]) for name in domains[0]}


def _mean(rows: Sequence[Array]) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # defined nowhere: NaN is right
        return np.nanmean(np.stack(rows), axis=0)


def _draws(found: KeptPredictions, task: Objective, areas: bool) -> Draws:
    """Every measure of one model in each draw, some draws at a time."""
    n = len(found.y)
    step = max(1, min(DRAWS, AT_ONCE // max(1, n)))
    drawn = _kept_weights(found.domain, n) if n <= KEPT else _weights(found.domain, n, step)
    parts = [weighted(weights, found, task, areas=areas) for weights in drawn]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _weights(domain: str, n: int, step: int) -> Iterator[Array]:
    """How often each sample occurs in each draw (B, n), some draws at a time."""
    generator = np.random.default_rng(seeds.derive("bootstrap", domain, n))
    for start in range(0, DRAWS, step):
        rows = generator.integers(0, n, (min(step, DRAWS - start), n))
        yield np.stack([np.bincount(row, minlength=n) for row in rows])


@lru_cache(maxsize=16)
def _kept_weights(domain: str, n: int) -> tuple[Array]:
    """All draws of a small domain: every method of a comparison has the same ones."""
    return (np.concatenate([*_weights(domain, n, max(1, AT_ONCE // n))]).astype(np.uint16),)


def weighted(
    weights: Array, found: KeptPredictions, task: Objective, *, areas: bool = True
) -> Draws:
    """Every measure for each row of ``weights`` (B, n), shares in per cent."""
    w = weights.astype(np.float64)
    y, out = found.y.numpy(), found.out.numpy()
    if isinstance(task, Regression):
        return _regression(w, y.astype(np.float64), out[:, 0] * task.scale + task.shift)
    shares = _multi_label(w, y > 0.5, out) if y.ndim == 2 else _classes(w, y, out, areas)
    return {name: 100 * values for name, values in shares.items()}


def _classes(w: Array, y: Array, out: Array, areas: bool) -> Draws:
    """One class per sample; ``out`` holds outputs (n, K), or the predicted classes (n,)."""
    predicted = out.argmax(1) if out.ndim == 2 else out
    classes = int(max(y.max(), predicted.max())) + 1
    names = np.arange(classes)
    right = w @ ((y == predicted)[:, None] & (y[:, None] == names))  # (B, K)
    true, told = w @ (y[:, None] == names), w @ (predicted[:, None] == names)  # (B, K)
    found = {
        "accuracy": right.sum(1) / w.sum(1),
        "balanced_accuracy": _mean([*_ratio(right, true).T]),
        "macro_f1": _mean([*_ratio(2 * right, true + told).T]),
    }
    if out.ndim == 2 and areas:
        odds = _log_odds(out)
        found["auroc"] = _mean([_area(w, y == k, odds[:, k]) for k in range(out.shape[1])])
    return found


def _multi_label(w: Array, y: Array, out: Array) -> Draws:
    """Several labels per sample: each measure is the mean over labels that have it."""
    told = out > 0
    recalls, f1, areas = [], [], []
    for k in range(y.shape[1]):
        yes, no = w @ y[:, k], w @ ~y[:, k]
        hits, calls = w @ (y[:, k] & told[:, k]), w @ told[:, k]
        recalls.append((_ratio(hits, yes) + _ratio(no - (calls - hits), no)) / 2)
        f1.append(_ratio(2 * hits, yes + calls))
        areas.append(_area(w, y[:, k], out[:, k]))
    return {
        "accuracy": w @ (y == told).mean(1) / w.sum(1),
        "balanced_accuracy": _mean(recalls),
        "macro_f1": _mean(f1),
        "auroc": _mean(areas),
    }


def _regression(w: Array, y: Array, predicted: Array) -> Draws:
    """A number per sample; R2 in per cent."""
    n = w.sum(1)
    error = predicted - y
    total = w @ y**2 - (w @ y) ** 2 / n
    return {
        "r2": 100 * (1 - _ratio(w @ error**2, total)),
        "mae": w @ np.abs(error) / n,
        "rmse": np.sqrt(w @ error**2 / n),
    }


def _ratio(a: Array, b: Array) -> Array:
    """A / b, NaN where b is zero."""
    return np.divide(a, b, out=np.full(np.shape(b), np.nan), where=b > 0)


def _log_odds(out: Array) -> Array:
    """log(p / (1 - p)) of outputs (n, K), in the precision in which areas are computed."""
    z = out.astype(np.float64)
    z = z - z.max(1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
    with np.errstate(divide="ignore"):
        return (log_p - np.log(-np.expm1(log_p))).astype(np.float32)


def _area(w: Array, positive: Array, scores: Array) -> Array:
    """Area under the ROC curve for each row of weights; ties count half, NaN without both sides."""
    if 0 < positive.sum() * (~positive).sum() < PAIRS:
        return _area_of_pairs(w[:, positive], w[:, ~positive], scores[positive], scores[~positive])
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=np.nan) != 0)
    yes = np.add.reduceat(w[:, order] * positive[order], starts, axis=1)  # (B, groups of ties)
    no = np.add.reduceat(w[:, order] * ~positive[order], starts, axis=1)
    below = np.cumsum(no, axis=1) - no / 2
    return _ratio((yes * below).sum(1), yes.sum(1) * no.sum(1))


def _area_of_pairs(yes: Array, no: Array, above: Array, below: Array) -> Array:
    """The same from all pairs of a positive and a negative, which is faster if there are few."""
    won = (above[:, None] > below) + (above[:, None] == below) / np.float32(2)  # (yes, no)
    counts = yes.astype(np.float32) @ won.astype(np.float32)  # halves, exact up to 2 ** 23 samples
    return _ratio(np.einsum("bn,bn->b", counts, no), yes.sum(1) * no.sum(1))
