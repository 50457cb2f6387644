"""Zhang et al., AAAI 2024: the server trains prototypes on the clients' class means."""

from __future__ import annotations

import numpy as np
import torch

from fedshift.core.message import Update
from fedshift.core.registry import build
from fedshift.methods.fedtgp import TrainablePrototypes, adaptive_margin, prototype_net
from fedshift.methods.shared.prototypes import margin_scores
from fedshift.testing import play, start

NAME = TrainablePrototypes().name


def test_the_margin_is_the_largest_distance_to_a_nearest_neighbour():
    means = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0], [12.0, 5.0]])  # nearest: 5, 1, 1, 9
    assert float(adaptive_margin(means, 100.0)) == 9.0
    assert float(adaptive_margin(means, 2.5)) == 2.5
    assert float(adaptive_margin(means[:1], 100.0)) == 0.0


def test_the_margin_is_added_to_the_distance_of_the_own_class_only():
    z, p = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    found = margin_scores(z, torch.tensor([[0.0, 1.0]]), p, torch.tensor(7.0))
    assert found.tolist() == [[-5.0, -9.0]]


def test_prototypes_are_two_layers_on_an_embedding():
    net = prototype_net(3, 4)
    e, w1, b1, w2, b2 = (p.detach().numpy() for p in net.parameters())
    expected = np.maximum(e.T @ w1.T + b1, 0) @ w2.T + b2
    np.testing.assert_allclose(net(torch.eye(3)).features.detach(), expected, rtol=1e-5, atol=1e-6)


def told(rows, owners):
    payload = {f"{NAME}/means": torch.tensor(rows), f"{NAME}/owners": torch.tensor(owners)}
    return Update("dark-0", "train", 1, payload=payload)


def test_one_pass_of_the_server_is_one_step_down_the_margin_loss():
    """Two means in one batch; the gradient of the output bias is that of the distances."""
    whole = build("fedtgp", server_epochs=1)
    server, rows, owners = start(whole).server, [[0.5, 1.0, 0.0], [-1.0, 0.0, 2.0]], [0, 2]
    start_at = TrainablePrototypes(server_epochs=0)
    start_at.merge(server, [told(rows, owners)])
    before = {k: v.numpy() for k, v in server.state[NAME].items()}
    server.state[NAME] = {}
    whole.parts[0].merge(server, [told(rows, owners)])
    p, q = before["prototypes"].astype(float), np.array(rows)
    gap = q[:, None] - p  # (2, K, D)
    far = np.linalg.norm(gap, axis=2)  # (2, K)
    own = np.eye(4)[owners]
    e = np.exp(-(far + own * np.linalg.norm(q[0] - q[1])))
    slope = (own - e / e.sum(1, keepdims=True)) / 2  # of the mean cross-entropy by the distances
    pull = (slope[:, :, None] * -gap / far[:, :, None]).sum((0, 1))  # of the loss by the bias
    moved = server.state[NAME]["net/out.bias"].numpy() - before["net/out.bias"]
    np.testing.assert_allclose(moved, -server.scenario.lr * pull, rtol=1e-3, atol=1e-6)


def test_training_pushes_the_prototypes_of_two_classes_apart():
    """Two means with the distance 1 have the margin 1: prototypes end up further apart."""
    server, far = start("fedtgp", lr=0.1).server, {}
    for most in (0.0, 100.0):
        server.state[NAME] = {}
        part = TrainablePrototypes(server_epochs=100, most=most)
        part.merge(server, [told([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]], [0, 1])])
        a, b, *_ = server.state[NAME]["prototypes"]
        far[most] = float((a - b).norm())
    assert far[100.0] > max(1.0, far[0.0])


def test_the_next_round_goes_on_where_the_last_one_stopped():
    part, server = TrainablePrototypes(server_epochs=0), start("fedtgp").server
    update = told([[0.0, 0.0, 0.0]], [0])
    TrainablePrototypes(server_epochs=5).merge(server, [update])
    kept = {k: v.clone() for k, v in server.state[NAME].items()}
    part.merge(server, [update])
    assert all(torch.equal(v, kept[k]) for k, v in server.state[NAME].items())


def test_with_zero_weight_fedtgp_is_fedavg_and_round_1_always_is(same):
    plain, zero, ten = (play(start(m), 1) for m in ("fedavg", build("fedtgp", lam=0), "fedtgp"))
    same(plain.server.shared, ten.server.shared)
    play(plain, 1), play(zero, 1), play(ten, 1)
    same(plain.server.shared, zero.server.shared)
    assert any(not torch.equal(v, ten.server.shared[k]) for k, v in plain.server.shared.items())
