"""Style exploration: samples of rare classes again, in styles that nobody has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedshift import (
    Batch,
    Client,
    Net,
    Part,
    Tree,
    setting,
)
from fedshift.methods.mixstyle import mix_styles
from fedshift.methods.shared.stages import chosen_stages
from fedshift.methods.shared.styles import (
    Change,
    adain,
    channel_statistics,
    insert_necks,
    necks_of,
    rest_necks,
)
from fedshift.methods.shared.targets import soft_targets


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
