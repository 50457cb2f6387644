"""Loss terms among the examples, against algebra and NumPy."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from fedshift import Output, find_scenario
from fedshift.core.config import configure
from fedshift.core.objective import objective
from fedshift.experiment.session import prepare
from fedshift.testing import play, start, worker

RNG = np.random.default_rng(0)
SMALL = {"rounds": 2, "steps": 3}
LOGITS = RNG.normal(size=(6, 4)).astype(np.float32)
Y = np.array([0, 1, 2, 3, 1, 1])
PUBLIC = {
    "public": "tiny",
    "allow": ("client_val", "domain_ids", "server_unlabelled", "public_set", "public_labels"),
}


def nll(logits, y):
    """Mean cross-entropy, by SciPy."""
    return -log_softmax(np.asarray(logits, dtype=np.float64), axis=1)[np.arange(len(y)), y].mean()


# FedNTD


def test_fedntd_without_distillation_is_fedavg(same):
    ours, plain = play(start("example-fedntd[beta=0]", **SMALL)), play(start("fedavg", **SMALL))
    same(ours.server.shared, plain.server.shared)


def test_the_divergence_over_the_wrong_classes_in_closed_form(part, stub, step_of):
    teacher = RNG.normal(size=(6, 4)).astype(np.float32)
    frozen = Output(torch.from_numpy(teacher), torch.zeros(6, 3))
    student = torch.tensor(LOGITS, requires_grad=True)
    tau, beta, total = 2.0, 0.7, 0.0
    for row, (student_i, teacher_i) in enumerate(zip(LOGITS, teacher, strict=True)):
        wrong = [c for c in range(4) if c != Y[row]]
        q, p = softmax(teacher_i[wrong] / tau), softmax(student_i[wrong] / tau)
        total += (q * np.log(q / p)).sum() / 6
    client = stub(reference=lambda name, batch: frozen)
    found = part(f"example-fedntd[beta={beta},tau={tau}]").loss(client, step_of(student, Y))
    assert float(found.detach()) == pytest.approx(beta * tau**2 * total, rel=1e-4)
    found.backward()
    assert student.grad[range(6), Y].abs().max() == 0  # the true class is left alone


# VHL


def test_vhl_without_both_terms_is_fedavg(same):
    ours = play(start("example-vhl[alpha=0,lam=0]", **SMALL, **PUBLIC))
    same(ours.server.shared, play(start("fedavg", **SMALL)).server.shared)


def test_the_contrast_of_vhl_term_by_term(part):
    contrast = sys.modules[type(part("example-vhl")).__module__].contrast
    z, public = RNG.normal(size=(6, 3)), RNG.normal(size=(4, 3))
    labels, tau = np.array([1, 0, 2, 1]), 0.5
    found = contrast(*map(torch.from_numpy, (z, Y, public, labels)), tau)
    every, owners = np.concatenate([z, public]), np.concatenate([Y, labels])
    every = every / np.linalg.norm(every, axis=1, keepdims=True)
    total = 0.0
    for i in range(6):
        others = [j for j in range(10) if j != i]
        s = {j: every[i] @ every[j] / tau for j in others}
        mates = [j for j in others if owners[j] == Y[i]]
        bottom = sum(np.exp(s[j]) for j in others)
        terms = [np.log(np.exp(s[j]) / bottom) for j in mates]
        total -= np.mean(terms) / 6 if terms else 0.0
    assert float(found) == pytest.approx(total, rel=1e-6)


def test_vhl_trains_on_the_public_labels(part, stub, step_of):
    """With lam = 0 the term is alpha times the cross-entropy of the drawn public samples."""
    session = start("example-vhl", **PUBLIC)
    held = worker(session).resources["public_set"]
    assert set(held.labels.tolist()) == {0, 1, 2, 3}
    client = stub(resources={"public_set": held}, net=worker(session).net.eval())
    found = part("example-vhl[alpha=0.5,lam=0,size=8]").loss(
        client, step_of(LOGITS, Y, np.ones((6, 16), np.float32))
    )
    rows = torch.randint(len(held), (8,), generator=torch.Generator().manual_seed(0))
    x, y = held.take(rows)
    assert float(found.detach()) == pytest.approx(
        0.5 * nll(client.net(x).logits.detach().numpy(), y.numpy()), rel=1e-4
    )


# pseudo-labels


def test_pseudo_labels_that_are_never_sure_are_fedavg_on_the_labelled_samples(same):
    given = SMALL | {"labelled": 0.5}
    ours = play(start("example-pseudo-labels[threshold=1.01]", **given))
    same(ours.server.shared, play(start("fedavg", **given)).server.shared)


def test_only_sure_predictions_count_against_all_that_were_drawn(part, stub, step_of):
    session = start("example-pseudo-labels", labelled=0.5)
    net, site = worker(session).net.eval(), session.federation.sites["dark-0"]
    held = site.data.unlabelled
    assert set(held.labels.tolist()) == {-1}
    rows = torch.randint(len(held), (16,), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        p = softmax(10 * net(held.take(rows)[0]).logits.numpy().astype(np.float64), axis=1)
    threshold = float(np.median(p.max(1)))
    sure = p.max(1) >= threshold
    assert 0 < sure.sum() < 16
    sharper = lambda x: SimpleNamespace(logits=10 * net(x).logits)  # noqa: E731
    found = part(f"example-pseudo-labels[lam=0.5,size=16,threshold={threshold - 1e-6}]").loss(
        stub(site=site, net=sharper), step_of(LOGITS, Y)
    )
    expected = -0.5 * (np.log(p.max(1)) * sure).mean()
    assert float(found.detach()) == pytest.approx(expected, rel=1e-4)


# regression


@pytest.mark.parametrize("method", ["fedavg", "example-huber"])
def test_a_regression_recovers_the_law(method, part):
    """Noiseless data of one plane: both sites have the same optimum, and R2 reaches 100."""
    law = sys.modules[type(part("example-huber")).__module__]
    config, whole = configure(method, find_scenario("example-plane"))
    session = play(prepare(config, whole, None))
    w = {k: v.numpy() for k, v in session.server.shared.items()}
    np.testing.assert_allclose(4.0 * w["head.weight"][0], law.SLOPES.numpy(), atol=1e-4)
    assert 4.0 * w["head.bias"][0] + 10.0 == pytest.approx(law.OFFSET, abs=1e-4)
    for protocol in ("personal", "global"):
        found = session.record.metrics[-1]["scores"][protocol]["test"]
        assert found["r2"] == pytest.approx(100.0, abs=1e-6)
        assert max(found["mae"], found["rmse"]) < 1e-4


def test_huber_in_closed_form(part, stub, step_of):
    out, y = np.array([[0.5], [3.0], [-2.0]], np.float32), np.array([10.0, 26.0, 14.0])
    client = stub(scenario=SimpleNamespace(target=(10.0, 4.0)))
    found = part("example-huber[delta=1.5]").task_loss(client, step_of(out, y))
    e = np.abs(out[:, 0] - (y - 10.0) / 4.0)  # 0.5, 1, 3
    expected = np.where(e <= 1.5, e**2, 2 * 1.5 * e - 1.5**2).mean()
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_huber_with_a_large_delta_is_squared_error(part, stub, step_of):
    y = torch.tensor([10.0, 26.0, 14.0])
    client = stub(scenario=SimpleNamespace(target=(10.0, 4.0)))
    out = torch.tensor([[0.5], [3.0], [-2.0]])
    found = part("example-huber[delta=100]").task_loss(client, step_of(out, y))
    plain = objective("regression", 10.0, 4.0).loss(out, y)
    assert float(found) == pytest.approx(float(plain), rel=1e-6)
