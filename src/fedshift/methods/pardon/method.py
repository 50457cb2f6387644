"""Contrast with one's own images in the common style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift import (
    Client,
    Method,
    ModelSpec,
    Part,
    PayloadSpec,
    Server,
    Step,
    Tree,
    Update,
    Uploads,
    register,
    setting,
)
from fedshift.methods.pardon.styles import interpolated_style, local_style
from fedshift.methods.shared.pixels import clip_to_pixels, require_images
from fedshift.methods.shared.style_bank import client_styles
from fedshift.methods.shared.styles import adain
from fedshift.methods.shared.targets import soft_targets


def triplet(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float) -> Tensor:
    """Mean of max(0, |a - p| - |a - n| + margin) over rows (B, D), each normalised to length 1."""
    a, p, n = (F.normalize(z) for z in (anchor, positive, negative))
    return F.triplet_margin_loss(a, p, n, margin=margin, eps=1e-7)


def other_class(y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows (b,) that have a sample of another class in the batch, and one drawn for each (b,)."""
    different = (y[:, None] != y).float().cpu()  # (B, B)
    rows = different.any(1).nonzero().flatten()
    if not len(rows):
        return rows, rows
    return rows, torch.multinomial(different[rows], 1, generator=generator).flatten()


@dataclass(frozen=True)
class InterpolatedStyle(Part):
    """CE(x) + gamma triplet(x, x', x'_other class) + kappa mean(f(x)^2 + f(x')^2).

    x' is x in the interpolated style S of all clients: (1 - alpha) x + alpha AdaIN(x, S), f the
    features. A client uploads its style once, 2 C numbers; the server clusters them and sends S.
    Styles are those of pixels: the paper's VGG encoder and decoder are not used.
    """

    objectives = frozenset({"classification"})

    alpha: float = setting(0.5, "share of the restyled image", low=0.0, high=1.0)
    gamma: float = setting(0.75, "weight of the triplet loss", low=0.0)
    kappa: float = setting(0.2, "weight of the features' squares", low=0.0)
    margin: float = setting(0.3, "margin of the triplet loss", low=0.0)
    shares = "one style of its training images: mean and deviation per channel, once"

    def check(self, model: ModelSpec) -> None:
        """Raise if inputs are no images."""
        require_images(self.name, model)

    def uploads(self, model: ModelSpec) -> Uploads:
        """One style (2, C)."""
        return {"enrol": {"style": PayloadSpec((2, model.net.shape[0]))}}

    def enrol(self, client: Client) -> Tree:
        """The client's style."""
        return {"style": local_style(client_styles(client, None))}

    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """The interpolated style, in the order of the clients' names."""
        told = {u.client: u.payload[f"{self.name}/style"] for u in enrolments}
        styles = torch.stack([told[client] for client in sorted(told)])
        server.state[self.name] = {"style": interpolated_style(styles)}

    def send(self, server: Server, client: str) -> Tree:
        """The interpolated style."""
        return server.state[self.name]

    def restyled(self, client: Client, x: Tensor) -> Tensor:
        """Images (B, C, H, W) towards the interpolated style."""
        mean, std = client.payload(self)["style"][..., None, None]  # (C, 1, 1) each
        moved = torch.lerp(x, adain(x, mean, std), self.alpha)
        return clip_to_pixels(moved, client.scenario.pixels)

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The two terms beside the task's."""
        if not self.gamma and not self.kappa:
            return None
        z = step.out.features
        other = client.net(self.restyled(client, step.batch.x.detach())).features  # (B, D)
        squares = (z.square() + other.square()).mean()
        labels = soft_targets(step.y, client.classes).argmax(1)
        rows, negative = other_class(labels, client.generator(self.name))
        if not len(rows):
            return self.kappa * squares
        contrast = triplet(z[rows], other[rows], other[negative], self.margin)
        return self.gamma * contrast + self.kappa * squares


@register("pardon", paper="Nguyen et al., ICDCS 2025", group="augmentation")
def pardon() -> Method:
    """Contrast with one's own images in a common, interpolated style.

    The server makes one style of all clients' styles, in which no kind of client prevails. Features
    of an image are pulled to those of its restyled copy and away from other classes' copies.

    Use it: for an unseen domain with many clients, of which few take part in a round.
    Not for: label skew with one class per client, where no batch has a negative.
    Equations: Algorithm 1: `local_style`; Algorithm 2: `interpolated_style`; loss: `triplet`.
    """
    return Method((InterpolatedStyle(),))
