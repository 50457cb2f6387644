"""FedCMI: the half of FedSR that ties features to their class (Nguyen et al., NeurIPS 2022)."""

from __future__ import annotations

from fedshift import (
    Mean,
    Method,
    Uniform,
    register,
)
from fedshift.methods.shared.conditional_information import ConditionalInformation
from fedshift.methods.shared.gaussian_features import StochasticFeatures


@register("fedcmi", paper="Nguyen et al., NeurIPS 2022", group="alignment")
def fedcmi() -> Method:
    """Gaussian features that say no more than the class.

    Features are drawn from a Gaussian, and those of each class are pulled to one Gaussian of the
    client's own. It is FedSR without the penalty on their length.

    Use it: to see which half of FedSR helps.
    Not for: regression, or models that have to predict in a single pass.
    Equations: CMI: `ConditionalInformation`, `gaussian_kl`; z: `GaussianNeck`.
    """
    return Method((StochasticFeatures(), ConditionalInformation()), Mean(Uniform()))
