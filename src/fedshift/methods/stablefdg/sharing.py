"""Style sharing: half of a batch in the style of another client."""

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
    Tree,
    Update,
    Uploads,
    setting,
)
from fedshift.methods.shared.stages import chosen_stages
from fedshift.methods.shared.style_bank import channels_of, client_styles
from fedshift.methods.shared.styles import (
    Change,
    adain,
    insert_necks,
    necks_of,
    rest_necks,
)


def style_of(styles: Tensor) -> Tensor:
    """Eqs. 1, 2: mean and deviation (2, 2, C) over images of their styles (n, 2, C)."""
    return torch.stack([styles.mean(0), styles.std(0, correction=0)])


def shift_styles(maps: Tensor, rows: Tensor, style: Tensor, noise: Tensor) -> Tensor:
    """Eq. 3: the maps of ``rows`` (b,) in styles drawn from another client's, others unchanged.

    ``style`` (2, 2, C) is mean and deviation of the client's styles, ``noise`` (b, 2, C) normal. A
    drawn deviation below zero is set to zero.
    """
    drawn = style[0] + noise.to(style) * style[1]  # (b, 2, C)
    mean, std = (s[..., None, None] for s in drawn.unbind(1))
    return maps.index_copy(0, rows.to(maps.device), adain(maps[rows], mean, std.clamp(min=0)))


@dataclass(frozen=True)
class StyleSharing(Part):
    """Half of a batch in another client's style, at the first stage, with chance p per batch.

    A client measures the styles of its images under the received model and uploads their mean and
    deviation, 4 C numbers per round; the server sends it those of another client, of the round
    before, drawn anew each round. So round 1 trains plainly.
    """

    p: float = setting(0.5, "chance that a batch is shifted", low=0.0, high=1.0)
    shares = "mean and deviation of the styles of its feature maps, per round"
    needs_individual_updates = True

    def build(self, net: Net) -> None:
        """A neck after the first stage."""
        insert_necks(net, self.name, chosen_stages(net, "first", self.name))

    def uploads(self, model: ModelSpec) -> Uploads:
        """One style (2, 2, C)."""
        channels = channels_of(model.net, chosen_stages(model.net, "first", self.name)[0])
        return {"train": {"style": PayloadSpec((2, 2, channels))}}

    def probe(self, client: Client) -> Tree:
        """Under the received model."""
        stage = chosen_stages(client.net, "first", self.name)[0]
        return {"style": style_of(client_styles(client, stage))}

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """Keep the latest style of every client."""
        told = {u.client: u.payload[f"{self.name}/style"] for u in updates}
        server.state[self.name] |= told

    def send(self, server: Server, client: str) -> Tree:
        """The style of another client, drawn for this client and round; none in round 1."""
        kept = server.state[self.name]
        names = sorted(kept.keys() - {client})
        if not names:
            return {}
        order = torch.randperm(len(server.roster), generator=server.generator(self.name))
        place = sorted(server.roster).index(client)
        return {"style": kept[names[int(order[place]) % len(names)]]}

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Let the neck draw anew."""
        if client.payload(self):
            for neck in necks_of(client.net, self.name).values():
                neck.prepare(partial(self.draw, client, neck.channels))
        return batch

    def draw(self, client: Client, channels: int, rows: int) -> Change | None:
        """Half of the rows and their noise, or None if this batch is left alone."""
        generator = client.generator(self.name)
        if float(torch.rand((), generator=generator)) >= self.p:
            return None
        half = torch.randperm(rows, generator=generator)[: rows // 2]
        noise = torch.randn(len(half), 2, channels, generator=generator)
        style = client.payload(self)["style"]
        return partial(shift_styles, rows=half, style=style, noise=noise)

    def finish(self, client: Client) -> Tree:
        """Nothing more is sent; the net belongs to the next client."""
        rest_necks(client.net, self.name)
        return {}
