"""FedAvg: local SGD and a weighted mean (McMahan et al., AISTATS 2017, Algorithm 1)."""

from __future__ import annotations

from fedshift import Method, register


@register("fedavg", paper="McMahan et al., AISTATS 2017")
def fedavg() -> Method:
    """Average of local models; the empty composition."""
    return Method()
