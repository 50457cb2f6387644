"""Transports by name: how messages reach the sites and how their replies come back.

``experiment.session`` looks up ``Options.transport`` here and opens it with a :class:`Plan`. Every
transport gives the same numbers for the same seed; Flower is imported only if it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from fedshift.core.server import Transport
from fedshift.engine.build import Plan
from fedshift.transports.inprocess import InProcess
from fedshift.transports.pool import Pool
from fedshift.transports.wire import Wire


def _flower(plan: Plan) -> Transport:
    """Flower's simulation on Ray; imported only here, because Flower is an optional extra."""
    from fedshift.transports.flower.local import Local  # noqa: PLC0415

    return Local(plan)


TRANSPORTS: dict[str, Callable[[Plan], Transport]] = {
    "inprocess": lambda plan: InProcess(plan.worker(), lenient=plan.policy.lenient),
    "wire": lambda plan: Wire(plan.worker(), lenient=plan.policy.lenient),
    "pool": Pool,
    "flower": _flower,
}

__all__ = ["TRANSPORTS", "InProcess", "Pool", "Wire"]
