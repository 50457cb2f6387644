"""Attacks the privacy parts and measures a lower bound of epsilon, to hold the accountant to.

Tests and ``benchmarks/privacy_audit.py`` call it. An accountant multiplies what a mechanism should
do; it cannot see noise that is missing, repeated or not as wide as it says. Here an attacker plays
the strongest game that the definition allows: a site holds one of two data sets, whose updates are
opposite canaries far longer than the clip, and the attacker, who knows both, guesses from what was
released which one it was. Its error rates bound epsilon from below (Kairouz, Oh and Viswanath, ICML
2015): P(says B | B) <= exp(epsilon) P(says B | A) + delta. An audit never proves privacy; a bound
above the accountant's proves that there is less than was promised, and is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedshift import Client, RunError, Server, Tree, Update, tree
from fedshift.privacy.dp import CentralDP, LocalDP

FAR = 50.0  # length of a canary in units of the clip: clipping must bring it down
Release = Callable[[bool], float]  # which of two worlds to what the attacker measures in it
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Audit:
    """What an audit found beside what the accountant says."""

    lower: float  # epsilon is at least this
    accounted: float
    trials: int  # per world
    confidence: float


def audit(
    release: Release,
    accounted: float,
    *,
    delta: float,
    trials: int = 1000,
    confidence: float = 0.9999,
) -> Audit:
    """Play ``trials`` games in each world; raises if they contradict the accountant.

    A correct mechanism is accused with a chance of at most 1 - ``confidence``.
    """
    without, within = ([release(world) for _ in range(trials)] for world in (False, True))
    lower = lower_bound(np.array(without), np.array(within), delta=delta, confidence=confidence)
    if lower > accounted:
        raise RunError(
            f"the audit found epsilon of at least {lower:.3g}, and the accountant says "
            f"{accounted:.3g}: noise or clipping is missing, repeated or too small; do not use it"
        )
    return Audit(lower, accounted, trials, confidence)


def lower_bound(without: Scores, within: Scores, *, delta: float, confidence: float) -> float:
    """Epsilon is at least this, from an attacker's scores in two worlds.

    The attacker names one of the worlds where scores are above (or below) a threshold. The first
    half of the games chooses which, the second half counts, so the choice biases nothing.
    """
    half = len(without) // 2
    edges = np.quantile(np.concatenate([without[:half], within[:half]]), GRID)
    rules = [(edge, above, swap) for edge in edges for above in YES_NO for swap in YES_NO]
    found = [_rates(without[:half], within[:half], *rule) for rule in rules]
    best = max(range(len(rules)), key=lambda i: _epsilon(*found[i], half, delta, confidence))
    hits, errors = _rates(without[half:], within[half:], *rules[best])
    return max(0.0, _epsilon(hits, errors, len(without) - half, delta, confidence))


GRID = np.linspace(0.02, 0.98, 49)
YES_NO = (True, False)


def _rates(
    without: Scores, within: Scores, edge: float, above: bool, swap: bool
) -> tuple[int, int]:
    """Hits and false alarms of naming ``within`` (``swap``: ``without``) beyond an edge."""
    named, other = (without, within) if swap else (within, without)
    beyond = np.greater if above else np.less
    return int(beyond(named, edge).sum()), int(beyond(other, edge).sum())


def _epsilon(hits: int, errors: int, games: int, delta: float, confidence: float) -> float:
    """log((lowest rate of hits - delta) / highest rate of false alarms), Clopper and Pearson."""
    from scipy.stats import beta  # noqa: PLC0415  half a second

    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, games - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, errors + 1, games - errors)) if errors < games else 1.0
    return math.log((low - delta) / high) if low > delta else -math.inf


def canary(theta: Tree, clip: float) -> Tree:
    """A step along one weight, far longer than the clip."""
    out = tree.zeros_like(theta)
    first = next(iter(out))
    out[first].view(-1)[0] = FAR * clip
    return out


def site_release(part: LocalDP, visit: Callable[[], Client], keys: Sequence[str]) -> Release:
    """What leaves a site under ``local-dp``, measured along the canary.

    ``visit`` opens the client as for a new request to train; ``keys`` are the entries sent.
    """
    theta = tree.clone(tree.pick(visit().received, keys))
    step = canary(theta, part.clip)

    def once(world: bool) -> float:
        client = visit()
        sent = Update(client.id, "train", client.round, shared=moved(theta, step, world))
        return along(part.encode(client, sent).shared, theta)

    return once


def server_release(part: CentralDP, server: Server, clients: Sequence[str]) -> Release:
    """The model that a server publishes under ``central-dp``, measured along the canary.

    One client sends the canary, the others do not move.
    """
    theta = tree.pick(server.shared, server.parameters)
    step = canary(theta, part.clip)

    def ask(_: Any) -> dict[str, Tree]:
        return {}

    def once(world: bool) -> float:
        shared = [moved(theta, step, world), *(theta for _ in clients[1:])]
        pairs = zip(clients, shared, strict=True)
        updates = [Update(c, "train", server.round, shared=s, examples=1) for c, s in pairs]
        return along(part.decode_all(server, updates, ask)[0].shared, theta)

    return once


def moved(theta: Tree, step: Tree, world: bool) -> Tree:
    """The canary in one world, its opposite in the other."""
    return tree.add(theta, step) if world else tree.sub(theta, step)


def along(shared: Tree, theta: Tree) -> float:
    """Likelihood ratio of Gaussians with opposite means, up to a factor: the canary's weight."""
    first = next(iter(theta))
    change: Tensor = shared[first].double().view(-1)[0] - theta[first].double().view(-1)[0]
    return float(change)
