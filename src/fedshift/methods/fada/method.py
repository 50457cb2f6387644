"""FADA: the split, FedKA's adversary and the attention over sources."""

from __future__ import annotations

from fedshift import (
    Mean,
    Method,
    register,
)
from fedshift.methods.fada.attention import GapAttention
from fedshift.methods.fada.split import FeatureSplit
from fedshift.methods.fedka.method import GlobalDisentangler


@register("fada", paper="Peng et al., ICLR 2020", group="alignment")
def fada() -> Method:
    """Split features, an adversary to a target, and attention over sources.

    Clients classify by the half of their features that does not tell the domain, aligned with an
    unlabelled target by an adversary. Sources whose models cluster the target better weigh more.

    Use it: for one known target without labels, with sources that differ in how much they help.
    Not for: secure aggregation, very few rounds, or where features of the target may not travel.
    Equations: `FeatureSplit.loss` with `confusion`, `mutual_information`; `dispersion`, `k_means`.
    """
    return Method((FeatureSplit(), GlobalDisentangler()), Mean(GapAttention()))
