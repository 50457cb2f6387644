"""Learning to tell virtual samples, and contrast of real features with theirs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import Client, Method, Net, Part, Step, register, seeds, setting
from fedshift.methods.shared.class_means import shares_of
from fedshift.methods.shared.contrast import agreement, cosines, not_itself, pair_contrast
from fedshift.methods.vhl.virtual import decode, random_decoder, virtual_noise


def wider(logits: Tensor, further: Tensor) -> Tensor:
    """What K further outputs (B, K) add to a real sample's cross-entropy on its own (B, K), (B,).

    -log softmax over 2K at a class below K is that over K plus log(1 + sum e^further / sum e^own).
    """
    return F.softplus(further.logsumexp(1) - logits.logsumexp(1))


@dataclass(frozen=True)
class VirtualData(Part):
    """alpha CE(virtual) + align SupCon(real to real and virtual) + within SupCon(virtual).

    The virtual labels are K further outputs of the head, of which real samples are none, so that
    CE is over 2K classes for both; the model is scored by the first K. Contrasts match a real and a
    virtual class of the same number; virtual features are constants for the real ones. Every
    machine makes the same virtual set from the run's seed: nothing is sent but the wider head.
    """

    alpha: float = setting(1.0, "weight of the virtual samples' cross-entropy", low=0.0)
    align: float = setting(1.0, "weight of the contrast of real with virtual features", low=0.0)
    within: float = setting(0.1, "weight of the contrast among virtual features", low=0.0)
    tau: float = setting(0.07, "temperature of the contrasts", low=1e-6)
    virtual: int = setting(2000, "virtual samples", low=2)
    size: int = setting(128, "virtual samples per batch", low=2)
    objectives = frozenset({"classification"})

    def build(self, net: Net) -> None:
        """K further outputs on the features."""
        net.extra[self.name] = nn.Linear(net.shapes()["features"][0], net.classes)

    def begin(self, client: Client) -> None:
        """Make the decoder and the noise of the virtual set, the same at every site and visit."""
        with seeds.fork(client.seed, self.name):
            decoder = random_decoder(client.net.shape)
            noise, y = virtual_noise(client.classes, self.virtual)
        client.scratch[self.name] = {"decoder": decoder, "noise": noise, "y": y}

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """All terms on one batch of real and one of virtual samples."""
        if not (self.alpha or self.align or self.within):
            return None
        held, net = client.scratch[self.name], client.net
        rows = torch.randint(self.virtual, (self.size,), generator=client.generator(self.name))
        out, y = net(decode(held["decoder"], held["noise"][rows], net.shape)), held["y"][rows]
        head = net.extra[self.name]
        both = torch.cat([out.logits, head(out.features)], 1)  # (V, 2K)
        terms = self.alpha * F.cross_entropy(both, y + client.classes)
        terms = terms + wider(step.out.logits, head(step.out.features)).mean()
        return terms + self.contrasts(
            (step.out.features, shares_of(step.y, client.classes)),
            (out.features, shares_of(y, client.classes)),
        )

    def contrasts(self, real: tuple[Tensor, Tensor], virtual: tuple[Tensor, Tensor]) -> Tensor:
        """Both, from features and class shares, (B, D) and (B, K), of real and virtual samples."""
        (z, shares), (v, virtual_shares) = real, virtual
        others = torch.cat([z, v.detach()])
        all_ = torch.cat([shares, virtual_shares])
        pull = self._contrast(z, shares, others, all_)
        return self.align * pull + self.within * self._contrast(
            v, virtual_shares, v, virtual_shares
        )

    def _contrast(self, z: Tensor, shares: Tensor, others: Tensor, all_: Tensor) -> Tensor:
        mask = not_itself(len(z), len(others))
        s = cosines(z, others) / self.tau
        return pair_contrast(s, agreement(shares, all_) * mask, mask).mean()


@register("vhl", paper="Tang et al., ICML 2022", group="alignment")
def vhl() -> Method:
    """FedAvg with virtual noise images that all clients align with.

    An untrained generator makes labelled noise images, the same at every client. Learning to tell
    them and pulling real features to the virtual ones of their class gives sites a common aim.

    Use it: sites differ in labels or looks, no public data exist and nothing may be sent.
    Not for: tight compute, since every step also passes a batch of virtual samples.
    Equations: virtual set: `virtual_noise`; head: `wider`; contrast: `VirtualData.contrasts`.
    """
    return Method((VirtualData(),))
