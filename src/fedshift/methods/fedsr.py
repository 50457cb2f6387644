"""FedSR: simple features that ignore the domain (Nguyen et al., NeurIPS 2022).

A client sees one domain and cannot compare it with others. It can still keep its features simple:
short ones (L2R), and Gaussian ones that say no more of the input than its class does (CMI). FedSR
has both terms, FedL2R and FedCMI one of them.
"""

from __future__ import annotations

from fedshift import (
    Mean,
    Method,
    Uniform,
    register,
)
from fedshift.methods.shared.conditional_information import ConditionalInformation
from fedshift.methods.shared.feature_norm import FeatureNorm
from fedshift.methods.shared.gaussian_features import StochasticFeatures


@register("fedsr", paper="Nguyen et al., NeurIPS 2022", group="alignment")
def fedsr() -> Method:
    """Short Gaussian features that say no more than the class.

    Features are drawn from a Gaussian whose moments the net predicts. One term shortens them, the
    other pulls each class's features to one Gaussian, so that little of the domain is left in them.

    Use it: for an unseen domain when every client has one domain, and nothing may be exchanged.
    Not for: regression, or models that have to predict in a single pass.
    Equations: L2R: `FeatureNorm`; CMI: `ConditionalInformation`, `gaussian_kl`; z: `GaussianNeck`.
    """
    return Method((StochasticFeatures(), FeatureNorm(), ConditionalInformation()), Mean(Uniform()))
