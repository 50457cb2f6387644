"""FedKA: align the clients' features with an unlabelled target (Sun et al., ACML 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import Client, Method, Net, Part, Step, Tree, call_frozen, register, setting
from fedshift.backbones.fedka import domain_classifier
from fedshift.methods.fedka.aligned import Aligned
from fedshift.methods.fedka.equations import domain_loss
from fedshift.methods.fedka.voting import FederatedVoting
from fedshift.methods.shared.budget import visit_batches
from fedshift.methods.shared.mmd import mk_mmd
from fedshift.methods.shared.reversal import reverse


@dataclass(frozen=True)
class GlobalDisentangler(Aligned, Part):
    """J_dis (Eq. 2): f_d separates source from target, f_e^k learns to prevent it (Eqs. 3, 4, 8).

    f_d is shared and averaged like the model, and trains at full weight; lambda_p scales only the
    reversed gradient. With the target at the server f_e^G(X_T) is fixed, so the reversed gradient
    reaches f_e^k through source samples alone. With the target at the clients its inputs pass
    through f_e^k, reversed as well: DANN, as in the released code.
    """

    def build(self, net: Net) -> None:
        """Add f_d, two layers on the features."""
        net.extra[self.name] = domain_classifier(net.shapes()["features"][0])

    def loss(self, client: Client, step: Step) -> Tensor:
        """Eq. 2 on the batch and an equal number of target samples."""
        lam, source = self.lam(client, step), step.out.features  # (B, D)
        if self.target_at == "server":
            target = self.sent_features(client, len(source), step.batch.index)
        else:
            inputs = self.target_inputs(client, len(source))
            target = reverse(client.net(inputs).features, lam)
        f_d = client.net.extra[self.name]
        return domain_loss(f_d(reverse(source, lam)), f_d(target))


@dataclass(frozen=True)
class EmbeddingMatching(Aligned, Part):
    """lambda_p J_mmd (Eqs. 5 to 8): MK-MMD between f_e^k(X_S) and the fixed f_e^G(X_T).

    The paper matches 128 features "with the same samples" as the batches of 16. So the inputs of
    successive batches are collected until there are ``matched`` of them, encoded together, and the
    term is added to that batch's loss (the remainder to the last batch's): four times in 32 batches
    of 16. ``matched=1`` matches each batch on its own, which is Eq. 8 literally. The collected
    inputs are dropped at the end of the visit.
    """

    kernels: int = setting(5, "Gaussian kernels", low=1)
    factor: float = setting(2.0, "ratio of neighbouring bandwidths", low=1.0)
    matched: int = setting(128, "source samples per MMD, gathered over batches", low=1)
    kernel_sum: bool = setting(False, "sum of the kernels as in the released code, not their mean")
    last_batch_only: bool = setting(
        False, "of the batches gathered use the last, by their number (released '=+')"
    )

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """Eq. 6 times lambda_p, once enough samples are collected; else nothing."""
        held = client.scratch[self.name]
        held[str(step.batch.index)] = step.batch.x
        enough = sum(map(len, held.values())) >= self.matched
        if not enough and step.batch.index + 1 < visit_batches(client):
            return None
        client.scratch[self.name] = {}
        lam = self.lam(client, step)
        return self._term(client, step, held, lam) if lam else None

    def _term(self, client: Client, step: Step, held: Tree, lam: float) -> Tensor:
        source, first = step.out.features, step.batch.index  # (B, D)
        if self.last_batch_only:
            lam = lam / len(held)
        elif len(held) > 1:
            source, first = (
                client.net(torch.cat(list(held.values()))).features,
                int(next(iter(held))),
            )
        target = self._target(client, len(source), first)
        found = mk_mmd(source, target, kernels=self.kernels, factor=self.factor)
        return lam * found * (self.kernels if self.kernel_sum else 1)

    def _target(self, client: Client, n: int, first_batch: int) -> Tensor:
        """f_e^G(X_T) (n, D): as sent, or the received encoder on target inputs at the client."""
        if self.target_at == "server":
            return self.sent_features(client, n, first_batch)
        return call_frozen(client.net, client.received, self.target_inputs(client, n)).features


@register("fedka", paper="Sun et al., ACML 2022", group="alignment")
def fedka(target_at: str = "server", target_samples: int = 512, gamma: float = 5.0) -> Method:
    """Alignment with an unlabelled target, and voting on its labels.

    Features of the clients are drawn to those of an unlabelled target by an adversary and by kernel
    means, and the clients' models vote on the target's labels, on which the server fine-tunes the
    mean.

    Use it: one target domain is known beforehand, the server has its inputs, and no labels of it
    exist.
    Not for: targets that are not known before training, weak local models (votes go wrong), and
    secure aggregation.
    Equations: Sec. 3.2.4: `coefficient`, `progress`; Eq. 2: `domain_loss`; Eqs. 3, 4 and 8:
    `reverse`; Eqs. 5 and 6: `mk_mmd`; Eq. 7: `EmbeddingMatching.loss`; Eq. 10: `majority`; Sec.
    3.2.5: `FederatedVoting.refine`.
    """
    aligned = (target_at, target_samples, gamma)
    voting = FederatedVoting(gamma=gamma)
    return Method((GlobalDisentangler(*aligned), EmbeddingMatching(*aligned), voting))
