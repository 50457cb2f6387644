"""FedAvg: local SGD and a weighted mean (McMahan et al., AISTATS 2017, Algorithm 1)."""

from __future__ import annotations

from fedshift import Method, register


@register("fedavg", paper="McMahan et al., AISTATS 2017", group="reference")
def fedavg() -> Method:
    """Weighted mean of the locally trained models.

    Every client trains the received model on its own data, and the server averages the results,
    weighted by their numbers of examples. It is a method without parts, the base that others are
    added to.

    Use it: as the reference of every comparison, and where sites are alike.
    Not for: sites whose data look so different that their mean fits nobody; try fedbn, fdse or f2dc
    there.
    Equations: Algorithm 1: `Mean.combine`, `ByExamples`.
    """
    return Method()
