"""FDSE: personal layers erase domain skew, consensus on the rest (Wang et al., CVPR 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedshift import (
    ConfigError,
    Method,
    Net,
    Part,
    Scope,
    register,
    setting,
)
from fedshift.methods.fdse.consensus import LayerConsensus
from fedshift.methods.fdse.consistency import StatisticsConsistency
from fedshift.methods.fdse.decompose import decompose, decomposed
from fedshift.methods.fdse.layers import FORMS, LayerForm
from fedshift.methods.fdse.mixing import SimilarityMixing


@dataclass(frozen=True)
class DecomposeLayers(Part):
    """Every conv and linear layer but the head becomes DFE and DSE (Eqs. 2 and 3).

    DFE convs, BN_DFE and the head are shared. f_DSE, the affine map of BN_DSE and the additive
    bias are personal: uploaded, one value per client. The statistics of BN_DSE are private.
    """

    G: int = setting(2, "channels of a layer per channel of its extractor", low=1)
    form: str = setting(
        "ghost", "identity and G - 1 maps (convs), or G maps as in Eq. 3", choices=FORMS
    )
    padding: str = setting(
        "same", "of the extractor: that of the layer; released: half", choices=("same", "half")
    )
    inner_relu: bool = setting(True, "ReLU between BN_DSE and f_DSE; later release: false")
    erasers: str = setting(
        "personal", "whose the erasers are; shared: one for all", choices=("personal", "shared")
    )
    leave: str = setting("", "modules to keep whole, by path, between spaces")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.G == 1 and self.form != "literal":
            raise ConfigError(
                f"decompose-layers.G is 1, which leaves form={self.form} no map to erase with; "
                "use G=2 or form=literal"
            )

    def build(self, net: Net) -> None:
        """Sec. 4.1, in place."""
        decompose(net, LayerForm(self.G, self.form, self.padding, self.inner_relu), self.leave)

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """Sec. 4.3, by module."""
        if self.erasers == "shared":
            return {}
        out: dict[str, Scope] = {}
        for path, layer in decomposed(net):
            out |= {f"{path}.{key}": Scope.PERSONAL for key, _ in layer.erasers()}
            buffers = layer.bn_dse.named_buffers(f"{path}.bn_dse")
            out |= {key: Scope.PRIVATE for key, _ in buffers}
        return out


@register("fdse", paper="Wang et al., CVPR 2025", group="personal")
def fdse() -> Method:
    """Personal layers erase domain skew; consensus on the rest.

    Every layer is taken apart into an extractor that all sites share and a cheap eraser of each
    site, and a term pulls the statistics of erased features to the shared ones. The server moves
    shared layers in a direction that opposes no client and mixes the erasers of clients that are
    alike.

    Use it: every site wants a good model of its own, data look different from site to site, and new
    sites have unlabelled inputs.
    Not for: secure aggregation, backbones with attention or grouped convolutions, pretrained
    weights, and runs of few rounds.
    Equations: Eqs. 2 and 3: `Decomposed`, `extractor`; Eq. 4: `batch_statistics`; Eq. 5: `running`;
    Eq. 6: `layer_gap`; Eq. 7: `depth_weights`, `StatisticsConsistency.consistency`; Eq. 8:
    `min_norm_weights`, `consensus`; Eq. 9: `similarity_weights`; Sec. 5.4:
    `StatisticsConsistency.adapt`.
    """
    parts = (DecomposeLayers(), StatisticsConsistency(), SimilarityMixing())
    return Method(parts, LayerConsensus())
