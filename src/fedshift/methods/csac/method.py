"""CSAC: semantic acquisition, divergence-weighted fusion, cross-layer calibration.

Yuan et al., TKDE 2023. In round 1 every client acquires (trains alone for long) and the server
fuses; each later round calibrates the fused model at the clients and fuses again. So the model
scored after round t is the paper's t-th fused model.
"""

from __future__ import annotations

from fedshift import (
    Method,
    register,
)
from fedshift.methods.csac.acquisition import SemanticAcquisition
from fedshift.methods.csac.calibration import CrossLayerCalibration
from fedshift.methods.csac.fusion import DivergenceFusion


@register("csac", paper="Yuan et al., TKDE 2023", group="alignment")
def csac() -> Method:
    """Divergence-weighted fusion, cross-layer semantic calibration.

    In round 1 each client trains its own model for long and keeps a frozen copy. The server fuses
    layer by layer, the more weight the further a client is from the mean, and clients train the
    fused model on while its layers are aligned with those of their copy.

    Use it: a model for a domain that nobody has seen is wanted from a few well-filled source sites,
    all present in every round.
    Not for: sampled clients, small or damaged sites (distance is weight), equal budgets, and secure
    aggregation.
    Equations: Eq. 2: `smoothed`; Eq. 3: `gaps`; Eq. 4: `fusion_weights`, `fuse`; Eq. 5: `project`;
    Eq. 6: `alignment`, `mmd`; Eqs. 7 to 9: `position_attention`, `channel_attention`,
    `both_attentions`; Eqs. 10 and 11: `CrossLayerCalibration.loss`.
    """
    return Method((SemanticAcquisition(), CrossLayerCalibration()), DivergenceFusion())
