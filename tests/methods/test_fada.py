"""Peng et al., ICLR 2020: split features, adversary, attention by clusters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core.aggregate import Mean, Uniform
from fedshift.core.loop import Batch, Step
from fedshift.core.message import Update
from fedshift.core.method import Method
from fedshift.core.registry import build
from fedshift.methods.fada.attention import GapAttention, dispersion, k_means
from fedshift.methods.fada.split import FeatureSplit, confusion, mutual_information
from fedshift.methods.fedka.method import GlobalDisentangler
from fedshift.testing import play, start

NAME = FeatureSplit().name


def test_confusion_is_least_where_all_classes_are_equally_likely():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 4))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert float(confusion(torch.from_numpy(logits))) == pytest.approx(-np.log(p).mean(), rel=1e-9)
    flat = torch.zeros(5, 4, dtype=torch.float64, requires_grad=True)
    least = confusion(flat)
    least.backward()
    assert float(least.detach()) == pytest.approx(np.log(4))
    np.testing.assert_allclose(flat.grad.numpy(), 0, atol=1e-15)


def test_the_estimate_of_mutual_information_is_that_of_mine():
    rng = np.random.default_rng(0)
    joint, apart = rng.normal(size=(2, 7))
    found = mutual_information(*map(torch.from_numpy, (joint, apart)))
    assert float(found) == pytest.approx(joint.mean() - np.log(np.exp(apart).mean()), rel=1e-9)


def test_dispersion_is_the_pairwise_sum_of_gap_statistics():
    rng = np.random.default_rng(0)
    z, labels = rng.normal(size=(12, 3)), np.arange(12) % 3

    def pairs(points):
        return ((points[:, None] - points[None]) ** 2).sum() / (2 * len(points))

    wanted = sum(pairs(z[labels == r]) for r in range(3)) / pairs(z)
    found = dispersion(torch.from_numpy(z), torch.from_numpy(labels))
    assert float(found) == pytest.approx(wanted, rel=1e-9)
    assert float(dispersion(torch.from_numpy(z), torch.zeros(12, dtype=torch.int64))) == 1.0


def test_k_means_finds_blobs_whatever_the_scale():
    rng = np.random.default_rng(0)
    blobs = np.repeat(np.array([[0.0, 0], [9, 0], [0, 9]]), 10, axis=0)
    z = torch.from_numpy(blobs + rng.normal(size=(30, 2)))
    labels = k_means(z, torch.tensor([0, 10, 20]))
    assert labels.tolist() == [0] * 10 + [1] * 10 + [2] * 10
    assert torch.equal(labels, k_means(100 * z, torch.tensor([0, 10, 20])))
    torch.testing.assert_close(dispersion(100 * z, labels), dispersion(z, labels))


def test_sources_that_cluster_the_target_better_weigh_more(monkeypatch):
    """Softmax of (before - after) / tau, against NumPy."""
    server = start("fada").server
    server.round = 1
    told = iter([0.5, 0.4, 0.7, 0.5])
    monkeypatch.setattr(
        "fedshift.methods.fada.attention.dispersion", lambda *_: torch.tensor(next(told)).double()
    )
    updates = [Update(c, "train", 1) for c in ("bright-0", "bright-1", "dark-0")]
    found = GapAttention(tau=0.1)(server, updates).numpy()
    e = np.exp(np.array([0.1, -0.2, 0.0]) / 0.1)
    np.testing.assert_allclose(found, e / e.sum(), rtol=1e-6)


def test_equal_models_weigh_the_same():
    server = start("fada").server
    server.round = 1
    updates = [Update(c, "train", 1, shared=server.shared) for c in ("bright-0", "dark-0")]
    np.testing.assert_allclose(GapAttention(tau=1e-3)(server, updates).numpy(), [0.5, 0.5])


@pytest.fixture
def visited(open_client):
    session = start("fada")
    session.server.round = 1
    client = open_client(session, "dark-0")
    client.net.train()
    x, y = client.site.data.train.take(torch.arange(6))
    return client, Batch(x, y)


def gradients(net, term):
    net.zero_grad()
    term.backward(retain_graph=True)
    return {k: p.grad.clone() for k, p in net.named_parameters() if p.grad is not None}


def test_each_critic_learns_and_the_features_move_against_it(visited):
    client, batch = visited
    out = client.net(batch.x)
    found = gradients(client.net, FeatureSplit(lam=1.0).loss(client, Step(batch, out, "model")))
    split = client.net.extra[NAME]
    f_i, f_s, z = (out.aux[f"{NAME}/{k}"] for k in ("invariant", "specific", "whole"))
    client._generators.clear()
    other = torch.randperm(6, generator=client.generator(NAME))
    t = lambda a, b: split.estimator(torch.cat([a, b], 1)).flatten()  # noqa: E731
    information = t(f_i, f_s).mean() - t(f_i, f_s[other]).exp().mean().log()
    rebuilt = (split.reconstructor(torch.cat([f_i, f_s], 1)) - z.detach()).square().mean()
    fooled = -split.identifier(f_s).log_softmax(1).mean()
    known = torch.nn.functional.cross_entropy(split.identifier(f_s), batch.y)
    parts = [gradients(client.net, v) for v in (information, rebuilt, fooled, known)]
    for key, value in found.items():
        i, r, u, c = (p.get(key, torch.zeros_like(value)) for p in parts)
        if ".estimator." in key:
            wanted = -i  # T climbs
        elif ".identifier." in key:
            wanted = c  # CI learns the class, and nothing of the confusion
        elif ".reconstructor." in key:
            wanted = r
        else:
            wanted = i + r + u  # the halves and the body
        torch.testing.assert_close(value, wanted, rtol=1e-3, atol=1e-6)
    assert not any(k.startswith("head") for k in found)


def test_the_head_classifies_the_invariant_half(visited):
    client, batch = visited
    net = client.net.eval()
    out = net(batch.x)
    split, z = net.extra[NAME], out.aux[f"{NAME}/whole"]
    assert split.invariant(z).shape == (6, 64)
    torch.testing.assert_close(out.features, split.widened(split.invariant(z)))
    torch.testing.assert_close(out.logits, net.head_module(out.features))


def test_without_its_terms_it_is_a_uniform_mean_of_nets_with_a_split(same):
    """lam = 0, gamma = 0 and an attention that is flat leave only the structure."""
    flat = build("fada[lam=0, gamma=0, tau=1e12]")
    plain = Method((FeatureSplit(lam=0.0),), Mean(Uniform()))
    found, wanted = (play(start(m), 2).server.shared for m in (flat, plain))
    same({k: v for k, v in found.items() if "global-disentangler" not in k}, wanted)


def test_the_adversary_is_fedkas():
    assert build("fada").parts[1] == GlobalDisentangler()
