"""How sites differ: what their inputs look like, their labels, and what a quick model makes of it.

``guide.doctor`` calls it with numbers of a part of the samples (``guide.features``). Everything
comes with how far it may be off; what it means in words is up to ``guide.words``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift.analyse.kinds.domain_gap import proxy_a_distance
from fedshift.base import seeds
from fedshift.data.library.prepare import rows_of_classes
from fedshift.data.samples import Domain
from fedshift.experiment.references import logistic
from fedshift.guide.features import Looked, Sight
from fedshift.report.intervals import NORMAL, sample_error

Array = NDArray[Any]
FOLDS = 5
FEWEST = 20  # rows of a site below which nothing is fitted to it
MOST = 400  # rows of a site that tell sites apart
NORM = 1e-9  # a deviation that counts as none
TIE = 1e-9


@dataclass(frozen=True)
class Told:
    """A number in per cent, what chance would give, and half of its 95 % interval."""

    value: float
    chance: float
    error: float


@dataclass(frozen=True)
class Departure:
    """A number of inputs that is another one at a site than at the others."""

    site: str
    what: str
    here: float
    others: float  # the median of the means of the sites that it is compared with
    deviations: float  # the difference in deviations within a site


@dataclass(frozen=True)
class LabelShift:
    """How far the labels of a site are from those of all sites."""

    site: str
    distance: float  # total variation of class shares; of numbers, deviations of the mean
    by_chance: float  # what as many labels drawn from all sites' shares would give on average
    most: str  # the class (or number) that is furthest from all sites' share
    here: float
    all_sites: float


def statistics(sight: Sight) -> dict[str, dict[str, tuple[float, float]]]:
    """Mean and deviation of each named number, by site."""
    return {
        site: {
            name: (float(mean), float(std))
            for name, mean, std in zip(
                sight.names, own.named.mean(0), own.named.std(0), strict=True
            )
        }
        for site, own in sight.domains.items()
    }


def differences(sight: Sight, least: float, usual: Sequence[str] = ()) -> list[Departure]:
    """What differs at a site by ``least`` deviations or more, beyond chance; largest first.

    A site is compared with the ``usual`` ones if there are any, else with all others.
    Where F numbers are looked at, a difference is beyond chance if noise alone would make one of
    all of them so large at a site once in twenty times.
    """
    if len(sight.domains) < 2 or not sight.names:
        return []
    from scipy.special import ndtri  # noqa: PLC0415  slow to import

    sites = list(sight.domains)
    means = np.stack([own.named.mean(0) for own in sight.domains.values()])  # (n, S)
    within = np.stack([own.named.var(0) for own in sight.domains.values()]).mean(0) ** 0.5  # (S,)
    sure = float(ndtri(1 - 0.025 / len(sight.names)))
    found = []
    for i, site in enumerate(sites):
        others = np.median(means[_others(sites, i, usual)], axis=0)
        size = np.divide(means[i] - others, within, out=np.zeros_like(within), where=within > NORM)
        size[(within <= NORM) & (np.abs(means[i] - others) > NORM)] = np.inf
        noise = math.sqrt(2 / len(sight.domains[site].named))
        for k in np.flatnonzero(np.abs(size) >= max(least, sure * noise)):
            told = float(means[i, k]), float(others[k]), float(size[k])
            found.append(Departure(site, sight.names[k], *told))
    return sorted(found, key=lambda one: (sites.index(one.site), -abs(one.deviations)))


def _others(sites: Sequence[str], i: int, usual: Sequence[str]) -> list[int]:
    """Places of the sites that a site is compared with."""
    rest = [k for k in range(len(sites)) if k != i]
    return [k for k in rest if sites[k] in usual] or rest


def label_shifts(domains: Mapping[str, Domain]) -> list[LabelShift]:
    """How far each site's labels are from the mean over all sites, from all of its rows."""
    first = next(iter(domains.values()))
    if first.objective == "regression":
        return _number_shifts(domains)
    sizes = {name: max(1, len(domain.y)) for name, domain in domains.items()}
    shares = {n: rows_of_classes(d) / sizes[n] for n, d in domains.items()}
    return share_shifts(shares, sizes, first.classes, several=first.objective == "multi-label")


def share_shifts(
    shares: Mapping[str, Array], sizes: Mapping[str, int], classes: Sequence[str], *, several: bool
) -> list[LabelShift]:
    """How far shares of classes (K,) are from their mean over sites; half their summed differences.

    ``several``: a sample may have several labels, and the distance is the largest difference.
    """
    mean = np.mean(list(shares.values()), axis=0)  # (K,) every site counts the same
    out = []
    for site, own in shares.items():
        gaps = own - mean
        noise = np.sqrt(2 * mean * (1 - mean) / (math.pi * sizes[site]))  # mean |gap| by chance
        distance, chance = (
            (np.abs(gaps).max(), noise.max())
            if several
            else (np.abs(gaps).sum() / 2, noise.sum() / 2)
        )
        k = int((np.abs(gaps) + TIE * gaps).argmax())  # of two as far, the one it has more of
        told = float(distance), float(chance), classes[k], float(own[k]), float(mean[k])
        out.append(LabelShift(site, *told))
    return out


