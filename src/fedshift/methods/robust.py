"""Rules that bound what a minority of arbitrary updates can do to the model (Byzantine sites).

Each replaces the mean at the server and changes nothing at the sites. They read single updates, so
secure aggregation refuses them by name. Every site counts the same: a weight by examples is a claim
of the site's own, and a rule that believed it would have no breakdown point. BatchNorm statistics
are merged robustly too, or they would be the open door beside the guarded one; integer counters
take their median.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedshift import (
    Aggregator,
    Method,
    Server,
    Tree,
    Uniform,
    Update,
    Weighting,
    register,
    setting,
    tree,
    weighted_mean,
)
from fedshift.core.reply_stack import blocks, weighted_sum

WIDTH = 2**14  # columns that are sorted or multiplied at a time
ITERATIONS = 1000  # of Weiszfeld, on n coefficients: microseconds each
Columns = Callable[[Tensor], Tensor]  # from (n, width) to (width,)


@dataclass(frozen=True)
class Robust(Aggregator):
    """Base of the rules: sites count the same, and buffers are merged robustly as well."""

    needs_individual_updates = True
    weights: Weighting | None = field(default_factory=Uniform)

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tree:
        """Parameters by rule and server optimiser; buffers by :meth:`buffers`."""
        weights = self.weights_of(server, updates)  # (n,)
        new = self.optimiser(server, self.combine(server, updates, weights))
        kept = self.buffers(server, updates)
        return {k: new.get(k, kept.get(k, v)) for k, v in server.shared.items()}

    def buffers(self, server: Server, updates: Sequence[Update]) -> Tree:
        """The sites' buffers, by default their coordinate-wise median."""
        return columnwise(updates, updates[0].shared.keys() - server.parameters, median)


def columnwise(updates: Sequence[Update], keys: frozenset[str] | set[str], rule: Columns) -> Tree:
    """``rule`` on each coordinate of the entries ``keys``, block by block; dtypes are kept."""
    out: Tree = {}
    for key in (k for k in updates[0].shared if k in keys):
        versions = [u.shared[key] for u in updates]
        parts = [rule(block) for block in blocks(versions, WIDTH)]
        out[key] = torch.cat(parts).view(versions[0].shape).to(versions[0].dtype)
    return out


