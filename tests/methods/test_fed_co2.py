"""Cai et al., NeurIPS 2023."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.base import tree
from fedshift.core.loop import Batch, Step
from fedshift.core.registry import build
from fedshift.engine.round import exchange
from fedshift.methods.fed_co2.offline import OfflineModel
from fedshift.methods.fed_co2.transfer import distillation
from fedshift.testing import play, start

NAME = OfflineModel().name
PLAIN = {"lam": 0.0, "distil_epochs": 0}
KEYS = ("head.bias", "head.weight")
LINEAR = {"backbone": "linear", "backbone_options": {}, "batch_size": 64, "steps": 1, "lr": 0.03}


def softmax(z):
    p = np.exp(z - z.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def test_without_transfer_the_online_model_is_fedbn_and_the_offline_one_local(same, state_of):
    both = play(start(build("fed-co2", **PLAIN)))
    fedbn, local = play(start("fedbn")), play(start("local"))
    same(fedbn.server.shared, both.server.shared)
    for client in local.server.roster:
        same(state_of(fedbn, client, "net"), state_of(both, client, "net"))
        same(state_of(local, client, "net"), state_of(both, client, NAME))


def test_distillation_is_the_divergence_of_the_student_from_the_teacher():
    s = torch.tensor([[1.0, 0.0, -1.0], [0.5, 0.5, 2.0]], requires_grad=True)
    t = torch.tensor([[0.0, 2.0, 1.0], [1.0, -1.0, 0.0]])
    p, q = softmax(t.numpy()), softmax(s.detach().numpy())
    loss = distillation(s, t)
    assert float(loss.detach()) == pytest.approx((p * np.log(p / q)).sum() / 2, rel=1e-5)
    loss.backward()
    np.testing.assert_allclose(s.grad.numpy(), (q - p) / 2, rtol=1e-4, atol=1e-6)


def numpy_step(w, b, x, y, lr):
    """One full-batch step on CE + sum_j CE(h_j(f)): on a linear net the others are constants."""
    p = softmax(x @ w.T + b)
    p[np.arange(len(y)), y] -= 1
    return w - lr * p.T @ x / len(y), b - lr * p.mean(0)


def test_a_visit_distils_first_and_trains_then(state_of, replies):
    """Softmax regression with one batch, in NumPy; both teachers are those that begin the visit."""
    session = play(start("fed-co2", **LINEAR), 1)
    data = session.federation.sites["dark-0"].data.train
    x, y = (t.numpy() for t in data.take(torch.arange(len(data))))
    x = x.reshape(len(x), -1).astype(np.float64)
    online = {k: session.server.shared[k].numpy().astype(np.float64) for k in KEYS}
    kept = state_of(session, "dark-0", NAME)
    offline = {k: kept[k].numpy().astype(np.float64) for k in KEYS}
    p_on, p_off = (softmax(x @ m["head.weight"].T + m["head.bias"]) for m in (online, offline))
    play(session, 1)
    (update,) = (u for u in replies(session, 2) if u.client == "dark-0")
    after = state_of(session, "dark-0", NAME)
    for start_, found, gap in (
        (online, update.shared, p_on - p_off),
        (offline, after, p_off - p_on),
    ):
        w = start_["head.weight"] - 0.03 * gap.T @ x / len(y)
        b = start_["head.bias"] - 0.03 * gap.mean(0)
        w, b = numpy_step(w, b, x, y, 0.03)
        np.testing.assert_allclose(found["head.weight"].numpy(), w, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(found["head.bias"].numpy(), b, rtol=1e-4, atol=1e-6)
    assert np.abs(p_on - p_off).max() > 0.01


def test_the_first_visit_of_a_client_has_nothing_to_distil(replies):
    session = play(start("fed-co2"), 2)
    assert not any("distil" in k for u in replies(session, 1) for k in u.metrics)
    assert all(
        "distil/online" in u.metrics and "distil/offline" in u.metrics for u in replies(session, 2)
    )


def test_the_other_heads_add_their_loss_on_the_same_features(open_client):
    """lam * sum_j CE(f W_j' + b_j, y), against NumPy, and its gradient reaches the features."""
    session = play(start(build("fed-co2", lam=0.5)), 2)
    client, part = open_client(session, "dark-0"), session.server.method.parts[1]
    sent = client.payload(part)
    assert sent["head.weight"].shape == (3, *session.server.initial["head.weight"].shape)
    x, y = client.site.data.train.take(torch.arange(6))
    f = torch.randn(6, sent["head.weight"].shape[2], requires_grad=True)
    out = client.net(x)
    out.features = f
    term = part.loss(client, Step(Batch(x, y), out, "model"))
    total = 0.0
    for w, b in zip(sent["head.weight"].numpy(), sent["head.bias"].numpy(), strict=True):
        p = softmax(f.detach().numpy() @ w.T + b)
        total += -np.log(p[np.arange(6), y.numpy()]).mean()
    assert float(term.detach()) == pytest.approx(0.5 * total, rel=1e-4)
    terms = part.objective(client, Step(Batch(x, y), out, NAME))  # of the offline model, alike
    assert len(terms) == 2
    task = client.task.loss(out.logits, y).item()
    assert sum(t.item() for t in terms.values()) == pytest.approx(task + 0.5 * total, rel=1e-4)
    term.backward()
    assert bool(f.grad.abs().sum() > 0)


def test_a_client_gets_the_last_heads_of_all_others_and_not_its_own(open_client, state_of):
    session = start("fed-co2", clients_per_round=2)
    part, initial = session.server.method.parts[1], session.server.initial
    first = open_client(session, "dark-0").payload(part)["head.weight"]
    assert all(torch.equal(h, initial["head.weight"]) for h in first)
    assert len(first) == 3
    play(session, 1)
    visited = {m.client for m in session.transport.seen if m.task == "train"}
    sent = open_client(session, "dark-0").payload(part)["head.weight"]
    others = ("bright-0", "bright-1", "dark-1")
    for client, head in zip(others, sent, strict=True):
        own = state_of(session, client, NAME) if client in visited else initial
        assert torch.equal(head, own["head.weight"]), client
    play(session, 2)
    seen = [m.client for m in session.transport.seen if m.task == "train" and hasattr(m, "steps")]
    assert len(set(seen)) < len(seen)  # some came again, and their newer head counts
    sent = open_client(session, "dark-0").payload(part)["head.weight"]
    for client, head in zip(others, sent, strict=True):
        own = state_of(session, client, NAME) if client in seen else initial
        assert torch.equal(head, own["head.weight"]), client


def test_the_sum_of_both_logits_is_scored(state_of):
    session = play(start("fed-co2", backbone_options={"norm": "group"}), 2)
    server, net = session.server, session.server.net
    for update in exchange(
        server, session.transport, "score", sorted(server.roster), session.record
    ):
        x, y = session.federation.sites[update.client].data.test.take(torch.arange(16))
        logits = 0
        for entries in (server.shared, state_of(session, update.client, NAME)):
            net.load_state_dict(entries)
            with torch.no_grad():
                logits = logits + net.eval()(x).logits
        loss = float(F.cross_entropy(logits, y, reduction="sum"))
        assert update.metrics["test/loss"] == pytest.approx(loss, rel=1e-5)


def test_only_the_head_of_the_offline_model_travels(state_of, replies):
    session = play(start("fed-co2"), 1)
    for update in replies(session, 1):
        told = tree.under(NAME, update.payload)
        kept = state_of(session, update.client, NAME)
        assert set(told) == set(KEYS)
        assert all(torch.equal(told[k], kept[k]) for k in KEYS)
