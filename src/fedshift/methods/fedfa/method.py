"""Running statistics up, their variance over clients down, noise of that variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from fedshift import (
    Batch,
    Client,
    Method,
    ModelSpec,
    Net,
    Part,
    PayloadSpec,
    Server,
    Step,
    Tree,
    Update,
    Uploads,
    register,
    setting,
    tree,
)
from fedshift.methods.fedfa.statistics import (
    KINDS,
    FeatureNeck,
    fusion_coefficient,
    redraw_statistics,
)
from fedshift.methods.shared.stages import chosen_stages
from fedshift.methods.shared.styles import (
    Change,
    insert_necks,
    necks_of,
    rest_necks,
)


@dataclass(frozen=True)
class FeatureAugmentation(Part):
    """mean' ~ N(mean, (1 + gamma_mean) V_mean), std' alike, after each chosen stage, with chance p.

    A client keeps running averages of both statistics and uploads them after each visit, 2 C
    numbers per stage; the server sends back their variance over the last round's participants, of
    which gamma is made. In round 1 gamma is 1. Scoring uses the plain net.
    """

    p: float = setting(0.5, "chance that a stage redraws a batch", low=0.0, high=1.0)
    momentum: float = setting(0.99, "of the running statistics", low=0.0, high=1.0)
    fusion: str = setting(
        "channel",
        "variance over clients per channel, or one for all as the released code",
        choices=("channel", "scalar"),
    )
    stages: str = setting("all", "stages with maps: first, early, all, last, or names by +")
    shares = "running means and deviations of its feature maps, per channel"
    needs_individual_updates = True

    def build(self, net: Net) -> None:
        """One neck per chosen stage."""
        stages = chosen_stages(net, self.stages, self.name, "redraws statistics of")
        insert_necks(net, self.name, stages, FeatureNeck)

    def uploads(self, model: ModelSpec) -> Uploads:
        """Two vectors (C,) per stage."""
        necks = necks_of(model.net, self.name).items()
        return {
            "train": {f"{k}/{s}": PayloadSpec((neck.channels,)) for s, neck in necks for k in KINDS}
        }

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Let every stage draw anew; the inputs stay as they are."""
        for stage, neck in necks_of(client.net, self.name).items():
            neck.prepare(partial(self.draw, client, stage, neck.channels))
        return batch

    def draw(self, client: Client, stage: str, channels: int, rows: int) -> Change | None:
        """Noise for one stage, or None if it leaves this batch alone."""
        generator, told = client.generator(self.name), client.payload(self)
        if float(torch.rand((), generator=generator)) >= self.p:
            return None
        noise = torch.randn(2, rows, channels, generator=generator)
        ones = torch.ones(channels)
        gamma = torch.stack([fusion_coefficient(told.get(f"{k}/{stage}", ones)) for k in KINDS])
        return partial(redraw_statistics, gamma=gamma, noise=noise)

    def loss(self, client: Client, step: Step) -> None:
        """Eq. 5: move the running statistics, once per batch; adds no term."""
        if f"{self.name}/seen" in step.batch.memo:  # another forward of the same batch
            return
        step.batch.memo[f"{self.name}/seen"] = True
        state = client.state[self.name]
        for stage in necks_of(client.net, self.name):
            for kind in KINDS:
                now = step.out.aux[f"{self.name}-{stage}/{kind}"].float()
                key = f"{kind}/{stage}"
                state[key] = torch.lerp(now, state.get(key, now), self.momentum)

    def finish(self, client: Client) -> Tree:
        """Send the running statistics."""
        rest_necks(client.net, self.name)
        return dict(client.state[self.name])

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """Their variance over the participants, per channel or over clients and channels."""
        told = [tree.under(self.name, u.payload) for u in updates]
        every = {key: torch.stack([t[key] for t in told]) for key in told[0]}  # (n, C) each
        over = {"channel": 0, "scalar": None}[self.fusion]
        server.state[self.name] = {
            k: v.var(over, correction=0).expand(v.shape[1]).clone() for k, v in every.items()
        }

    def send(self, server: Server, client: str) -> Tree:
        """The variances of the round before; none in round 1."""
        return server.state[self.name]


@register("fedfa", paper="Zhou and Konukoglu, ICLR 2023", group="augmentation")
def fedfa() -> Method:
    """Feature statistics redrawn, more where clients differ.

    Means and deviations of feature maps are perturbed by Gaussian noise in training. Its variance
    is that of the client's own batch, raised in channels whose statistics differ between clients.

    Use it: for domain shift between clients with convolutional nets, seen domains or unseen ones.
    Not for: nets without feature maps, and batches so small that they have no variance.
    Equations: Eqs. 6 to 8: `redraw_statistics`; Eq. 9: `fusion_coefficient`; Eq. 5: `FeatureNeck`.
    """
    return Method((FeatureAugmentation(),))
