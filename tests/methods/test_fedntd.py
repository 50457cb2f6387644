"""Lee et al., NeurIPS 2022."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.loop import Batch, Step
from fedshift.core.method import Method
from fedshift.core.net import load
from fedshift.methods.fedntd import NotTrueDistillation, not_true_distillation
from fedshift.testing import play, start

LOCAL = torch.tensor([[0.3, 2.0, -1.0, 0.7], [1.5, -0.2, 0.4, 0.1]], dtype=torch.float64)
KNOWN = torch.tensor([[1.0, 0.5, 0.2, -0.7], [0.0, 0.3, 2.0, 1.1]], dtype=torch.float64)
Y = torch.tensor([1, 0])


def by_hand(local, known, y, tau):
    """tau^2 times the mean over samples of sum_c q log(q / p), c other than y."""
    total = 0.0
    for a, b, own in zip(local.numpy(), known.numpy(), y.tolist(), strict=True):
        p, q = (np.exp(np.delete(v, own) / tau) for v in (a, b))
        p, q = p / p.sum(), q / q.sum()
        total += (q * np.log(q / p)).sum()
    return tau**2 * total / len(y)


def test_with_zero_beta_fedntd_is_fedavg(same):
    plain, none = play(start("fedavg"), 2), play(start(Method((NotTrueDistillation(0.0),))), 2)
    same(plain.server.shared, none.server.shared)


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_the_term_is_the_divergence_of_the_not_true_softmax(tau):
    found = float(not_true_distillation(LOCAL, KNOWN, Y, tau))
    assert found == pytest.approx(by_hand(LOCAL, KNOWN, Y, tau), rel=1e-6)
    assert found > 0.01


def test_the_true_class_gets_no_gradient_and_has_no_say():
    local = LOCAL.clone().requires_grad_()
    not_true_distillation(local, KNOWN, Y, 1.0).backward()
    assert local.grad[[0, 1], Y].tolist() == [0.0, 0.0]
    other = KNOWN + 9.0 * torch.nn.functional.one_hot(Y, 4)
    assert float(not_true_distillation(LOCAL, other, Y, 1.0)) == pytest.approx(
        by_hand(LOCAL, KNOWN, Y, 1.0), rel=1e-6
    )


def test_at_the_received_model_there_is_nothing_to_distil():
    local = KNOWN.clone().requires_grad_()
    found = not_true_distillation(local, KNOWN, Y, 2.0)
    found.backward()
    assert float(found.detach()) == pytest.approx(0.0, abs=1e-12)
    assert float(local.grad.abs().max()) == pytest.approx(0.0, abs=1e-12)


def test_the_reference_is_the_received_model_in_eval_mode(open_client):
    client = open_client(start("fedntd"), "dark-0")
    net = client.net
    load(net, changed(client))
    x, y = client.site.data.train.take(torch.arange(4))
    batch = Batch(x, y)
    net.eval()
    found = NotTrueDistillation(0.7, 2.0).loss(client, Step(batch, net(x), "model"))
    local = net(x).logits.detach().double()
    load(net, client.received)
    known = net.eval()(x).logits.detach().double()
    assert float(found.detach()) == pytest.approx(0.7 * by_hand(local, known, y, 2.0), rel=1e-3)


def changed(client):
    """The received entries, floats three times as large."""
    return {k: v * 3 if v.is_floating_point() else v for k, v in client.received.items()}


def test_of_a_mixed_target_the_largest_class_is_the_true_one(open_client):
    client = open_client(start("fedntd"), "dark-0")
    load(client.net, changed(client))
    x, y = client.site.data.train.take(torch.arange(4))
    soft = 0.7 * torch.nn.functional.one_hot(y, 4).float() + 0.3 * torch.eye(4)[(y + 1) % 4]
    part, out = NotTrueDistillation(), client.net.eval()(x)
    hard = part.loss(client, Step(Batch(x, y), out, "model"))
    assert torch.equal(part.loss(client, Step(Batch(x, soft), out, "model")), hard)
    assert float(hard.detach()) > 0


def test_two_classes_are_refused_before_round_1(bowls):
    with pytest.raises(ConfigError, match=r"not-true-distillation compares .* has 2 classes"):
        bowls.start(NotTrueDistillation())
