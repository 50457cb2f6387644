"""Zhang et al., AAAI 2023, Algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.core.method import Method
from fedshift.core.registry import build
from fedshift.engine.round import exchange
from fedshift.methods.fedala import LocalAggregation, aggregated, settled
from fedshift.methods.shared.layers import layers
from fedshift.methods.stablefdg.highlighter import Highlighter
from fedshift.testing import play, start, worker

NAME = LocalAggregation().name
KEYS = ("head.weight", "head.bias")
LINEAR = {"backbone": "linear", "backbone_options": {}, "batch_size": 64, "lr": 0.01}


def softmax_loss(w, b, x, y):
    """Loss of x W' + b and its gradient, in NumPy."""
    z = x @ w.T + b
    p = np.exp(z - z.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    p[np.arange(len(y)), y] -= 1
    return loss, (p.T @ x / len(y), p.mean(0))


def numpy_weights(own, theta, weights, x, y, eta, once):
    """Projected steps on the weights until the last ten losses have settled, or one."""
    losses = []
    while not losses or not (once or (len(losses) > 10 and np.std(losses[-10:]) < 0.1)):
        mixed = [o + (t - o) * w for o, t, w in zip(own, theta, weights, strict=True)]
        loss, g = softmax_loss(*mixed, x, y)
        weights = [
            (w - eta * gi * (t - o)).clip(0, 1)
            for w, gi, t, o in zip(weights, g, theta, own, strict=True)
        ]
        losses.append(loss)
    return weights


def double(entries):
    return [entries[k].numpy().astype(np.float64) for k in KEYS]


def test_the_weights_follow_algorithm_1_over_four_visits(state_of):
    """Nothing to learn from in visit 1; passes until the loss settles in visit 2, then one each."""
    session = start(build("fedala", eta=200.0, sample=1.0), rounds=4, **LINEAR)
    data = session.federation.sites["dark-0"].data.train
    x, y = (t.numpy() for t in data.take(torch.arange(len(data))))
    x, weights = x.reshape(len(x), -1).astype(np.float64), None
    play(session, 1)
    assert not any(k.startswith("weight/") for k in state_of(session, "dark-0", NAME))
    for visit in (2, 3, 4):
        theta, kept = double(session.server.shared), state_of(session, "dark-0", NAME)
        own = double({k: kept[f"own/{k}"] for k in KEYS})
        ones = [np.ones_like(t) for t in theta]
        weights = numpy_weights(own, theta, weights or ones, x, y, 200.0, visit > 2)
        play(session, 1)
        kept = state_of(session, "dark-0", NAME)
        for key, value in zip(KEYS, weights, strict=True):
            np.testing.assert_allclose(kept[f"weight/{key}"].numpy(), value, atol=5e-3)
    assert np.mean(weights[0] < 1) > 0.01  # some moved


def test_weights_that_a_step_throws_out_of_the_interval_go_on_from_its_end(open_client, state_of):
    """The client's own head is the shared one turned round: steps are long, and end at 0 or 1."""
    session = play(start(build("fedala", eta=2.0, sample=1.0), rounds=4, **LINEAR), 1)
    kept = state_of(session, "dark-0", NAME)
    client, part = open_client(session, "dark-0", {NAME: kept}), session.server.method.parts[0]
    own = {k: -5 * session.server.shared[k] for k in KEYS}
    found = part.learnt(client, own, {})
    data = client.site.data.train
    x, y = (t.numpy() for t in data.take(torch.arange(len(data))))
    theta, ones = double(session.server.shared), [np.ones_like(own[k].numpy()) for k in KEYS]
    rows = x.reshape(len(x), -1).astype(np.float64)
    expected = numpy_weights(double(own), theta, ones, rows, y, 2.0, False)
    for key, value in zip(KEYS, expected, strict=True):
        np.testing.assert_allclose(found[key].numpy(), value, atol=5e-3)
    inside = (expected[0] > 0.01) & (expected[0] < 0.99)
    assert 0 < inside.mean() < 1


def test_with_zero_eta_it_is_fedavg(same):
    fedavg, fedala = play(start("fedavg")), play(start(build("fedala", eta=0.0)))
    same(fedavg.server.shared, fedala.server.shared)


def test_training_starts_from_the_mixture_in_the_head_and_from_theta_below(open_client, state_of):
    session = play(start(build("fedala", eta=50.0)), 2)
    part = session.server.method.parts[0]
    kept = state_of(session, "dark-0", NAME)
    client = open_client(session, "dark-0", {NAME: kept})
    theta = {k: v.clone() for k, v in session.server.shared.items()}
    part.begin(client)
    new = client.state[NAME]
    for key, value in client.net.state_dict().items():
        if key in KEYS:
            expected = kept[f"own/{key}"] + (theta[key] - kept[f"own/{key}"]) * new[f"weight/{key}"]
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(value, theta[key]), key


def test_the_mixture_is_exact_at_both_ends():
    own, shared = {"k": torch.tensor([0.1, 0.3])}, {"k": torch.tensor([1e3, 1 / 3])}
    assert torch.equal(aggregated(own, shared, {"k": torch.ones(2)})["k"], shared["k"])
    assert torch.equal(aggregated(own, shared, {"k": torch.zeros(2)})["k"], own["k"])
    torch.testing.assert_close(
        aggregated(own, shared, {"k": torch.full((2,), 0.25)})["k"],
        torch.tensor([250.075, 0.25 / 3 + 0.225]),
    )


def test_losses_settle_when_the_last_ten_differ_little():
    assert not settled([1.0] * 10)
    assert settled([5.0] + [1.0] * 10)
    assert not settled([1.0] * 10 + [2.0])


def test_a_site_is_scored_with_the_mixture_of_its_own_and_the_newest_shared_model(state_of):
    session = play(start(build("fedala", eta=200.0), **LINEAR), 3)
    server = session.server
    clients = sorted(server.roster)
    for update in exchange(server, session.transport, "score", clients, session.record):
        kept = state_of(session, update.client, NAME)
        w, b = (
            kept[f"own/{k}"] + (server.shared[k] - kept[f"own/{k}"]) * kept[f"weight/{k}"]
            for k in KEYS
        )
        x, y = session.federation.sites[update.client].data.test.take(torch.arange(16))
        loss = float(F.cross_entropy(x.flatten(1) @ w.T + b, y, reduction="sum"))
        assert update.metrics["test/loss"] == pytest.approx(loss, rel=1e-4)


def test_the_top_layers_are_counted_from_the_head():
    net = worker(start("moon")).net
    for n, expected in ((1, 1), (2, 2), (0, 7)):  # cnn: three convs, three norms, the head
        keys = LocalAggregation(layers=n).keys(net)
        assert len({k.rpartition(".")[0] for k in keys}) == expected
        assert keys[-1].startswith("head.")


def test_layers_are_in_the_order_of_the_forward_pass():
    """The neck is registered after the head, and runs before it."""
    net = worker(start("moon[projector=true]")).net
    paths = list(layers(net))
    assert paths[0] == "block1.0"
    assert paths[-3:] == ["extra.projector.layers.0", "extra.projector.layers.2", "head"]
    assert {k for keys in layers(net).values() for k in keys} == net.state_dict().keys()


def test_a_neck_follows_its_stage_and_what_is_beside_the_path_comes_before_the_head():
    net = worker(start("moon")).net
    first, second, *_ = net.stages
    net.extra["beside"] = torch.nn.Linear(2, 2)
    net.insert("neck", Highlighter(net.shapes()[first][0]), after=first)
    paths = list(layers(net))
    own = [path for path in paths if path.split(".")[0] == first]
    then = paths[len(own) : len(own) + 3]
    assert paths[: len(own)] == own
    assert then == ["extra.neck.query", "extra.neck.key", f"{second}.0"]
    assert paths[-2:] == ["extra.beside", "head"]


def test_any_net_can_be_mixed_whole():
    play(start(Method((LocalAggregation(layers=0, eta=5.0),))), 3)
