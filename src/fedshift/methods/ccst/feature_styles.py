"""Styles of the first feature maps, measured each round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from fedshift import (
    Batch,
    Client,
    ModelSpec,
    Net,
    Server,
    Tree,
    Update,
    Uploads,
)
from fedshift.methods.ccst.pixel_styles import PixelStyles
from fedshift.methods.shared.pool import kept_by_client
from fedshift.methods.shared.stages import chosen_stages
from fedshift.methods.shared.styles import insert_necks, necks_of, rest_necks


class FeatureStyles(PixelStyles):
    """As pixel-styles, on the maps of the first stage, in the net and without a decoder.

    Styles are those of the received model, uploaded each round and used in the next, so that round
    1 trains plainly.
    """

    shares = "mean and deviation of each channel of its first feature maps, per round"

    def stage(self, net: Net) -> str:
        """The first stage with maps."""
        return chosen_stages(net, "first", self.name)[0]

    def build(self, net: Net) -> None:
        """A neck after the first stage."""
        insert_necks(net, self.name, [self.stage(net)])

    def uploads(self, model: ModelSpec) -> Uploads:
        """Styles (n, 2, C), per round."""
        return {"train": self._spec(model)}

    def enrol(self, client: Client) -> Tree:
        """Nothing: features of an untrained net say little."""
        return {}

    def probe(self, client: Client) -> Tree:
        """Styles under the received model."""
        return self.measured(client)

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """Replace the participants' styles."""
        server.state[self.name] |= kept_by_client(self.name, updates)

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Copies of the images, and draws for the neck."""
        if not client.payload(self):
            return batch
        for neck in necks_of(client.net, self.name).values():
            neck.prepare(partial(self.draw, client))
        x, y = (torch.cat([t] * self.level) for t in (batch.x, batch.y))
        return batch.replace(x=x, y=y)

    def finish(self, client: Client) -> Tree:
        """Nothing more is sent; the net belongs to the next client."""
        rest_necks(client.net, self.name)
        return {}
