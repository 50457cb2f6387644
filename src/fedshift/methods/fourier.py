"""Fourier augmentation: amplitudes mixed within the client's batch (Xu et al., CVPR 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedshift import Batch, Client, Method, ModelSpec, Part, register, setting
from fedshift.methods.shared.amplitude import (
    half_width,
    low_frequencies,
    mix_low_frequencies,
    spectrum,
)
from fedshift.methods.shared.pixels import clip_to_pixels, require_images


@dataclass(frozen=True)
class AmplitudeMixing(Part):
    """Eqs. 3 and 4: A = (1 - l) A(x) + l A(x'), phase of x, l ~ U(0, eta), one l per image.

    x' is the image of a permutation of the batch. The result is clipped to the range of pixels.
    With ``both`` a batch holds the images as they are and, after them, the mixed ones, so that its
    loss is the mean of both (half of FACT's sum). FACT's teacher is left out. Nothing is sent.
    """

    eta: float = setting(1.0, "largest share of the other amplitude", low=0.0, high=1.0)
    window: float = setting(
        0.5, "half-width of the mixed window, of the shorter side; 0.5: all", low=0.0, high=0.5
    )
    both: bool = setting(True, "train on the original images too")

    def check(self, model: ModelSpec) -> None:
        """Raise if inputs are no images."""
        require_images(self.name, model)

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Mix amplitudes, and append or replace."""
        if self.eta == 0:
            return batch
        generator = client.generator(self.name)
        other = torch.randperm(len(batch.x), generator=generator)
        share = self.eta * torch.rand(len(batch.x), generator=generator)  # (B,)
        height, width = batch.x.shape[2:]
        half = half_width(height, width, self.window)
        half = max(height, width) // 2 if self.window == 0.5 else half
        theirs = low_frequencies(spectrum(batch.x)[0], half)[other]
        mixed = mix_low_frequencies(batch.x, theirs, share, half)
        mixed = clip_to_pixels(mixed, client.scenario.pixels)
        if not self.both:
            return batch.replace(x=mixed)
        return batch.replace(x=torch.cat([batch.x, mixed]), y=torch.cat([batch.y, batch.y]))


@register("fourier", paper="Xu et al., CVPR 2021", group="augmentation")
def fourier() -> Method:
    """Amplitude spectra mixed between images of a batch, phases kept.

    The amplitude of an image's Fourier transform carries its look, the phase most of what it shows.
    Mixing amplitudes between the images of a client makes new looks with the same content.

    Use it: as a plug-in for an unseen domain, if looks differ in colour, contrast or texture.
    Not for: clients whose images all look the same, and inputs that are no images.
    Equations: Eq. 3: `AmplitudeMixing.batch`; Eq. 4: `mix_low_frequencies`, `spectrum`, `image_of`.
    """
    return Method((AmplitudeMixing(),))
