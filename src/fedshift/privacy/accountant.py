"""How much privacy is spent: Rényi differential privacy, composed over rounds by dp-accounting.

The parts in ``dp`` ask for epsilon before round 0 and after every round. It must never report less
than was spent: a case without a proven bound is an error.
"""

from __future__ import annotations

import math
from typing import Any

from fedshift import ConfigError

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
    library = require_library()
    if noise == 0 or rounds == 0:
        return math.inf if rounds else 0.0
    if cohort < sites and neighbours != "replace":
        raise ConfigError(
            f"neighbours={neighbours} holds if every site is in every round, but {cohort} of "
            f"{sites} are sampled; use neighbours=replace"
        )
    event: Any = library.GaussianDpEvent(noise / SENSITIVITY[neighbours])
    sampled = cohort < sites
    if sampled:
        event = library.SampledWithoutReplacementDpEvent(sites, cohort, event)
    relation = library.NeighboringRelation
    accountant = library.rdp.RdpAccountant(
        WHOLE_ORDERS if sampled else None,
        relation.REPLACE_ONE if neighbours == "replace" else relation.REPLACE_SPECIAL,
    )
    accountant.compose(library.SelfComposedDpEvent(event, rounds))
    return float(accountant.get_epsilon(delta))


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
