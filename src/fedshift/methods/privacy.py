"""Differential privacy and secure aggregation, to be added to other methods: docs/privacy.md."""

from __future__ import annotations

from fedshift import Method, register
from fedshift.privacy.dp import CentralDP, LocalDP
from fedshift.privacy.secure import SecureAggregation


@register("central-dp", paper="McMahan et al., ICLR 2018", group="privacy")
def central_dp() -> Method:
    """FedAvg whose published model hides what any one site holds; the server is trusted."""
    return Method((CentralDP(),))


@register(
    "local-dp", paper="McMahan et al., ICLR 2018, with the noise at the sites", group="privacy"
)
def local_dp() -> Method:
    """FedAvg whose sites add noise before anything leaves them; nobody is trusted."""
    return Method((LocalDP(),))


@register("secure-aggregation", paper="Bonawitz et al., CCS 2017", group="privacy")
def secure_aggregation() -> Method:
    """FedAvg whose server learns the sum of the updates and no single update."""
    return Method((SecureAggregation(),))
