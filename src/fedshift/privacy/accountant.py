"""How much privacy is spent: Rényi differential privacy, composed over rounds by dp-accounting.

The parts in ``dp`` ask for epsilon before round 0 and after every round. It must never report less
than was spent: a case without a proven bound is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedshift import ConfigError

Curve = npt.NDArray[np.float64]
SENSITIVITY = {"replace": 2.0, "zero-out": 1.0}  # of a sum of clipped updates, in units of clip
WHOLE_ORDERS = (*range(2, 64), 128, 256)  # Rényi orders; fractional ones cost twice, gain little


def epsilon(
    noise: float,
    rounds: int,
    *,
    delta: float,
    cohort: int = 1,
    sites: int = 1,
    neighbours: str = "replace",
) -> float:
    """Epsilon at ``delta`` after ``rounds`` sums with Gaussian noise of ``noise`` times the clip.

    Neighbouring runs differ in everything that one site holds. ``replace``: the site holds other
    data, which moves the sum by up to twice the clip. ``zero-out``: its update is zero, which moves
    the sum by up to the clip. With fewer participants than sites, cohorts of fixed size are drawn
    without replacement (Wang, Balle and Kasiviswanathan, AISTATS 2019, Theorem 27), for which a
    bound is known under ``replace`` only.
    """
    sums = {Sampling(cohort, sites) if cohort < sites else EVERYBODY: rounds}
    return composed(noise, sums, delta=delta, neighbours=neighbours)


class Sampling(NamedTuple):
    """How the sites of a sum were drawn: ``cohort`` of ``sites``, nobody knows which."""

    cohort: int
    sites: int


EVERYBODY = Sampling(1, 1)  # also every cohort that is not secret: no amplification


def composed(
    noise: float, sums: Mapping[Sampling, int], *, delta: float, neighbours: str = "replace"
) -> float:
    """Epsilon of several sums, by how their sites were drawn; see :func:`epsilon`."""
    library = require_library()
    if noise == 0 or not any(sums.values()):
        return math.inf if any(sums.values()) else 0.0
    hidden = [how for how in sums if how.cohort < how.sites]
    if hidden and neighbours != "replace":
        raise ConfigError(
            f"neighbours={neighbours} holds if every site is in every round, but "
            f"{hidden[0].cohort} of {hidden[0].sites} are sampled; use neighbours=replace"
        )
    orders = (
        WHOLE_ORDERS if hidden else tuple(library.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
    )
    total = sum(n * renyi(noise, how, neighbours, orders) for how, n in sums.items() if n)
    return float(library.rdp.compute_epsilon(orders, total, delta)[0])


def epsilon_of_site(updates: Mapping[float, int], *, delta: float) -> float:
    """Epsilon of one site's own updates, by the noise that each had when it left the site."""
    library = require_library()
    if not any(updates.values()):
        return 0.0
    if any(noise == 0 for noise, count in updates.items() if count):
        return math.inf
    orders = tuple(library.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
    total = sum(n * renyi(noise, EVERYBODY, "replace", orders) for noise, n in updates.items())
    return float(library.rdp.compute_epsilon(orders, total, delta)[0])


@lru_cache(maxsize=256)
def renyi(noise: float, how: Sampling, neighbours: str, orders: tuple[float, ...]) -> Curve:
    """Rényi divergence of one sum at each order; sums of a run add theirs, so it is kept."""
    library = require_library()
    event: Any = library.GaussianDpEvent(noise / SENSITIVITY[neighbours])
    if how.cohort < how.sites:
        event = library.SampledWithoutReplacementDpEvent(how.sites, how.cohort, event)
    relation = library.NeighboringRelation
    one = relation.REPLACE_ONE if neighbours == "replace" else relation.REPLACE_SPECIAL
    return curve(event, orders, one)


def curve(event: Any, orders: tuple[float, ...], relation: Any) -> Curve:
    """Rényi divergence of an event of dp-accounting at each order."""
    accountant = require_library().rdp.RdpAccountant(orders, relation)
    accountant.compose(event)
    return np.asarray(accountant._rdp)  # noqa: SLF001  a second per event to compute again


def require_library() -> Any:
    """The library dp-accounting, or an error that says how to install it."""
    try:
        import dp_accounting  # noqa: PLC0415  an extra, and seconds to import
        import dp_accounting.rdp  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            "differential privacy needs the package dp-accounting; pip install fedshift[privacy]"
        ) from None
    return dp_accounting
