"""HarmoFL: one amplitude for all images, flat local minima (Jiang et al., AAAI 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedshift import (
    Client,
    ConfigError,
    Method,
    ModelSpec,
    Net,
    Part,
    PayloadSpec,
    Server,
    Tree,
    Update,
    Uploads,
    register,
)
from fedshift.methods.fedsam import SharpnessAware
from fedshift.methods.shared.amplitude import image_of, spectrum
from fedshift.methods.shared.pixels import require_images


class CommonAmplitude(nn.Module):
    """Replaces the amplitude of every image by one common one, and keeps its phase.

    Until a common amplitude is known, images pass as they are.
    """

    amplitude: Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        channels, height, width = shape
        self.register_buffer("amplitude", torch.zeros(channels, height, width // 2 + 1))

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) to images of the same shape."""
        if not bool(self.amplitude.any()):
            return x
        return image_of(self.amplitude, spectrum(x)[1], x.shape[-1])


@dataclass(frozen=True)
class AmplitudeNormalisation(Part):
    """x -> F^-1(A, phase of x), A the mean over clients of their mean amplitudes (Eqs. 2 to 4).

    A client uploads the mean amplitude of its training images once, (C, H, W // 2 + 1) numbers. The
    server's mean of them is a buffer of the net, before its first layer, and never changes, so that
    training, scoring and a new site use the same one. Batches, losses and parts see the images as
    they are.
    """

    shares = "the mean amplitude of its training images, once"

    def build(self, net: Net) -> None:
        """A layer before all others; nothing if inputs are no images, which ``check`` refuses."""
        if len(net.shape) == 3:
            net.extra[self.name] = CommonAmplitude(net.shape)
            first = next(iter(net.stages))
            net.stages[first] = (f"extra.{self.name}", *net.stages[first])

    def check(self, model: ModelSpec) -> None:
        """Raise if inputs are no images, or if another part keeps the amplitude at the sites."""
        require_images(self.name, model)
        if self.key not in model.shared:
            raise ConfigError(
                f"{self.name} has one amplitude for all sites, and another part keeps it from "
                "travelling; leave out the part that makes the whole body private"
            )

    @property
    def key(self) -> str:
        """Name of the amplitude among the net's entries."""
        return f"extra.{self.name}.amplitude"

    def uploads(self, model: ModelSpec) -> Uploads:
        """One amplitude spectrum."""
        *rows, width = model.net.shape
        return {"enrol": {"amplitude": PayloadSpec((*rows, width // 2 + 1))}}

    def enrol(self, client: Client) -> Tree:
        """Mean amplitude of the training images, in large batches."""
        sums = [spectrum(x)[0].sum(0) for x, _ in client.site.data.train.chunks()]
        return {"amplitude": torch.stack(sums).sum(0) / client.examples}

    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """The mean over clients, each with the same weight."""
        told = [u.payload[f"{self.name}/amplitude"] for u in enrolments]
        server.state[self.name] = {"amplitude": torch.stack(told).mean(0)}
        self.refine(server)

    def refine(self, server: Server) -> None:
        """Put it into the net again: averaging equal values may round them."""
        server.shared = server.shared | {self.key: server.state[self.name]["amplitude"]}


@register("harmofl", paper="Jiang et al., AAAI 2022", group="augmentation")
def harmofl() -> Method:
    """Images of one common amplitude, and sharpness-aware local steps.

    All sites replace the amplitude of their images by the mean over sites, so that looks become
    alike and the phase, what an image shows, remains. Flat minima keep the local models close.

    Use it: for scanners or cameras that differ in brightness, contrast and texture.
    Not for: tasks whose classes differ in their amplitude, as textures do, which it removes.
    Equations: Eqs. 2 to 4: `AmplitudeNormalisation`, `CommonAmplitude`; Eq. 6: `SharpnessAware`.
    """
    return Method((AmplitudeNormalisation(), SharpnessAware()))
