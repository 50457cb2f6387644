"""MMD: features of the same distribution in every domain (Li et al., CVPR 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import Client, Method, Part, Step, register, setting
from fedshift.methods.shared.by_domain import pair_mean, rows_by_domain
from fedshift.methods.shared.mmd import biased_mmd, gaussian_kernels, squared_distances

RATES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)  # g of exp(-g |a - b|^2)


def kernel_gap(a: Tensor, b: Tensor) -> Tensor:
    """MMD^2 of features (n, D) and (m, D) under the sum of the kernels exp(-g |.|^2)."""
    widths = 1 / torch.tensor(RATES, dtype=a.dtype, device=a.device)[:, None, None]
    kernel = gaussian_kernels(squared_distances(torch.cat([a, b])), widths).sum(0)
    return biased_mmd(kernel, len(a))


@dataclass(frozen=True)
class Mmd(Part):
    """lam * mean over pairs of domains of MMD^2 of their features; nothing is sent."""

    lam: float = setting(1.0, "weight of the discrepancy", low=0.0)
    needs = frozenset({"sample_domains"})

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The penalty; none for a batch of one domain."""
        held = [step.out.features[rows] for rows in rows_by_domain(step.batch)]
        return self.lam * pair_mean(held, kernel_gap) if self.lam and len(held) > 1 else None


@register("mmd", paper="Li et al., CVPR 2018", group="alignment")
def mmd() -> Method:
    """FedAvg with features of one distribution in a client's domains.

    The maximum mean discrepancy of the features is penalised for each pair of domains, with
    kernels from very wide to very narrow.

    Use it: when clients hold several domains with the same classes.
    Not for: clients of one domain, for which it is FedAvg; domains with different classes.
    Equations: the penalty: `Mmd`, `kernel_gap`; MMD: `biased_mmd`.
    """
    return Method((Mmd(),))
