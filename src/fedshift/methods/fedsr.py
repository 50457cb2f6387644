"""FedSR, FedL2R and FedCMI: simple features that ignore the domain (Nguyen et al., NeurIPS 2022).

A client sees one domain and cannot compare it with others. It can still keep its features simple:
short ones (L2R), and Gaussian ones that say no more of the input than its class does (CMI). FedSR
has both terms, FedL2R and FedCMI one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import (
    Client,
    ConfigError,
    Mean,
    Method,
    ModelSpec,
    Neck,
    Net,
    Part,
    Scoring,
    Step,
    Tree,
    Uniform,
    register,
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


@dataclass(frozen=True)
class FeatureNorm(Part):
    """alpha * mean |z|_2: an upper bound of the entropy of the features; nothing is sent."""

    alpha: float = setting(0.01, "weight of the features' length", low=0.0)
    squared: bool = setting(False, "squared length, as the paper prints it")

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """L2R of the batch's features (B, D)."""
        if not self.alpha:
            return None
        z = step.out.features
        lengths = z.square().sum(1) if self.squared else z.norm(dim=1)
        return self.alpha * lengths.mean()


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
        client.state[self.name] = {k: v.detach() for k, v in client.state[self.name].items()}
        return {}


@register("fedsr", paper="Nguyen et al., NeurIPS 2022", group="alignment")
def fedsr() -> Method:
    """Short Gaussian features that say no more than the class.

    Features are drawn from a Gaussian whose moments the net predicts. One term shortens them, the
    other pulls each class's features to one Gaussian, so that little of the domain is left in them.

    Use it: for an unseen domain when every client has one domain, and nothing may be exchanged.
    Not for: regression, or models that have to predict in a single pass.
    Equations: L2R: `FeatureNorm`; CMI: `ConditionalInformation`, `gaussian_kl`; z: `GaussianNeck`.
    """
    return Method((StochasticFeatures(), FeatureNorm(), ConditionalInformation()), Mean(Uniform()))


@register("fedl2r", paper="Nguyen et al., NeurIPS 2022", group="alignment")
def fedl2r() -> Method:
    """FedAvg with short features.

    The length of the features is penalised, which bounds how much they can say about the domain.
    It is FedSR without the distribution of features.

    Use it: as the cheap half of FedSR, with any backbone and any kind of target.
    Not for: nets whose features are normalised before the head, where length means nothing.
    Equations: L2R: `FeatureNorm`.
    """
    return Method((FeatureNorm(),), Mean(Uniform()))


@register("fedcmi", paper="Nguyen et al., NeurIPS 2022", group="alignment")
def fedcmi() -> Method:
    """Gaussian features that say no more than the class.

    Features are drawn from a Gaussian, and those of each class are pulled to one Gaussian of the
    client's own. It is FedSR without the penalty on their length.

    Use it: to see which half of FedSR helps.
    Not for: regression, or models that have to predict in a single pass.
    Equations: CMI: `ConditionalInformation`, `gaussian_kl`; z: `GaussianNeck`.
    """
    return Method((StochasticFeatures(), ConditionalInformation()), Mean(Uniform()))
