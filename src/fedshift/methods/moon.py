"""MOON: contrast with the received and the previous model (Li et al., CVPR 2021, Eq. 3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import Client, Method, Neck, Net, Part, Step, register, setting


def model_contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """-log e^{s(z,z_glob)/tau} / (e^{s(z,z_glob)/tau} + e^{s(z,z_prev)/tau}), mean over (B, D)."""
    near = F.cosine_similarity(z, z_glob) / tau  # (B,)
    far = F.cosine_similarity(z, z_prev) / tau  # (B,)
    return F.softplus(far - near).mean()


@dataclass(frozen=True)
class ModelContrast(Part):
    """mu * contrast of features: near the received model's, far from the previous local one's.

    The term is left out in a client's first visit, when there is no previous model. Both references
    are frozen and in eval mode.
    """

    mu: float = setting(1.0, "weight of the contrast", low=0.0)
    tau: float = setting(0.5, "temperature", low=1e-6)
    references = frozenset({"received", "previous"})

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """Eq. 3."""
        glob = client.reference("received", step.batch)
        prev = client.reference("previous", step.batch)
        if glob is None or prev is None:
            return None
        return self.mu * model_contrast(step.out.features, glob.features, prev.features, self.tau)


class TwoLayers(Neck):
    """D -> D -> D with a ReLU between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, maps: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Features (B, D) to features (B, D)."""
        projected: Tensor = self.layers(torch.flatten(maps, 1))
        return projected, {}


class Projector(Part):
    """The authors' two-layer projection between body and head; domain-skew benchmarks omit it."""

    def build(self, net: Net) -> None:
        """Insert it after the last stage."""
        width = net.shapes()["features"][0]
        net.insert(self.name, TwoLayers(width), after=list(net.stages)[-1])


@register("moon", paper="Li et al., CVPR 2021", group="optimisation")
def moon(projector: bool = False) -> Method:
    """Contrast of local, received and previous features.

    A client's features are drawn to those of the received model and pushed away from those of its
    own model of the visit before, so that it does not drift the same way again.

    Use it: label skew with long local training, on clients that return.
    Not for: domain skew, where papers find it below FedAvg, and clients that come once; it costs
    two more forward passes.
    Equations: Eq. 3: `model_contrast`, `ModelContrast.loss`.
    Options: projector: two layers between body and head, as the authors have.
    """
    return Method((*([Projector()] if projector else []), ModelContrast()))
