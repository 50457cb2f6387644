"""FedRCL: supervised contrast at every stage, without collapse (Seo et al., CVPR 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import Client, Method, Part, Step, register, setting
from fedshift.methods.shared.class_means import shares_of
from fedshift.methods.shared.contrast import agreement, cosines, not_itself, pair_contrast

HARDEST_OTHERS = 2  # samples of other classes in the released contrast


def pooled(maps: Tensor) -> Tensor:
    """Features (B, C) of a stage: the mean over positions of maps (B, C, H, W) or tokens (B, N, C).

    What is flat already stays as it is.
    """
    if maps.dim() == 3:
        return maps.mean(1)
    return maps.flatten(2).mean(2) if maps.dim() > 3 else maps


def contrast_all(s: Tensor, shares: Tensor, tau: float) -> Tensor:
    """Supervised contrast of a batch, (B,), from cosines ``s`` (B, B): the mean over all pairs."""
    others = not_itself(len(s), len(s))
    return pair_contrast(s / tau, agreement(shares, shares) * others, others)


def penalty_all(s: Tensor, shares: Tensor, tau: float, lam: float) -> Tensor:
    """log(1 + sum_j a_ij e^{(s_ij - 1) / tau}) of each anchor, (B,), over pairs with s_ij >= lam.

    a_ij is 1 for two samples of one class. The 1 is the anchor with itself, e^{(1 - 1) / tau}.
    """
    near = agreement(shares, shares) * not_itself(len(s), len(s)) * (s >= lam)
    return torch.log1p((near * ((s - 1) / tau).exp()).sum(1))


def contrast_hardest(s: Tensor, y: Tensor, tau: float) -> Tensor:
    """The same with the least similar sample of the class and the two most similar others, (B,).

    As in the released code an anchor that is alone in its class is its own positive.
    """
    same = y[:, None] == y  # (B, B)
    near = s.masked_fill(~same, torch.inf).argmin(1, keepdim=True)  # (B, 1)
    far = s.masked_fill(same, -torch.inf).topk(min(HARDEST_OTHERS, len(s)), dim=1).indices
    against = torch.zeros_like(same).scatter(1, far, value=True) & ~same
    attract = torch.zeros_like(s).scatter(1, near, 1.0)
    return pair_contrast(s / tau, attract, against | attract.bool())


def penalty_hardest(s: Tensor, y: Tensor, tau: float, lam: float) -> Tensor:
    """log(1 + e^{(u_i - 1) / tau}), (B,): u_i the least cosine in the class, or -1 below lam."""
    same = (y[:, None] == y) & not_itself(len(s), len(s))
    least = s.masked_fill(~same, torch.inf).amin(1)  # (B,)
    u = torch.where((least >= lam) & same.any(1), least, -1.0)
    return torch.log1p(((u - 1) / tau).exp())


@dataclass(frozen=True)
class RelaxedContrast(Part):
    """contrast * L_scl + penalty * L_pen, averaged over the stages of the backbone.

    L_scl is the supervised contrast of the batch's features, L_pen keeps samples of one class whose
    cosine is at least lam from collapsing into one point. Nothing is sent.
    """

    tau: float = setting(0.05, "temperature", low=1e-6)
    lam: float = setting(0.7, "cosine from which a pair of one class repels", low=-1.0, high=1.0)
    contrast: float = setting(1.0, "weight of the contrast", low=0.0)
    penalty: float = setting(1.0, "weight of the penalty", low=0.0)
    pairs: str = setting("all", "pairs that count; released: hardest", choices=("all", "hardest"))
    levels: str = setting("all", "stages that count: all, or the last", choices=("all", "last"))
    objectives = frozenset({"classification"})

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """Both terms, as a mean over stages."""
        maps = [*step.out.taps.values()][:-1] if self.levels == "all" else []
        features = [*map(pooled, maps), step.out.features]
        terms = [self.level(z, step.y, client.classes) for z in features]
        return torch.stack(terms).mean() if self.contrast or self.penalty else None

    def level(self, z: Tensor, y: Tensor, classes: int) -> Tensor:
        """The terms of one stage, mean over the batch."""
        s, shares = cosines(z, z), shares_of(y, classes)
        if self.pairs == "all":
            near, relaxed = (
                contrast_all(s, shares, self.tau),
                penalty_all(s, shares, self.tau, self.lam),
            )
        else:
            own = shares.argmax(1)  # of a mixed sample, the class with the larger share
            near, relaxed = (
                contrast_hardest(s, own, self.tau),
                penalty_hardest(s, own, self.tau, self.lam),
            )
        return (self.contrast * near + self.penalty * relaxed).mean()


@register("fedrcl", paper="Seo et al., CVPR 2024", group="label skew")
def fedrcl() -> Method:
    """FedAvg with a supervised contrast that does not collapse.

    Features of one class attract each other at every stage of the net, which makes the clients'
    gradients agree. A penalty on pairs that are already too similar keeps features from collapsing.

    Use it: clients hold few classes each and batches are large enough to have pairs of a class.
    Not for: batches of a few samples, where most samples have no partner of their class.
    Equations: contrast: `contrast_all`; penalty: `penalty_all`; levels: `RelaxedContrast.loss`.
    """
    return Method((RelaxedContrast(),))
