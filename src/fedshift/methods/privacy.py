"""Differential privacy as methods of one part, to be added to others; see docs/privacy.md."""

from __future__ import annotations

from fedshift.method import Method
from fedshift.privacy.dp import CentralDP, LocalDP
from fedshift.registry import register


@register("central-dp", paper="McMahan et al., ICLR 2018")
def central_dp() -> Method:
    """FedAvg whose published model hides what any one site holds; the server is trusted."""
    return Method((CentralDP(),))


@register("local-dp", paper="McMahan et al., ICLR 2018, with the noise at the sites")
def local_dp() -> Method:
    """FedAvg whose sites add noise before anything leaves them; nobody is trusted."""
    return Method((LocalDP(),))