def median(block: Tensor) -> Tensor:
    """Median of each column (width,); for even n the mean of the two middle values."""
    ranked, n = block.sort(dim=0).values, len(block)
    low, high = ranked[(n - 1) // 2], ranked[n // 2]
    return low / 2 + high / 2 if block.is_floating_point() else low  # their sum may overflow


def updates_gram(server: Server, updates: Sequence[Update]) -> Tensor:
    """Inner products (n, n) of the updates theta_k - theta over all parameters, in float64."""
    gram = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for key in sorted(server.parameters):
        old = server.shared[key].flatten()
        versions = [u.shared[key] for u in updates]
        for i, block in enumerate(blocks(versions, WIDTH)):
            moved = block.double() - old[i * WIDTH : (i + 1) * WIDTH].double()  # (n, width)
            gram.addmm_(moved, moved.t())
    return gram


def moved_by(server: Server, updates: Sequence[Update], shares: Tensor) -> Tree:
    """The model theta + sum_k shares_k (theta_k - theta), for every parameter; shares (n,)."""
    rest = 1 - shares.sum()
    out: Tree = {}
    for key, old in tree.pick(server.shared, server.parameters).items():
        total = weighted_sum([u.shared[key] for u in updates], shares)
        out[key] = total.add_(old.double() * rest).to(old.dtype)
    return out


@dataclass(frozen=True)
class Median(Robust):
    """The median of each coordinate (Yin et al., ICML 2018, Algorithm 1, option I).

    Stays within the range of the honest values while fewer than half of the sites attack.
    """

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """One median per coordinate."""
        return columnwise(updates, server.parameters, median)


@dataclass(frozen=True)
class TrimmedMean(Robust):
    """The mean of each coordinate without its k largest and k smallest values (option II).

    k = ceil(trim * n), at most what leaves one value: with trim 0.2, up to a fifth of the sites may
    attack. The ceiling, because a floor would trim nothing from small cohorts.
    """

    trim: float = setting(0.2, "fraction of sites cut at each end", low=0.0, high=0.5)

    def cut(self, block: Tensor) -> Tensor:
        """Trimmed mean of each column (width,)."""
        n = len(block)
        k = min(part_of(self.trim, n), (n - 1) // 2)
        return block.sort(dim=0).values[k : n - k].mean(dim=0, dtype=torch.float64)

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """One trimmed mean per coordinate."""
        return columnwise(updates, server.parameters, self.cut)

    def buffers(self, server: Server, updates: Sequence[Update]) -> Tree:
        """As the parameters, but counters take their median."""
        rest = updates[0].shared.keys() - server.parameters
        floats = {k for k in rest if updates[0].shared[k].is_floating_point()}
        cut = columnwise(updates, floats, self.cut)
        return cut | columnwise(updates, rest - floats, median)


def part_of(fraction: float, n: int) -> int:
    """ceil(fraction * n), not raised by a rounding error of the product."""
    return math.ceil(fraction * n - 1e-9)


@dataclass(frozen=True)
class Krum(Robust):
    """The update nearest to its n - f - 2 nearest ones (Blanchard et al., NeurIPS 2017).

    s(k) = sum of the squared distances from update k to the n - f - 2 closest others; the update of
    the smallest s is taken as it is, its buffers with it. f = ceil(attackers * n). The theorem
    needs n >= 2 f + 3; below that the rule still runs, with one neighbour at least.
    """

    min_clients = 3
    attackers: float = setting(0.2, "fraction of sites that may attack", low=0.0, high=0.5)

    def chosen(self, server: Server, updates: Sequence[Update]) -> Tensor:
        """Positions of the updates that are used, in the order of ``updates``."""
        scores = krum_scores(updates_gram(server, updates), part_of(self.attackers, len(updates)))
        return scores.argsort(stable=True)[: self.kept(len(updates))].sort().values

    def kept(self, n: int) -> int:
        """How many of n updates are used."""
        return 1

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tree:
        """The mean of the chosen updates, buffers included; the optimiser sees parameters only."""
        own = [updates[i].shared for i in self.chosen(server, updates).tolist()]
        merged = weighted_mean(own, torch.full((len(own),), 1 / len(own), dtype=torch.float64))
        new = self.optimiser(server, tree.pick(merged, server.parameters))
        return {k: new.get(k, merged.get(k, v)) for k, v in server.shared.items()}


class MultiKrum(Krum):
    """The mean of the n - f updates with the smallest scores of Krum."""

    def kept(self, n: int) -> int:
        """All but as many as may attack."""
        return max(1, n - part_of(self.attackers, n))


def krum_scores(gram: Tensor, f: int) -> Tensor:
    """s(k) of every update (n,), from the inner products (n, n) and f suspected attackers."""
    squares = gram.diag()
    distances = (squares[:, None] + squares[None, :] - 2 * gram).clamp_(min=0)  # (n, n), squared
    distances.fill_diagonal_(math.inf)
    near = max(1, len(gram) - f - 2)
    return distances.sort(dim=1).values[:, :near].sum(dim=1)


@dataclass(frozen=True)
class NormClip(Robust):
    """theta + mean of (theta_k - theta) min(1, norm / |theta_k - theta|) (Sun et al., 2019).

    With ``norm`` 0 the bound is the median of the round's norms. A site moves the model by at most
    norm / n, which bounds large updates; it does nothing about small ones that point the wrong way.
    """

    norm: float = setting(0.0, "largest norm of an update; 0: the round's median", low=0.0)

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """The mean of the clipped updates."""
        norms = updates_gram(server, updates).diag().sqrt()  # (n,)
        bound = self.norm or float(median(norms[:, None]))
        return moved_by(server, updates, weights * (bound / norms).nan_to_num(1.0).clamp(max=1.0))


@dataclass(frozen=True)
class GeometricMedian(Robust):
    """argmin_v sum_k w_k |theta_k - v| (RFA: Pillutla et al., IEEE TSP 2022).

    Weiszfeld's iteration, smoothed at ``nu``: v <- sum_k b_k theta_k with b_k proportional to
    w_k / max(nu, |theta_k - v|). Every v is a combination of the updates, so distances follow from
    their inner products and an iteration costs n^2, whatever the size of the net. It stops once no
    b_k changes by more than 1e-9 of itself: the share of a far site is small, and still matters.
    """

    nu: float = setting(1e-6, "smallest distance that is divided by", low=1e-12)

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """The point with the smallest sum of distances."""
        return moved_by(server, updates, weiszfeld(updates_gram(server, updates), weights, self.nu))


def weiszfeld(gram: Tensor, weights: Tensor, nu: float) -> Tensor:
    """Coefficients b (n,) of the geometric median of vectors with these inner products (n, n)."""
    b, one = weights, torch.eye(len(gram), dtype=gram.dtype)
    for _ in range(ITERATIONS):
        apart = one - b  # row k: the coefficients of theta_k - v
        distances = ((apart @ gram) * apart).sum(dim=1).clamp(min=0).sqrt()  # (n,)
        new = weights / distances.clamp(min=nu)
        new = new / new.sum()
        if bool(((new - b).abs() <= 1e-9 * new).all()):
            break
        b = new
    return b


@register("median", paper="Yin et al., ICML 2018", group="aggregation")
def coordinate_median() -> Method:
    """The median of each coordinate, against a hostile minority.

    The server takes the middle value of each weight over the sites, so that fewer than half of them
    cannot carry it away.

    Use it: some sites may be broken or hostile and it is not known how many.
    Not for: honest sites of different domains: what few of them know is cut off with the outliers.
    Equations: Algorithm 1, option I: `median`, `Median.combine`.
    """
    return Method(aggregate=Median())


@register("trimmed-mean", paper="Yin et al., ICML 2018", group="aggregation")
def trimmed_mean() -> Method:
    """The mean of each coordinate without its extremes.

    For each weight the largest and the smallest values over the sites are dropped and the others
    averaged.

    Use it: the fraction of hostile sites is bounded and known.
    Not for: small cohorts of different domains: with five sites and trim=0.2 two of five values are
    dropped.
    Equations: Algorithm 1, option II: `TrimmedMean.cut`.
    """
    return Method(aggregate=TrimmedMean())


@register("krum", paper="Blanchard et al., NeurIPS 2017", group="aggregation")
def krum() -> Method:
    """The one update that has the nearest neighbours.

    The server takes the single update whose nearest others are closest to it, and drops all the
    rest.

    Use it: safety against few hostile sites outweighs accuracy, and the sites are alike.
    Not for: several domains: it keeps one site, hence one domain.
    Equations: Sec. 4: `krum_scores`, `Krum.chosen`.
    """
    return Method(aggregate=Krum())


@register("multi-krum", paper="Blanchard et al., NeurIPS 2017", group="aggregation")
def multi_krum() -> Method:
    """The mean of the updates that have near neighbours.

    As Krum, but all updates except as many as may attack are averaged, those with the best scores.

    Use it: hostile sites send updates that are far from the others; it keeps more of the honest
    ones than Krum.
    Not for: domains that are rare among the sites, which look like attackers.
    Equations: Sec. 4: `krum_scores`, `MultiKrum.kept`.
    """
    return Method(aggregate=MultiKrum())


@register("norm-clip", paper="Sun et al., 2019", group="aggregation")
def norm_clip() -> Method:
    """The mean of updates of bounded length.

    Updates longer than a bound, by default the median of the round, are shortened to it before
    averaging.

    Use it: a mild protection that costs honest sites little.
    Not for: attackers whose updates are short and point the wrong way, which pass unchanged.
    Equations: clipped mean: `NormClip.combine`.
    """
    return Method(aggregate=NormClip())


@register("geometric-median", paper="Pillutla et al., IEEE TSP 2022", group="aggregation")
def geometric_median() -> Method:
    """The point with the smallest sum of distances to the updates.

    Instead of each coordinate by itself the whole update is treated as one point, and the one
    nearest to all in sum is taken.

    Use it: fewer than half of the sites may be hostile, and whole updates are the outliers.
    Not for: attacks that hide in few coordinates of otherwise normal updates.
    Equations: Algorithm 2, smoothed Weiszfeld: `weiszfeld`.
    """
    return Method(aggregate=GeometricMedian())
