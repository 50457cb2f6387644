"""Guo et al., ICML 2023: matching the gradients of the head."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.loop import Batch, Step
from fedshift.core.net import load
from fedshift.methods.fediir import HeadGradientMatching, disagreement, head_gradient
from fedshift.testing import play, start

NAME = HeadGradientMatching().name


def gradient_of(z, weight, bias, shares):
    """d/dW and d/db of the mean cross-entropy of a linear head: (p - y) z^T and p - y."""
    logits = z @ weight.T + bias
    e = np.exp(logits - logits.max(1, keepdims=True))
    gap = (e / e.sum(1, keepdims=True) - shares) / len(z)
    return gap.T @ z, gap.sum(0)


def test_with_lam_0_it_is_fedavg(same):
    same(play(start("fediir[lam=0]")).server.shared, play(start("fedavg")).server.shared)


def test_round_1_is_fedavg_and_round_2_is_not(same):
    fediir, fedavg = start("fediir"), start("fedavg")
    same(play(fediir, 1).server.shared, play(fedavg, 1).server.shared)
    ours, plain = play(fediir, 1).server.shared, play(fedavg, 1).server.shared
    assert any(not torch.equal(v, plain[k]) for k, v in ours.items())


def test_the_probe_is_the_gradient_of_the_received_models_loss_by_the_head(replies):
    session = play(start("fediir", batch_size=5), 1)
    net = session.server.net
    load(net, session.server.initial)
    head = {k: v.double().numpy() for k, v in session.server.initial.items() if "head" in k}
    for update in replies(session, 1):
        train = session.federation.sites[update.client].data.train
        cuts = list(range(0, len(train), 5))
        if len(train) - cuts[-1] == 1:
            cuts.pop()  # a single row joins the batch before it
        parts = [
            train.take(torch.arange(a, b))
            for a, b in zip(cuts, [*cuts[1:], len(train)], strict=True)
        ]
        weight, bias = 0.0, 0.0
        for x, y in parts:
            z = net.train()(x).features.detach().double().numpy()  # by the batch's statistics
            found = gradient_of(z, head["head.weight"], head["head.bias"], np.eye(4)[y.numpy()])
            weight, bias = (
                total + len(x) / len(train) * g
                for total, g in zip((weight, bias), found, strict=True)
            )
        for key, wanted in (("weight", weight), ("bias", bias)):
            sent = update.payload[f"{NAME}/head.{key}"].numpy()
            np.testing.assert_allclose(sent, wanted, rtol=1e-4, atol=1e-6)


def test_the_mean_is_by_examples_and_moves_by_5_per_cent_from_0(replies):
    session = play(start("fediir"), 2)
    expected = 0.0
    for round_ in (1, 2):
        rows = replies(session, round_)
        n = np.array([u.examples for u in rows], dtype=float)
        sent = np.stack([u.payload[f"{NAME}/head.weight"].double().numpy() for u in rows])
        expected = 0.95 * expected + 0.05 * np.tensordot(n / n.sum(), sent, axes=1)
    assert np.ptp(n) > 0
    found = session.server.state[NAME]["head.weight"].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)


def test_the_penalty_and_its_gradient_by_the_features():
    """lam |g - m|^2 of a linear head, and its slope by central differences."""
    session = start("fediir")
    net = session.server.net
    weight, bias = (net.state_dict()[f"head.{k}"].double().numpy() for k in ("weight", "bias"))
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(3, weight.shape[1])), np.array([0, 2, 1])
    mean = {"head.weight": rng.normal(size=weight.shape), "head.bias": rng.normal(size=bias.shape)}

    def penalty(z):
        found = gradient_of(z, weight, bias, np.eye(4)[y])
        return sum(((g - m) ** 2).sum() for g, m in zip(found, mean.values(), strict=True))

    net.double()
    features = torch.from_numpy(z).requires_grad_()
    loss = torch.nn.functional.cross_entropy(net.head_module(features), torch.from_numpy(y))
    gradient = head_gradient(net, loss, keep_graph=True)
    found = disagreement(gradient, {k: torch.from_numpy(m) for k, m in mean.items()})
    assert float(found.detach()) == pytest.approx(penalty(z), rel=1e-9)
    (slope,) = torch.autograd.grad(found, features)
    h = 1e-6
    for i, j in ((0, 0), (1, 3), (2, 5)):
        step = np.zeros_like(z)
        step[i, j] = h
        wanted = (penalty(z + step) - penalty(z - step)) / (2 * h)
        assert float(slope[i, j]) == pytest.approx(wanted, rel=1e-4, abs=1e-7)


def test_the_term_is_lam_times_the_penalty_of_the_batch(open_client):
    session = play(start("fediir"), 1)
    session.server.round = 2
    client = open_client(session, "dark-0")
    x, y = client.site.data.train.take(torch.arange(5))
    out = client.net.train()(x)
    term = HeadGradientMatching(lam=0.3).loss(client, Step(Batch(x, y), out, "model"))
    weight, bias = (
        client.net.state_dict()[f"head.{k}"].double().numpy() for k in ("weight", "bias")
    )
    z = out.features.detach().double().numpy()
    found = gradient_of(z, weight, bias, np.eye(4)[y.numpy()])
    mean = [client.payload(HeadGradientMatching())[f"head.{k}"] for k in ("weight", "bias")]
    gaps = [((g - m.double().numpy()) ** 2).sum() for g, m in zip(found, mean, strict=True)]
    assert float(term.detach()) == pytest.approx(0.3 * sum(gaps), rel=1e-4)


def test_while_the_head_rests_there_is_no_term():
    session = play(start("fedrep[head_epochs=1] + head-gradient-matching[lam=1]", epochs=1), 2)
    assert NAME in session.record.metrics[-1]["losses"]  # in the phase of the head


@pytest.mark.usefixtures("bowls")
def test_a_backbone_without_a_head_is_refused():
    changes = {"data": "bowls", "domains": ("left", "right"), "unseen": None, "backbone": "bowl"}
    with pytest.raises(ConfigError, match="the head has no parameter"):
        start("fediir", protocols=("personal",), backbone_options={}, **changes)
