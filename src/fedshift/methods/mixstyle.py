"""MixStyle: channel statistics mixed between samples of a batch (Zhou et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedshift import Batch, Client, Method, Net, Part, Tree, register, setting
from fedshift.methods.shared.stages import chosen_stages
from fedshift.methods.shared.styles import (
    Change,
    adain,
    channel_statistics,
    insert_necks,
    necks_of,
    rest_necks,
)


def mix_styles(maps: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """Eqs. 4 to 6: maps (B, C, H, W) with statistics l own + (1 - l) those of rows ``other`` (B,).

    l is ``share`` (B,). No gradient flows through the statistics that are mixed.
    """
    lam = share.view(-1, 1, 1, 1).to(maps)
    mean, std = (s.detach() for s in channel_statistics(maps))  # (B, C, 1, 1)
    mixed = (torch.lerp(s[other], s, lam) for s in (mean, std))
    return adain(maps, *mixed)


@dataclass(frozen=True)
class MixStyle(Part):
    """x -> std' (x - mean(x)) / std(x) + mean', std' and mean' mixed with another sample's.

    After each chosen stage, with probability p per batch; l ~ Beta(alpha, alpha), one per sample,
    and the partner is a row of a permutation of the batch. Nothing is sent. Scoring is unchanged.
    """

    p: float = setting(0.5, "chance that a stage mixes a batch", low=0.0, high=1.0)
    alpha: float = setting(0.1, "shape of the Beta distribution", low=1e-6)
    stages: str = setting("early", "stages with maps: first, early, all, last, or names by +")

    def build(self, net: Net) -> None:
        """One neck per chosen stage."""
        stages = chosen_stages(net, self.stages, self.name, "mixes statistics of")
        insert_necks(net, self.name, stages)

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Let every stage draw anew; the inputs stay as they are."""
        for neck in necks_of(client.net, self.name).values():
            neck.prepare(partial(self.draw, client))
        return batch

    def draw(self, client: Client, rows: int) -> Change | None:
        """Partner and share of each row, or None if this batch is not mixed."""
        generator = client.generator(self.name)
        if float(torch.rand((), generator=generator)) >= self.p:
            return None
        other = torch.randperm(rows, generator=generator)
        drawn = client.numpy(self.name).beta(self.alpha, self.alpha, rows)
        return partial(mix_styles, other=other, share=torch.from_numpy(drawn).float())

    def finish(self, client: Client) -> Tree:
        """Nothing is sent; the net belongs to the next client."""
        rest_necks(client.net, self.name)
        return {}


@register("mixstyle", paper="Zhou et al., ICLR 2021", group="augmentation")
def mixstyle() -> Method:
    """Channel statistics of feature maps mixed between samples.

    Mean and deviation of a shallow feature map carry the look of an image. Mixing them between
    images of a batch shows the later layers looks that the client does not have.

    Use it: as a plug-in for an unseen domain, if a client's own images differ in their look.
    Not for: clients with one uniform look each, between whose images there is little to mix.
    Equations: Eqs. 2, 3: `channel_statistics`; Eqs. 4 to 6: `mix_styles`; Fig. 2: `MixStyle.draw`.
    """
    return Method((MixStyle(),))
