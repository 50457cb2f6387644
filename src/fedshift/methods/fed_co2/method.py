"""Fed-CO2: FedBN's online model and an offline one."""

from __future__ import annotations

from fedshift import (
    Method,
    register,
)
from fedshift.methods.fed_co2.offline import OfflineModel
from fedshift.methods.fedbn import PrivateBatchNorm


@register("fed-co2", paper="Cai et al., NeurIPS 2023", group="personal")
def fed_co2() -> Method:
    """A shared and a private model of each site teach each other.

    The shared model keeps BatchNorm at the site as FedBN does, the private one never leaves it. In
    each visit they learn from each other's predictions, and their features also have to suit the
    heads of the other sites' private models. Their summed logits decide.

    Use it: a few sites that differ strongly in their looks, each with a budget for two models.
    Not for: many sites, because every site gets the heads of all others, or sites that hide theirs.
    Equations: intra-client transfer: `distillation`; inter-client transfer: `OfflineModel.loss`.
    """
    return Method((PrivateBatchNorm(), OfflineModel()))
