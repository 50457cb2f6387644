"""FedSAM: sharpness-aware local steps (Qu et al., ICML 2022; Caldarola et al., ECCV 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from fedshift import Client, Method, Part, Step, register, setting
from fedshift.methods.shared.perturbation import replace_by_gradient_uphill


@dataclass(frozen=True)
class SharpnessAware(Part):
    """w <- w - lr grad F(w + e) with e = rho grad F(w) / |grad F(w)|.

    F is the whole objective on one batch, the terms of other parts included; weight decay and
    clipping come after it. Costs two passes per batch; nothing but the model is sent.
    """

    rho: float = setting(0.05, "length of the step uphill", low=0.0)
    replaces_gradients = True

    def edit_gradients(self, client: Client, step: Step) -> None:
        """The second pass."""
        replace_by_gradient_uphill(client, step, self.rho)


@register("fedsam", paper="Qu et al., ICML 2022; Caldarola et al., ECCV 2022", group="optimisation")
def fedsam() -> Method:
    """FedAvg whose clients look for flat minima.

    Each local step uses the gradient at the worst point nearby instead of the one at the present
    weights. Minima in which the loss stays low around the weights survive averaging better.

    Use it: when sites differ and may compute twice as much; it stacks on any method.
    Not for: sites whose computation is the bottleneck, since every batch is passed twice.
    Equations: Algorithm 1, local step: `SharpnessAware.edit_gradients`,
    `replace_by_gradient_uphill`.
    """
    return Method((SharpnessAware(),))