def _number_shifts(domains: Mapping[str, Domain]) -> list[LabelShift]:
    held = {name: domain.y.numpy().astype(np.float64) for name, domain in domains.items()}
    mean = float(np.mean([y.mean() for y in held.values()]))
    within = math.sqrt(float(np.mean([y.var() for y in held.values()]))) or 1.0
    what = next(iter(domains.values())).classes[0]
    return [
        LabelShift(
            name, abs(float(y.mean()) - mean) / within, math.sqrt(2 / math.pi / len(y)), what,
            float(y.mean()), mean,
        )
        for name, y in held.items()
    ]  # fmt: skip


def matched(sites: Sequence[Looked], most: int, *names: str) -> list[Array]:
    """Rows of each site, as many of every class from all of them, so that labels tell nothing.

    Where there are too few rows of common classes, or no classes, as many rows of each site.
    """
    classes = all(one.y.ndim == 1 and one.y.dtype.kind in "iu" for one in sites)
    top = 1 + max(int(one.y.max(initial=0)) for one in sites) if classes else 0
    counts = [np.bincount(one.y, minlength=top) for one in sites] if classes else []
    each = np.min(counts, axis=0) if counts else np.zeros(0, dtype=int)
    if each.sum() < FEWEST:
        return [_some(np.arange(len(one.y)), min(most, *map(_size, sites)), names) for one in sites]
    each = np.ceil(each * min(1.0, most / each.sum())).astype(int)
    return [
        np.concatenate([_some(np.flatnonzero(one.y == k), n, names) for k, n in enumerate(each)])
        for one in sites
    ]


def _size(one: Looked) -> int:
    return len(one.y)


def _some(rows: Array, count: int, names: Sequence[str]) -> Array:
    found: Array = seeds.numpy("doctor", "matched", *names).permutation(rows)[:count]
    return found


def told_apart(sight: Sight) -> Told | None:
    """How often a linear model names the site of a held-out sample; sites count the same."""
    own = list(sight.domains.values())
    if len(own) < 2 or min(map(_size, own)) < FEWEST:
        return None
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415  slow to import
    from sklearn.model_selection import StratifiedKFold, cross_val_predict  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    rows = matched(own, MOST, "all")
    x = np.concatenate([one.x[some] for one, some in zip(own, rows, strict=True)])
    y = np.repeat(np.arange(len(own)), [len(some) for some in rows])
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=200))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged after 200 steps: a score all the same
        hits = 100 * float((cross_val_predict(model, x, y, cv=folds) == y).mean())
    return Told(hits, 100 / len(own), NORMAL * sample_error(hits, len(y)))


def pairs_apart(sight: Sight) -> dict[tuple[str, str], Told]:
    """The same of two sites each, from the proxy A-distance: 50 is chance."""
    out = {}
    for a, b in combinations(sight.domains, 2):
        one, other = sight.domains[a], sight.domains[b]
        if min(_size(one), _size(other)) < FEWEST:
            continue
        rows = matched((one, other), MOST, a, b)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            distance = proxy_a_distance(one.x[rows[0]], other.x[rows[1]])
        hits = 50 + 25 * distance  # distance = 2 (1 - 2 err)
        out[a, b] = Told(hits, 50.0, NORMAL * sample_error(hits, 2 * len(rows[0])))
    return out


def crossed(sight: Sight, objective: str, classes: int) -> dict[tuple[str, str], Told]:
    """Accuracy in per cent of a linear model of one site on another's test rows.

    ``chance`` is that of always saying the site's most frequent class. Of numbers to predict it is
    100 R^2, the part of their variance that is explained, where 0 is the mean of the tested site.
    """
    out = {}
    for a, one in sight.domains.items():
        train = ~one.test
        if train.sum() < FEWEST:
            continue
        predict = _fitted(one.x[train], one.y[train], objective, classes)
        usual = _usual(one.y[train], objective)
        for b, other in sight.domains.items():
            x, y = other.x[other.test], other.y[other.test]
            if len(y):
                out[a, b] = _scored(predict(x), y, usual, objective)
    return out


def _fitted(x: Array, y: Array, objective: str, classes: int) -> Any:
    """A linear model, as a function from inputs to predictions."""
    if objective == "classification":
        probabilities = logistic(x, y, classes, 0)
        return lambda inputs: probabilities(inputs).argmax(1)
    from sklearn.linear_model import Ridge  # noqa: PLC0415  slow to import
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    model = make_pipeline(StandardScaler(), Ridge(alpha=float(len(x)) / 10)).fit(x, y)
    if objective == "regression":
        return model.predict
    return lambda inputs: model.predict(inputs) > 0.5


def _usual(y: Array, objective: str) -> Any:
    """What to say without looking: the most frequent class, each label's, or the mean."""
    if objective == "classification":
        return np.bincount(y).argmax()
    return y.mean(0) if objective == "regression" else y.mean(0) > 0.5


def _scored(found: Array, y: Array, usual: Any, objective: str) -> Told:
    if objective == "regression":
        spread = float(((y - y.mean()) ** 2).sum()) or 1.0
        value = 100 * (1 - float(((y - found) ** 2).sum()) / spread)
        return Told(value, 0.0, math.nan)
    value, chance = (100 * float((told == y).mean()) for told in (found, usual))
    return Told(value, chance, NORMAL * sample_error(value, len(y)))
