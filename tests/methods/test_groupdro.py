"""Sagawa et al., ICLR 2020, over clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core.message import Update
from fedshift.core.net import load
from fedshift.core.registry import build
from fedshift.testing import play, start

CLIENTS = ("bright-0", "bright-1", "dark-0", "dark-1")


def told(losses):
    """Updates that carry these losses and nothing else."""
    return [
        Update(c, "train", 1, payload={"loss-probe/loss": torch.tensor(v, dtype=torch.float64)})
        for c, v in losses.items()
    ]


def test_with_zero_eta_groupdro_is_the_uniform_mean(same):
    uniform = play(start("fedavg", weights="uniform"), 2)
    groupdro = play(start(build("groupdro", eta=0.0)), 2)
    same(uniform.server.shared, groupdro.server.shared)


def test_weights_grow_exponentially_with_the_loss():
    whole = build("groupdro", eta=0.5)
    server = start(whole).server
    w = np.full(4, 0.25)
    for losses in ((2.0, 0.5, 1.0, 3.0), (0.1, 4.0, 0.2, 0.3)):
        found = whole.aggregate.weights(server, told(dict(zip(CLIENTS, losses, strict=True))))
        w = w * np.exp(0.5 * np.array(losses))
        w /= w.sum()
        np.testing.assert_allclose(found.numpy(), w, rtol=1e-12)


def test_absent_clients_neither_gain_nor_lose():
    """They keep their share relative to the common scale; participants are normalised to one."""
    whole = build("groupdro", eta=0.5)
    server = start(whole).server
    w = dict.fromkeys(CLIENTS, 0.25)
    for losses in ({"bright-0": 2.0, "dark-1": 0.5}, {"bright-1": 1.0, "dark-1": 3.0}):
        found = whole.aggregate.weights(server, told(losses))
        w |= {c: w[c] * np.exp(0.5 * loss) for c, loss in losses.items()}
        expected = np.array([w[c] for c in losses])
        np.testing.assert_allclose(found.numpy(), expected / expected.sum(), rtol=1e-12)
        kept = server.state[whole.aggregate.weights.name]  # of all clients, a distribution
        assert float(sum(kept.values())) == pytest.approx(1.0)


def test_the_weights_are_those_of_the_aggregation(replies):
    session = play(start(build("groupdro", eta=2.0)), 1)
    rows = replies(session, 1)
    w = np.exp(2.0 * np.array([float(u.payload["loss-probe/loss"]) for u in rows]))
    assert np.ptp(w / w.sum()) > 0.005  # far enough from uniform to tell
    for key, value in session.server.shared.items():
        if value.is_floating_point():
            stack = np.stack([u.shared[key].numpy() for u in rows])
            mean = np.tensordot(w / w.sum(), stack, axes=1)
            np.testing.assert_allclose(value.numpy(), mean, rtol=1e-5, atol=1e-6)


def test_the_loss_is_that_of_the_received_model_in_eval_mode(replies):
    session = play(start("groupdro"), 1)
    received = session.server.shared
    play(session, 1)
    net = session.server.net
    load(net, received)
    net.eval()
    for update in replies(session, 2):
        data = session.federation.sites[update.client].data.train
        x, y = data.take(torch.arange(len(data)))
        logits = net(x).logits.detach().numpy().astype(np.float64)
        chosen = logits[np.arange(len(y)), y.numpy()]
        loss = (np.log(np.exp(logits).sum(1)) - chosen).mean()
        assert float(update.payload["loss-probe/loss"]) == pytest.approx(loss, rel=1e-5)


def test_the_probe_leaves_the_training_alone(replies):
    """Round 1 starts from the same model and sees the same batches as FedAvg's."""
    plain, probed = play(start("fedavg"), 1), play(start("groupdro"), 1)
    for a, b in zip(replies(plain, 1), replies(probed, 1), strict=True):
        assert all(torch.equal(a.shared[k], b.shared[k]) for k in a.shared)
