"""Nguyen et al., NeurIPS 2022."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from fedshift.base.errors import ConfigError
from fedshift.core.aggregate import Mean, Uniform
from fedshift.core.loop import Batch, Step
from fedshift.core.method import Method
from fedshift.core.net import Output
from fedshift.core.part import Scoring
from fedshift.core.registry import build
from fedshift.methods.shared.conditional_information import ConditionalInformation, gaussian_kl
from fedshift.methods.shared.feature_norm import FeatureNorm
from fedshift.methods.shared.gaussian_features import (
    GaussianNeck,
    StochasticFeatures,
    mean_log_softmax,
)
from fedshift.testing import play, start

REFERENCES = ConditionalInformation().name


def drawn(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


def test_the_divergence_is_that_of_two_gaussians():
    mu, sigma, r_mu, r_sigma = drawn(4, 5, 3).double()
    sigma, r_sigma = sigma.exp(), r_sigma.exp()
    expected = kl_divergence(Normal(mu, sigma), Normal(r_mu, r_sigma)).sum(1)
    torch.testing.assert_close(gaussian_kl(mu, sigma, r_mu, r_sigma), expected)
    assert float(gaussian_kl(mu, sigma, mu, sigma).abs().max()) < 1e-12


def test_z_is_mu_plus_sigma_times_a_draw_of_the_given_generator():
    neck = GaussianNeck(3)
    x = drawn(4, 3)
    neck.generator = torch.Generator().manual_seed(5)
    z, aux = neck(x)
    rows = (x @ neck.moments.weight.T + neck.moments.bias).detach()
    sigma = torch.log1p(rows[:, 3:].exp())
    noise = torch.randn(4, 3, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(z.detach(), rows[:, :3] + sigma * noise)
    torch.testing.assert_close(aux["sigma"].detach(), sigma)
    assert torch.equal(neck.eval()(x)[0], aux["mu"])


def test_a_prediction_is_the_mean_of_the_probabilities():
    logits = drawn(6, 4, 3).double()
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(2, keepdims=True)
    np.testing.assert_allclose(mean_log_softmax(logits).exp().numpy(), p.mean(0), rtol=1e-6)


def test_without_spread_every_draw_predicts_as_the_mean_feature():
    session = start("fedsr")
    net, part = session.server.net.eval(), StochasticFeatures()
    neck = net.extra[part.name]
    width = neck.moments.in_features
    x = drawn(5, *net.shape)
    scoring = Scoring(None, {}, lambda _: torch.Generator().manual_seed(3))
    with torch.no_grad():
        spread = part.predict(net, x, scoring)
        assert not torch.allclose(spread, net(x).logits.log_softmax(1), atol=1e-4)
        neck.moments.weight[width:], neck.moments.bias[width:] = 0.0, -80.0
        torch.testing.assert_close(part.predict(net, x, scoring), net(x).logits.log_softmax(1))


def test_with_both_weights_zero_it_is_the_mean_of_nets_with_stochastic_features(same):
    plain = Method((StochasticFeatures(),), Mean(Uniform()))
    none = build("fedsr", alpha=0.0, beta=0.0)
    same(play(start(plain), 2).server.shared, play(start(none), 2).server.shared)


def test_fedl2r_with_zero_alpha_is_the_uniform_mean(same):
    uniform = play(start("fedavg", weights="uniform"), 2)
    same(uniform.server.shared, play(start(build("fedl2r", alpha=0.0)), 2).server.shared)


def test_the_norms_gradient_is_the_direction_of_the_feature():
    z = drawn(4, 3)
    z[2] = 0.0  # a feature of zeros has no direction
    z.requires_grad_()
    step = Step(Batch(drawn(4, 2), torch.zeros(4).long()), Output(drawn(4, 2), z), "model")
    FeatureNorm(alpha=0.5).loss(None, step).backward()
    length = z.detach().norm(dim=1, keepdim=True)
    expected = torch.where(length > 0, 0.5 / 4 * z.detach() / length.clamp(min=1e-9), 0.0)
    torch.testing.assert_close(z.grad, expected)
    squared = FeatureNorm(alpha=0.5, squared=True).loss(None, step)
    assert float(squared.detach()) == pytest.approx(0.5 * float(z.detach().square().sum()) / 4)


def penalty(open_client, y, scale=1.5):
    """The term of a client whose references are known, and what it was made of."""
    client = open_client(start("fedcmi"), "dark-0")
    part = ConditionalInformation(beta=0.1)
    own = dict(part.begin(client))
    with torch.no_grad():
        own["mu"].copy_(drawn(*own["mu"].shape, seed=1))
        own["scale"].fill_(scale)
    width = own["mu"].shape[1]
    mu, sigma = drawn(3, width, seed=2), drawn(3, width, seed=3).exp()
    name = StochasticFeatures().name
    out = Output(drawn(3, 4), mu, aux={f"{name}/mu": mu, f"{name}/sigma": sigma})
    step = Step(Batch(drawn(3, 2), y), out, "model")
    r_sigma = torch.log1p(own["rho"].detach().exp())
    return (
        part.loss(client, step).detach(),
        abs(scale),
        scale * mu,
        sigma,
        own["mu"].detach(),
        r_sigma,
    )


@pytest.mark.parametrize("scale", [1.5, -0.5])
def test_the_term_is_the_divergence_from_the_reference_of_the_class(open_client, scale):
    y = torch.tensor([2, 0, 2])
    found, size, mu, sigma, r_mu, r_sigma = penalty(open_client, y, scale)
    each = kl_divergence(Normal(mu, size * sigma), Normal(r_mu[y], r_sigma[y])).sum(1)
    assert float(found) == pytest.approx(0.1 * float(each.mean()), rel=1e-5)


def test_a_mixed_label_counts_each_class_by_its_share(open_client):
    y = torch.tensor([[0.25, 0.75, 0, 0], [1.0, 0, 0, 0], [0, 0, 0.5, 0.5]])
    found, size, mu, sigma, r_mu, r_sigma = penalty(open_client, y)
    each = torch.stack(
        [
            kl_divergence(Normal(mu, size * sigma), Normal(r_mu[k], r_sigma[k])).sum(1)
            for k in range(4)
        ]
    )  # (K, B)
    assert float(found) == pytest.approx(0.1 * float((y.T * each).sum(0).mean()), rel=1e-5)


def test_references_are_trained_at_the_client_and_never_travel(replies, state_of):
    session = play(start(build("fedsr", beta=0.5)), 2)
    kept = [state_of(session, c, REFERENCES) for c in ("dark-0", "bright-0")]
    assert all(float(k["scale"]) != 1.0 and float(k["mu"].abs().max()) > 0 for k in kept)
    assert not torch.equal(kept[0]["mu"], kept[1]["mu"])
    for update in replies(session, 2):
        assert not update.payload
        assert not any("information" in key for key in update.shared)


def test_the_term_needs_features_with_a_distribution():
    with pytest.raises(ConfigError, match="conditional-information compares distributions"):
        start("fedavg + conditional-information")
