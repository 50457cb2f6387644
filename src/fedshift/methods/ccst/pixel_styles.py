"""Styles of the images themselves, measured once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedshift import (
    Batch,
    Client,
    ModelSpec,
    Net,
    Part,
    PayloadSpec,
    Server,
    Size,
    Tree,
    Update,
    Uploads,
    setting,
)
from fedshift.methods.shared.pixels import clip_to_pixels, require_images
from fedshift.methods.shared.pool import kept_by_client, of_others
from fedshift.methods.shared.style_bank import channels_of, client_styles, overall_style
from fedshift.methods.shared.styles import Change, adain


def restyled(maps: Tensor, own: Tensor, styles: Tensor) -> Tensor:
    """Maps (B, C, H, W) in ``styles`` (B, 2, C) by AdaIN, unchanged where ``own`` (B,) is true."""
    mean, std = (s[..., None, None] for s in styles.unbind(1))  # (B, C, 1, 1) each
    return torch.where(own.view(-1, 1, 1, 1).to(maps.device), maps, adain(maps, mean, std))


@dataclass(frozen=True)
class PixelStyles(Part):
    """Styles of every client, gathered and sent to the others; trains on images in these styles.

    ``overall``: one style per client, mean and deviation of each channel over all its training
    images; ``single``: those of ``size`` single images. 2 C numbers each, uploaded once; every
    message carries the styles of the other clients. Each image of a batch is drawn a client, its
    own included, and given that client's style, its own meaning as it is (Algorithm 1); ``level``
    copies with a draw each.
    """

    bank: str = setting(
        "overall", "one style per client, or of single images", choices=("overall", "single")
    )
    size: int = setting(8, "images of a client in a bank of single styles", low=1)
    level: int = setting(1, "K: copies of an image, each in a style of its own", low=1)
    shares = "mean and deviation of each channel of its training images, once"

    def stage(self, net: Net) -> str | None:
        """Where styles are measured and changed: None for the images themselves."""
        return None

    def check(self, model: ModelSpec) -> None:
        """Raise if inputs are no images."""
        require_images(self.name, model)

    def _spec(self, model: ModelSpec) -> dict[str, PayloadSpec]:
        channels = channels_of(model.net, self.stage(model.net))
        rows = 1 if self.bank == "overall" else Size("n", self.size)
        return {"styles": PayloadSpec((rows, 2, channels))}

    def uploads(self, model: ModelSpec) -> Uploads:
        """Styles (n, 2, C), once."""
        return {"enrol": self._spec(model)}

    def measured(self, client: Client) -> Tree:
        """The client's styles as the bank wants them."""
        styles = client_styles(client, self.stage(client.net))  # (n, 2, C)
        if self.bank == "overall":
            return {"styles": overall_style(styles)[None]}
        rows = torch.randperm(len(styles), generator=client.generator(self.name))
        return {"styles": styles[rows[: self.size]]}

    def enrol(self, client: Client) -> Tree:
        """Styles of the images."""
        return self.measured(client)

    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """Keep every client's styles."""
        server.state[self.name] = kept_by_client(self.name, enrolments)

    def send(self, server: Server, client: str) -> Tree:
        """The styles of the other clients."""
        return of_others(server.state[self.name], ("styles",), client)

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Algorithm 1, on the fly: every image anew in each batch."""
        x, y = (torch.cat([t] * self.level) for t in (batch.x, batch.y))
        x = self.draw(client, len(x))(x)
        return batch.replace(x=clip_to_pixels(x, client.scenario.pixels), y=y)

    def draw(self, client: Client, rows: int) -> Change:
        """A client for each row, the own one included, and a style of that client."""
        told, generator = client.payload(self), client.generator(self.name)
        styles, owner = told["styles"], told["owner"].cpu()  # (R, 2, C), (R,)
        clients = int(owner.max()) + 1
        drawn = torch.randint(clients + 1, (rows,), generator=generator)  # the last is the own
        own = drawn == clients
        held = (owner == drawn[:, None]).float()  # (B, R) rows of the drawn client
        held[own] = 1.0
        chosen = torch.multinomial(held, 1, generator=generator).flatten()
        return partial(restyled, own=own, styles=styles[chosen])
