"""StableFDG: shared, shifted and explored styles, highlighted features (Park et al., 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import (
    Batch,
    Client,
    Method,
    ModelSpec,
    Neck,
    Net,
    Part,
    PayloadSpec,
    Server,
    Tree,
    Update,
    Uploads,
    register,
    setting,
)
from fedshift.methods.mixstyle import mix_styles
from fedshift.methods.shared.stages import chosen_stages
from fedshift.methods.shared.style_bank import channels_of, client_styles
from fedshift.methods.shared.styles import (
    Change,
    adain,
    channel_statistics,
    insert_necks,
    necks_of,
    rest_necks,
)
from fedshift.methods.shared.targets import soft_targets


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


def explore_styles(maps: Tensor, added: int, level: float) -> Tensor:
    """Eq. 4: the last ``added`` maps in styles further from the batch's mean, by ``level``."""
    statistics = [s.detach() for s in channel_statistics(maps)]  # (B, C, 1, 1) each
    new = [s[-added:] + level * (s[-added:] - s.mean(0, keepdim=True)) for s in statistics]
    return torch.cat([maps[:-added], adain(maps[-added:], *new)])


def rarest_classes(y: Tensor, added: int, generator: torch.Generator) -> Tensor:
    """Rows (added,) to repeat: again and again one of a class that the batch has fewest of."""
    classes, place = y.cpu().unique(return_inverse=True)
    counts = torch.bincount(place, minlength=len(classes)).double()
    chosen = []
    for _ in range(added):
        tie = torch.rand(len(classes), generator=generator).double() / 2
        rare = int((counts + tie).argmin())
        counts[rare] += 1
        rows = (place == rare).nonzero().flatten()
        chosen.append(rows[torch.randint(len(rows), (), generator=generator)])
    return torch.stack(chosen)


def next_of_class(y: Tensor) -> Tensor:
    """For each sample (B,) the next one of its class in the batch, around its end; or itself."""
    n, y = len(y), y.cpu()
    ahead = (torch.arange(n)[None, :] - torch.arange(n)[:, None] - 1) % n  # 0 is the next row
    return torch.where(y[:, None] == y, ahead, n).argmin(1)


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


@dataclass(frozen=True)
class StyleExploration(Part):
    """Repeated samples of rare classes in new styles, then MixStyle over all, with chance p.

    The batch grows by ``oversampling`` of its size. At the first stage the added samples get styles
    further from the batch's mean, s + level (s - mean(s)), and all styles are mixed in pairs.
    """

    objectives = frozenset({"classification"})

    p: float = setting(0.5, "chance that a batch is explored", low=0.0, high=1.0)
    level: float = setting(3.0, "how far beyond its place a style goes", low=0.0)
    oversampling: float = setting(1.0, "added samples, of the batch's size", low=0.0)
    alpha: float = setting(0.1, "shape of the Beta distribution of the mixing", low=1e-6)

    def build(self, net: Net) -> None:
        """A neck after the first stage."""
        insert_necks(net, self.name, chosen_stages(net, "first", self.name))

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Repeat samples of rare classes, and let the neck know how many."""
        generator = client.generator(self.name)
        fires = float(torch.rand((), generator=generator)) < self.p
        added = round(self.oversampling * len(batch.x)) if fires else 0
        for neck in necks_of(client.net, self.name).values():
            neck.prepare(partial(self.draw, client, added) if fires else lambda _: None)
        if not added:
            return batch
        labels = soft_targets(batch.y, client.classes).argmax(1)
        rows = rarest_classes(labels, added, generator)
        x, y = (torch.cat([t, t[rows]]) for t in (batch.x, batch.y))
        return batch.replace(x=x, y=y)

    def draw(self, client: Client, added: int, rows: int) -> Change:
        """Styles beyond, then partners and shares as MixStyle's."""
        other = torch.randperm(rows, generator=client.generator(self.name))
        drawn = client.numpy(self.name).beta(self.alpha, self.alpha, rows)
        mix = partial(mix_styles, other=other, share=torch.from_numpy(drawn).float())
        return lambda maps: mix(explore_styles(maps, added, self.level) if added else maps)

    def finish(self, client: Client) -> Tree:
        """Nothing is sent; the net belongs to the next client."""
        rest_necks(client.net, self.name)
        return {}


class Highlighter(Neck):
    """Attention over positions by queries of two samples of a class; see feature-highlighter."""

    def __init__(self, channels: int, width: int = 30) -> None:
        super().__init__()
        self.query, self.key = (nn.Conv2d(channels, width, 1) for _ in range(2))
        self.partner: Tensor | None = None  # (B,) of the present training batch

    def forward(self, maps: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Maps (B, C, H, W) to maps of the same shape; alone, a sample is its own partner."""
        n, (height, width) = len(maps), maps.shape[2:]
        partner = self.partner if self.training else None
        if partner is None or len(partner) != n:
            partner = torch.arange(n)
        q, k = (F.normalize(f(maps).flatten(2), dim=1) for f in (self.query, self.key))
        scores = ((q + q[partner]) / 2).transpose(1, 2) @ k  # (B, HW, HW)
        weights = scores.mean(1).softmax(1).view(n, 1, height, width)
        return maps * (1 + height * width * weights) / 2, {}


class FeatureHighlighter(Part):
    """The last maps weighted by attention to what two samples of a class have in common (Eq. 5).

    Queries of a sample and of the next one of its class are averaged, compared by cosine with the
    sample's keys, averaged over queries, and softmax over positions gives a. The maps become
    x (1 + HW a) / 2: their mean is that of plain and attended pooling. Two 1x1 convolutions travel
    with the model.
    """

    objectives = frozenset({"classification"})

    def build(self, net: Net) -> None:
        """A neck after the last stage with maps."""
        stage = chosen_stages(net, "last", self.name)[0]
        net.insert(self.name, Highlighter(net.shapes()[stage][0]), after=stage)

    def _pair(self, net: Net, partner: Tensor | None) -> None:
        neck = net.extra[self.name]
        assert isinstance(neck, Highlighter)
        neck.partner = partner

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Partners of this batch."""
        self._pair(client.net, next_of_class(soft_targets(batch.y, client.classes).argmax(1)))
        return batch

    def finish(self, client: Client) -> Tree:
        """Nothing is sent but the net's own entries."""
        self._pair(client.net, None)
        return {}


@register("stablefdg", paper="Park et al., NeurIPS 2023", group="augmentation")
def stablefdg() -> Method:
    """Styles of another client and beyond, and attention to the class.

    Each round a client lends its style to another one, which shifts half of a batch to it. Rare
    classes are repeated in styles that nobody has, and attention highlights what a class shares.

    Use it: for an unseen domain with few samples and few looks per client.
    Not for: nets without feature maps, and batches in which most classes occur once.
    Equations: Eqs. 1, 2: `style_of`; 3: `shift_styles`; 4: `explore_styles`; 5: `Highlighter`.
    """
    return Method((StyleSharing(), StyleExploration(), FeatureHighlighter()))
