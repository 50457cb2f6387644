"""The amplitude bank of all clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedshift import (
    Client,
    ModelSpec,
    Part,
    PayloadSpec,
    Server,
    Size,
    Tree,
    Update,
    Uploads,
    setting,
)
from fedshift.methods.shared.amplitude import (
    half_width,
    low_frequencies,
    spectrum,
)
from fedshift.methods.shared.pixels import require_images
from fedshift.methods.shared.pool import kept_by_client, of_others

MOST = 4096  # spectra that one client may send


@dataclass(frozen=True)
class AmplitudeBank(Part):
    """Amplitudes of some training images of every client, gathered once and sent to the others.

    Only the low-frequency window is sent, which is all that is ever mixed: (n, C, 2 b + 1, b + 1)
    numbers with b = max(1, window times the shorter side), n an eighth of a client's images. Every
    message to a client carries the windows of the other clients. Adds no loss.
    """

    window: float = setting(0.01, "half-width, of the shorter side; at least 1", low=0.0, high=0.5)
    share: float = setting(0.125, "share of a client's images in the bank", low=0.0, high=1.0)
    shares = "low-frequency amplitudes of some training images, once"

    def check(self, model: ModelSpec) -> None:
        """Raise if inputs are no images."""
        require_images(self.name, model)

    def half(self, shape: Sequence[int]) -> int:
        """Half-width of the window for images (C, H, W)."""
        return half_width(shape[1], shape[2], self.window)

    def uploads(self, model: ModelSpec) -> Uploads:
        """The windows (n, C, h, w)."""
        channels, height, width = model.net.shape
        half = self.half(model.net.shape)
        sides = (min(height, 2 * half + 1), min(width // 2 + 1, half + 1))
        return {"enrol": {"windows": PayloadSpec((Size("n", MOST), channels, *sides))}}

    def enrol(self, client: Client) -> Tree:
        """Low frequencies of images drawn without replacement, at least one."""
        n = min(MOST, max(1, round(self.share * client.examples)))
        rows = torch.randperm(client.examples, generator=client.generator(self.name))[:n]
        amplitude, _ = spectrum(client.site.data.train.take(rows)[0])
        return {"windows": low_frequencies(amplitude, self.half(client.net.shape))}

    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """Keep every client's windows."""
        server.state[self.name] = kept_by_client(self.name, enrolments)

    def send(self, server: Server, client: str) -> Tree:
        """The windows of the other clients; a client that is alone gets its own."""
        return of_others(server.state[self.name], ("windows",), client)
