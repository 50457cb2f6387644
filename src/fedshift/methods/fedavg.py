"""FedAvg: local SGD and a weighted mean (McMahan et al., AISTATS 2017, Algorithm 1)."""

from __future__ import annotations

from fedshift import Method, register


@register("fedavg", paper="McMahan et al., AISTATS 2017", group="reference")
def fedavg() -> Method:
    """Weighted mean of the locally trained models; a method without parts."""
    return Method()
