"""Yoon et al., ICLR 2021, Eq. 4, on logistic regression, where all is in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.loop import Batch, Step
from fedshift.core.part import Part
from fedshift.core.registry import build
from fedshift.methods.fedmix import TaylorMixing
from fedshift.testing import play, start

LINEAR = {"backbone": "linear", "backbone_options": {}}


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def cross_entropy(logits, y):
    return -(y * np.log(softmax(logits))).sum(1).mean()


def equation_4(w, b, x, y, mean, label, lam):
    """The loss of f(u) = W u + b: dl/du of one sample is W' (softmax - y)."""
    u = (1 - lam) * x
    logits = u @ w.T + b
    slope = (softmax(logits) - y) @ w
    other = cross_entropy(logits, np.broadcast_to(label, y.shape))
    return (1 - lam) * cross_entropy(logits, y) + lam * other + lam * (slope @ mean).mean()


def mixup(w, b, x, y, mean, label, lam):
    mixed, target = (1 - lam) * x + lam * mean, (1 - lam) * y + lam * label
    return cross_entropy(mixed @ w.T + b, target)


@pytest.fixture
def case(open_client):
    """A client with a linear net, a batch, and the numbers of Eq. 4 in double precision."""
    client = open_client(start("fedmix", **LINEAR), "dark-0")
    x, y = client.site.data.train.take(torch.arange(6))

    def at(lam):
        part = TaylorMixing(lam=lam)
        batch = part.batch(client, Batch(x, y))
        loss = part.task_loss(client, Step(batch, client.net(batch.x), "model"))
        return loss, client.scratch[part.name]["mean"]

    head = client.net.head_module
    numbers = [t.detach().double().numpy() for t in (head.weight, head.bias, x.flatten(1))]
    return client, at, [*numbers, np.eye(4)[y.numpy()]]


@pytest.mark.parametrize("lam", [0.05, 0.3, 1.0])
def test_the_loss_is_equation_4(case, lam):
    _, at, numbers = case
    loss, (mean, label) = at(lam)
    expected = equation_4(*numbers, mean.flatten().double().numpy(), label.double().numpy(), lam)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)


def test_its_gradient_differentiates_the_slope_too(case):
    client, at, numbers = case
    loss, (mean, label) = at(0.3)
    loss.backward()
    found = client.net.head_module.weight.grad
    w, rest = numbers[0], (*numbers[1:], mean.flatten().double().numpy(), label.double().numpy())
    for i, j in ((0, 3), (2, 100), (3, 191)):
        step = np.zeros_like(w)
        step[i, j] = 1e-5
        slope = (equation_4(w + step, *rest, 0.3) - equation_4(w - step, *rest, 0.3)) / 2e-5
        assert float(found[i, j]) == pytest.approx(slope, rel=1e-3, abs=1e-5)


def test_it_is_mixup_up_to_second_order(case):
    """Halving lam divides the difference by four."""
    _, at, numbers = case
    _, (mean, label) = at(0.1)
    known = (*numbers, mean.flatten().double().numpy(), label.double().numpy())
    gaps = [mixup(*known, lam) - equation_4(*known, lam) for lam in (0.004, 0.002)]
    assert gaps[0] / gaps[1] == pytest.approx(4.0, rel=0.1)


def test_with_zero_share_it_is_fedavg(same):
    plain, found = play(start("fedavg"), 2), play(start(build("fedmix", lam=0.0)), 2)
    same(plain.server.shared, found.server.shared)


class Hiding(Part):
    """Another part that gives the net inputs without a way back to u."""

    def batch(self, client, batch):
        return batch.replace(x=batch.x.detach())


def test_a_part_that_hides_the_inputs_is_an_error_that_says_what_to_do():
    with pytest.raises(ConfigError, match="name taylor-mixing last"):
        play(start(build("fedmix").plus(Hiding())), 1)


def test_parts_that_mix_the_inputs_may_follow():
    play(start("fedmix + mixup", steps=1), 1)
