"""CORAL: features with the same mean and covariance in every domain (Sun and Saenko, 2016)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedshift import Client, Method, Part, Step, register, setting
from fedshift.methods.shared.by_domain import pair_mean, rows_by_domain


def moment_gap(a: Tensor, b: Tensor) -> Tensor:
    """|mean_a - mean_b|^2 / D + |Cov_a - Cov_b|_F^2 / D^2, of features (n, D) and (m, D)."""
    means = (a.mean(0) - b.mean(0)).square().mean()
    return means + (covariance(a) - covariance(b)).square().mean()


def covariance(z: Tensor) -> Tensor:
    """The unbiased covariance (D, D) of at least two rows (n, D)."""
    z = z - z.mean(0)
    return z.T @ z / (len(z) - 1)


@dataclass(frozen=True)
class Coral(Part):
    """lam * mean over pairs of domains of the gap of their features' first two moments.

    Domains with a single sample in the batch have no covariance and are left out. Nothing is sent.
    """

    lam: float = setting(1.0, "weight of the gap", low=0.0)
    needs = frozenset({"sample_domains"})

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The penalty; none for a batch of one domain."""
        held = [step.out.features[rows] for rows in rows_by_domain(step.batch, least=2)]
        return self.lam * pair_mean(held, moment_gap) if self.lam and len(held) > 1 else None


@register("coral", paper="Sun and Saenko, ECCV workshops 2016", group="alignment")
def coral() -> Method:
    """Features of equal mean and covariance in a client's domains.

    What tells the domains apart in the first two moments of the features is penalised, pair by
    pair.

    Use it: when clients hold several domains and batches have a few samples of each.
    Not for: clients of one domain, for which it is FedAvg; domains with different classes.
    Equations: the distance of covariances: `covariance`, `moment_gap`; the penalty: `Coral`.
    """
    return Method((Coral(),))
