"""PartialFed-Fix: some layers are never loaded from the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedshift import (
    ConfigError,
    Method,
    ModelSpec,
    Net,
    Part,
    Scope,
    batch_norm_keys,
    head_keys,
    register,
    setting,
)
from fedshift.methods.shared.layers import layers

RULES = ("bn+head", "bn", "head", "bottom", "top")


@dataclass(frozen=True)
class SkippedLayers(Part):
    """w_k^l starts from theta^l, or from the client's last w_k^l if layer l is skipped.

    The rule is the same for all clients, so that nobody would load the mean of a skipped layer:
    skipped layers are private and are not sent.
    """

    skip: str = setting("bn+head", "layers that are not loaded", choices=RULES)
    skip_layers: int = setting(1, "how many, for bottom (inputs first) and top (the head)", low=1)

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """The skipped layers' entries, chosen by type or by their place in the net."""
        return dict.fromkeys(self.keys(net), Scope.PRIVATE)

    def keys(self, net: Net) -> set[str]:
        """Entries of the skipped layers."""
        if self.skip in ("bottom", "top"):
            found = list(layers(net).values())
            n = min(self.skip_layers, len(found))
            chosen = found[:n] if self.skip == "bottom" else found[len(found) - n :]
            return {key for keys in chosen for key in keys}
        by_type = {"bn": batch_norm_keys(net), "head": head_keys(net)}
        return set().union(*(by_type[word] for word in self.skip.split("+")))

    def check(self, model: ModelSpec) -> None:
        """Raise if no layer is skipped: that is FedAvg."""
        if not self.keys(model.net):
            raise ConfigError(
                f"{self.name} skips {self.skip}, and this backbone has no such layer; "
                f"use another rule, of {', '.join(RULES)}, or fedavg"
            )


@register("partialfed-fixed", paper="Sun et al., NeurIPS 2021", group="personal")
def partialfed_fixed() -> Method:
    """BatchNorm and head, or other layers, are never loaded again.

    A site continues from its own values of some layers and takes the shared model in the others.
    Which layers these are is decided once, by the kind of layer or by its depth.

    Use it: it is known which layers carry what is peculiar to a site.
    Not for: a model for sites that took no part, unless they get the mean of the private layers.
    Equations: the mixed start: `SkippedLayers`.
    """
    return Method((SkippedLayers(),))
