"""CMI: Gaussian features that say no more of the input than its class does (FedSR, FedCMI)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import (
    Client,
    ConfigError,
    ModelSpec,
    Part,
    Step,
    Tree,
    setting,
)
from fedshift.methods.shared.branch import closed
from fedshift.methods.shared.gaussian_features import TINY, GaussianNeck, StochasticFeatures


def gaussian_kl(mu: Tensor, sigma: Tensor, r_mu: Tensor, r_sigma: Tensor) -> Tensor:
    """KL(N(mu, sigma^2) || N(r_mu, r_sigma^2)), summed over the last of the broadcast dimensions.

    sum_j log r_sigma - log sigma + (sigma^2 + (mu - r_mu)^2) / (2 r_sigma^2) - 1/2.
    """
    spread = (sigma.square() + (mu - r_mu).square()) / (2 * r_sigma.square())
    return (r_sigma.log() - sigma.log() + spread - 0.5).sum(-1)


@dataclass(frozen=True)
class ConditionalInformation(Part):
    """beta * mean KL(N(C mu, C^2 sigma^2) || r(z | y)), a bound of I(x; z | y).

    r(z | y) is a Gaussian per class, r_mu (K, D) and r_sigma = softplus (K, D), and C a scalar; all
    are trained at the client and stay in its state: they never travel. A mixed label counts each
    class by its share.
    """

    beta: float = setting(1e-3, "weight of the conditional information", low=0.0)
    objectives = frozenset({"classification"})

    def check(self, model: ModelSpec) -> None:
        """Raise if the features have no distribution."""
        if StochasticFeatures().name not in model.net.extra:
            raise ConfigError(
                f"{self.name} compares distributions of features, and this net has plain ones; "
                f"add {StochasticFeatures().name} before it"
            )

    def begin(self, client: Client) -> Iterable[tuple[str, nn.Parameter]]:
        """The references, which every base player trains; r_mu = 0 and C = 1 at the first visit."""
        neck = client.net.extra[StochasticFeatures().name]
        assert isinstance(neck, GaussianNeck)
        width = neck.moments.in_features
        start = {
            "mu": torch.zeros(client.classes, width),
            "rho": torch.ones(client.classes, width),
            "scale": torch.ones(()),
        }
        kept = client.state[self.name] or start
        device = next(client.net.parameters()).device
        own = {k: nn.Parameter(v.detach().to(device, copy=True)) for k, v in kept.items()}
        client.state[self.name] = dict(own)
        return own.items()

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """CMI of the batch."""
        if not self.beta:
            return None
        own, part = client.state[self.name], StochasticFeatures().name
        mu, sigma = (step.out.aux[f"{part}/{key}"] for key in ("mu", "sigma"))  # (B, D) each
        mu, sigma = own["scale"] * mu, (own["scale"].abs() * sigma).clamp(min=TINY)
        r_mu, r_sigma = own["mu"], F.softplus(own["rho"])  # (K, D) each
        if step.y.is_floating_point():
            each = gaussian_kl(mu[:, None], sigma[:, None], r_mu, r_sigma)  # (B, K)
            return self.beta * (step.y * each).sum(1).mean()
        return self.beta * gaussian_kl(mu, sigma, r_mu[step.y], r_sigma[step.y]).mean()

    def finish(self, client: Client) -> Tree:
        """Keep the references as plain tensors; nothing is sent."""
        client.state[self.name] = closed(client.state[self.name])
        return {}
