"""F2DC: separate domain-robust features, correct the others (Wang et al., 2026)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift import (
    Client,
    Mean,
    Method,
    Net,
    Part,
    Scope,
    Step,
    keys_of_type,
    register,
    setting,
)
from fedshift.methods.f2dc.layers import DecouplingNeck, Mask
from fedshift.methods.f2dc.weights import DomainAware
from fedshift.methods.shared.stages import chosen_stages


def wrong_label(logits: Tensor, y: Tensor) -> Tensor:
    """y^ of Eq. 5 (B,): the class of the highest logit other than the label's.

    For soft labels (B, K), as mixing samples gives, the label is the largest entry.
    """
    label = y if y.dim() == 1 else y.argmax(1)  # (B,)
    others = logits.detach().scatter(1, label[:, None], -torch.inf)  # (B, K)
    return others.argmax(1)


def decoupler_loss(pooled: Tensor, logits: Tensor, y: Tensor, wrong: Tensor, tau: float) -> Tensor:
    """Eq. 5, mean over the batch: s(l+, l-)/tau + CE(m(l+), y) + CE(m(l-), y^).

    ``pooled`` (2, B, C) is l+ and l-, ``logits`` (2, B, K) is m of them; log exp is the identity.
    """
    separability = F.cosine_similarity(pooled[0], pooled[1]).mean() / tau
    return separability + F.cross_entropy(logits[0], y) + F.cross_entropy(logits[1], wrong)


def corrector_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Eq. 7, mean over the batch: CE(m(l*), y)."""
    return F.cross_entropy(logits, y)


@dataclass(frozen=True)
class DecoupleAndCorrect(Part):
    """Decoupler and corrector after the chosen stages; Eq. 9 adds their losses, mean over stages.

    L = L_CE + 1/|L| sum_j (lam1 L_DFD + lam2 L_DFC). Under ``modules=local`` A_D, A_C and m never
    leave a client, and a seen domain is scored by its clients, each with its own modules. Under
    ``modules=shared`` they are averaged like everything else, as in the released code.
    """

    objectives = frozenset({"classification"})

    sigma: float = setting(0.1, "smoothness of the mask, Eq. 3", low=1e-6)
    tau: float = setting(0.06, "temperature of the separation, Eq. 5", low=1e-6)
    lam1: float = setting(0.8, "weight of the decoupler's loss", low=0.0)
    lam2: float = setting(1.0, "weight of the corrector's loss", low=0.0)
    stages: str = setting("last", "stages with maps: last, all, or names joined by + or ,")
    modules: str = setting("local", "where A_D, A_C and m live", choices=("local", "shared"))
    scored: str = setting(
        "final",
        "map that is scored: f~, f+, f- or f*",
        choices=("final", "robust", "related", "rectified"),
    )
    width: int = setting(64, "channels inside A_D and A_C; released code: 50", low=1)
    depth: int = setting(2, "convolutions of A_D and A_C; released code: 3", choices=(2, 3))
    noise: str = setting(
        "gumbel",
        "g of Eq. 3: two Gumbel draws, or the two logistic ones that the text writes",
        choices=("gumbel", "logistic-pair"),
    )
    noise_at_test: bool = setting(False, "keep the noise at inference, as the released code")

    @property
    def scored_at_sites(self) -> bool:  # type: ignore[override]
        """Local modules exist only at the clients, so clients score with them."""
        return self.modules == "local"

    def build(self, net: Net) -> None:
        """One neck per chosen stage."""
        shapes = net.shapes()
        for stage in chosen_stages(net, self.stages, self.name, "masks"):
            neck = DecouplingNeck(
                shapes[stage][0],
                net.classes,
                mask=Mask(
                    self.sigma, draws=1 + (self.noise != "gumbel"), at_test=self.noise_at_test
                ),
                width=self.width,
                depth=self.depth,
                scored=self.scored,
            )
            net.insert(f"{self.name}-{stage}", neck, after=stage)

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """A_D, A_C and m of every neck: private or shared, by ``modules``."""
        where = Scope.PRIVATE if self.modules == "local" else Scope.SHARED
        return dict.fromkeys(keys_of_type(net, DecouplingNeck), where)

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The second term of Eq. 9."""
        wrong = wrong_label(step.out.logits, step.y)
        names = [k.rpartition("/")[0] for k in step.out.aux if k.startswith(f"{self.name}-")]
        terms = [self._stage_loss(step, name, wrong) for name in dict.fromkeys(names)]
        return torch.stack(terms).mean()

    def _stage_loss(self, step: Step, neck: str, wrong: Tensor) -> Tensor:
        """lam1 L_DFD + lam2 L_DFC of one stage."""
        pooled, logits = (step.out.aux[f"{neck}/{key}"] for key in ("pooled", "logits"))
        dfd = decoupler_loss(pooled[:2], logits[:2], step.y, wrong, self.tau)
        return self.lam1 * dfd + self.lam2 * corrector_loss(logits[2], step.y)


@register("f2dc", paper="Wang et al., 2026", group="alignment")
def f2dc() -> Method:
    """Separates robust from domain-related features, corrects these.

    A mask after the last stage splits its map into a part that is robust across domains and one
    that is tied to the domain; the latter is corrected instead of dropped, and their sum goes on.
    The server weighs clients by size and by how far their share is from that of a domain.

    Use it: one model is to be good on every training domain, sites hold some hundred images each,
    and domains may be told.
    Not for: sites of a few dozen images (modules=shared is better there), vectors instead of maps,
    and new sites.
    Equations: Eq. 3: `concrete_mask`; Eq. 4: `related_part`; Eq. 5: `decoupler_loss`,
    `wrong_label`; Eq. 6: `correction`; Eq. 7: `corrector_loss`; Eq. 9: `DecoupleAndCorrect.loss`;
    Eq. 10: `domain_discrepancy`; Eq. 11: `domain_aware_weights`.
    """
    return Method((DecoupleAndCorrect(),), Mean(DomainAware()))
