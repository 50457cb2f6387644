"""Features drawn from a Gaussian whose moments the net predicts: the ground of FedSR and FedCMI.

In training the head reads one draw, in a prediction several, whose probabilities are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import (
    Client,
    Neck,
    Net,
    Part,
    Scoring,
    Tree,
    setting,
)

TINY = 1e-12  # least standard deviation: its logarithm stays finite


class GaussianNeck(Neck):
    """Features (B, D) to mu and sigma = softplus(rho), (B, D) each; z ~ N(mu, sigma^2) in training.

    In eval mode z is mu. ``generator`` is set while a client trains; nothing else is remembered.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.moments = nn.Linear(width, 2 * width)
        self.generator: torch.Generator | None = None

    def forward(self, maps: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The reparametrised draw mu + sigma e."""
        mu, rho = self.moments(maps.flatten(1)).chunk(2, dim=1)  # (B, D) each
        sigma = F.softplus(rho).clamp(min=TINY)
        z = mu
        if self.training:
            z = mu + sigma * torch.randn(mu.shape, generator=self.generator).to(mu)
        return z, {"mu": mu, "sigma": sigma}


@dataclass(frozen=True)
class StochasticFeatures(Part):
    """The head reads z ~ N(mu(x), sigma(x)^2); a prediction is the mean softmax over ``draws``.

    One linear layer after the last stage gives both moments; it is shared as the rest of the net.
    """

    draws: int = setting(20, "samples of z in a prediction", low=1)
    objectives = frozenset({"classification"})

    def build(self, net: Net) -> None:
        """Insert the layer after the last stage."""
        width = net.shapes()["features"][0]
        net.insert(self.name, GaussianNeck(width), after=list(net.stages)[-1])

    def begin(self, client: Client) -> None:
        """Let z be drawn from this part's own generator."""
        neck = client.net.extra[self.name]
        assert isinstance(neck, GaussianNeck)
        neck.generator = client.generator(self.name)

    def finish(self, client: Client) -> Tree:
        """Forget the generator; nothing is sent."""
        neck = client.net.extra[self.name]
        assert isinstance(neck, GaussianNeck)
        neck.generator = None
        return {}

    def predict(self, net: Net, x: Tensor, scoring: Scoring) -> Tensor:
        """Logarithm of the mean probabilities (B, K)."""
        aux, generator = net(x).aux, scoring.generator(self.name)
        mu, sigma = (aux[f"{self.name}/{key}"] for key in ("mu", "sigma"))  # (B, D) each
        noise = torch.randn((self.draws, *mu.shape), generator=generator).to(mu)  # (S, B, D)
        return mean_log_softmax(net.head_module(mu + sigma * noise))


def mean_log_softmax(logits: Tensor) -> Tensor:
    """Log of the mean over S of softmax(logits), (B, K) from (S, B, K)."""
    return logits.log_softmax(-1).logsumexp(0) - torch.tensor(float(len(logits))).log()
