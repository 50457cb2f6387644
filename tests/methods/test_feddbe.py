"""Zhang et al., NeurIPS 2023."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core.loop import Batch, Step
from fedshift.core.method import Method
from fedshift.core.net import Output
from fedshift.core.registry import build
from fedshift.methods.feddbe import AddedBias, MeanConsensus, PersonalBias, mean_regularisation
from fedshift.testing import play, start

NAME, BIAS = MeanConsensus().name, "extra.personal-bias.bias"
LINEAR = {"backbone": "linear", "backbone_options": {}}


def test_without_bias_and_with_zero_kappa_it_is_fedavg(same):
    session = play(start("feddbe[kappa=0] - personal-bias"))
    same(play(start("fedavg")).server.shared, session.server.shared)


def test_a_bias_of_zero_changes_nothing_and_its_gradient_is_that_of_the_mean_feature(
    replies, state_of
):
    """One full-batch step: b <- -lr * mean(W'(p - y)); all else moves as in FedAvg, bit for bit."""
    plan = {"steps": 1, "batch_size": 64}
    plain, session = play(start("fedavg", **plan), 1), start(build("feddbe", kappa=0.0), **plan)
    net, initial = session.server.net, session.server.initial
    play(session, 1)
    for a, b in zip(replies(plain, 1), replies(session, 1), strict=True):
        assert all(torch.equal(b.shared[k], a.shared[k]) for k in a.shared)
    net.load_state_dict(initial)
    data = session.federation.sites["dark-0"].data.train
    x, y = data.take(torch.arange(len(data)))
    with torch.no_grad():
        p = net.train()(x).logits.softmax(1).numpy()
    p[np.arange(len(y)), y.numpy()] -= 1
    expected = -0.05 * p.mean(0) @ initial["head.weight"].numpy()
    kept = state_of(session, "dark-0", "net")
    np.testing.assert_allclose(kept[BIAS].numpy(), expected, rtol=1e-4, atol=1e-7)


def test_the_bias_stays_at_its_site(state_of):
    session = play(start("feddbe"), 2)
    for message in session.transport.seen:
        assert BIAS not in message.shared | message.personal
    a, b = (state_of(session, c, "net")[BIAS] for c in ("dark-0", "bright-0"))
    assert not torch.equal(a, b)


def test_the_consensus_is_the_mean_over_all_samples_and_never_changes():
    """On a linear net the features are the inputs, whatever one epoch has done to the head."""
    session = start(Method((MeanConsensus(),)), **LINEAR)
    play(session, 1)
    rows = [
        s.data.train.take(torch.arange(len(s.data.train)))[0].flatten(1).numpy()
        for s in session.federation.sites.values()
    ]
    mean = np.concatenate(rows).astype(np.float64).mean(0)
    first = session.server.state[NAME]["mean"].clone()
    np.testing.assert_allclose(first.numpy(), mean, rtol=1e-4, atol=1e-5)
    play(session, 2)
    assert torch.equal(session.server.state[NAME]["mean"], first)


def test_a_site_sends_the_mean_feature_of_a_model_after_one_epoch(open_client):
    """One epoch of one full batch is one step of SGD; the net itself stays as it was."""
    session = start("feddbe", batch_size=64)
    client = open_client(session, "dark-0")
    part, net = session.server.method.parts[1], client.net
    sent = part.enrol(client)["mean"]
    before = session.server.initial
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    x, y = client.site.data.train.take(torch.arange(client.examples))
    loss = torch.nn.functional.cross_entropy(net.train()(x).logits, y)
    body = {k: p for k, p in net.named_parameters() if k != BIAS}  # which stays at zero
    for p, gradient in zip(
        body.values(), torch.autograd.grad(loss, list(body.values())), strict=True
    ):
        p.data -= 0.05 * gradient
    with torch.no_grad():
        expected = net.eval()(x).features.mean(0)
    torch.testing.assert_close(sent, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("momentum", "halved"), [(1.0, False), (0.25, False), (0.25, True)])
def test_the_penalty_follows_the_running_mean(open_client, momentum, halved):
    """Three batches, the second seen twice, against NumPy; the gradient has the factor momentum."""
    part = MeanConsensus(kappa=3.0, momentum=momentum, halved=halved)
    session = start(Method((part,)), **LINEAR)
    client = open_client(session, "dark-0")
    c = client.payload(part)["mean"].numpy().astype(np.float64)
    rng, means = np.random.default_rng(0), []  # of the batches before
    for index, z in zip((0, 1, 1, 2), rng.normal(size=(4, 5, len(c))), strict=True):
        before = means[index - 1] if index else z.mean(0)
        zt = torch.tensor(z, dtype=torch.float32, requires_grad=True)
        step = Step(Batch(zt, torch.zeros(5).long(), index), Output(zt, zt), "model")
        term = part.loss(client, step)
        m = (1 - momentum) * before + momentum * z.mean(0)
        means[index:] = [m]
        factor = 3.0 * (0.5 if halved else 1.0)
        assert float(term.detach()) == pytest.approx(factor * ((m - c) ** 2).mean(), rel=1e-4)
        term.backward()
        slope = factor * 2 * (m - c) / len(c) * momentum / 5
        np.testing.assert_allclose(zt.grad.numpy(), np.tile(slope, (5, 1)), rtol=1e-3, atol=1e-6)


def test_the_penalty_is_on_the_features_before_the_bias(open_client):
    session = start("feddbe")
    client = open_client(session, "dark-0")
    part = session.server.method.parts[1]
    z, other = torch.randn(4, 16), torch.zeros(4, 16)
    assert len(client.payload(part)["mean"]) == 16
    out = Output(other, other, aux={f"{PersonalBias().name}/before": z})
    term = part.loss(client, Step(Batch(z, torch.zeros(4).long()), out, "model"))
    expected = 50.0 * mean_regularisation(z.mean(0), client.payload(part)["mean"])
    torch.testing.assert_close(term, expected)


def test_the_neck_adds_the_bias_and_gives_the_features_before_it():
    neck = AddedBias(3)
    neck.bias.data = torch.tensor([1.0, -2.0, 0.5])
    z = torch.arange(6.0).view(2, 3, 1, 1)
    after, seen = neck(z)
    torch.testing.assert_close(after, torch.tensor([[1.0, -1.0, 2.5], [4.0, 2.0, 5.5]]))
    assert torch.equal(seen["before"], z.flatten(1))
