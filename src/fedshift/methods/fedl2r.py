"""FedL2R: the half of FedSR that keeps features short (Nguyen et al., NeurIPS 2022)."""

from __future__ import annotations

from fedshift import (
    Mean,
    Method,
    Uniform,
    register,
)
from fedshift.methods.shared.feature_norm import FeatureNorm


@register("fedl2r", paper="Nguyen et al., NeurIPS 2022", group="alignment")
def fedl2r() -> Method:
    """FedAvg with short features.

    The length of the features is penalised, which bounds how much they can say about the domain.
    It is FedSR without the distribution of features.

    Use it: as the cheap half of FedSR, with any backbone and any kind of target.
    Not for: nets whose features are normalised before the head, where length means nothing.
    Equations: L2R: `FeatureNorm`.
    """
    return Method((FeatureNorm(),), Mean(Uniform()))
