"""Wu and Gong, ICCV 2021: a body for all heads, and all heads to predict."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.loop import Batch, Step
from fedshift.core.net import load
from fedshift.methods.copa import EveryHead, ensemble, through_heads
from fedshift.testing import play, start

NAME = EveryHead().name
W, B = "head.weight", "head.bias"


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_the_ensemble_is_the_mean_of_the_heads_probabilities():
    logits = np.random.default_rng(0).normal(size=(3, 5, 4))
    found = ensemble(torch.from_numpy(logits)).numpy()
    np.testing.assert_allclose(np.exp(found), softmax(logits).mean(0), rtol=1e-6)


@pytest.mark.parametrize("rounds", [1, 3])
def test_without_other_heads_the_body_is_fedpers(same, rounds):
    """lam = 0 in any round, and any lam in round 1, when no head has been trained."""
    method = "copa" if rounds == 1 else "copa[lam=0]"
    same(play(start(method), rounds).server.shared, play(start("fedper"), rounds).server.shared)


@pytest.fixture
def visited(open_client, replies):
    session = play(start("copa"), 1)
    heads = {u.client: u.personal for u in replies(session, 1)}
    session.server.round = 2
    client = open_client(session, "dark-0")
    x, y = client.site.data.train.take(torch.arange(6))
    return session, client, Batch(x, y), heads


@pytest.mark.parametrize("soft", [False, True])
def test_the_term_is_the_sum_of_cross_entropies_of_the_other_heads(visited, soft):
    _, client, batch, heads = visited
    out = client.net(batch.x)
    shares = np.eye(4)[batch.y.numpy()]
    if soft:
        shares = 0.7 * shares + 0.3 * shares[::-1]
        batch = batch.replace(y=torch.from_numpy(shares).float())
    client.net.zero_grad()
    term = EveryHead(lam=0.5).loss(client, Step(batch, out, "model"))
    z = out.features.detach().double().numpy()
    expected = 0.0
    for name in ("bright-0", "bright-1", "dark-1"):
        p = softmax(z @ heads[name][W].double().numpy().T + heads[name][B].double().numpy())
        expected -= (shares * np.log(p)).sum(1).mean()
    assert float(term.detach()) == pytest.approx(0.5 * expected, rel=1e-5)
    term.backward()
    moved = {k for k, p in client.net.named_parameters() if p.grad is not None}
    assert moved
    assert not any(k.startswith("head") for k in moved)


def test_a_client_gets_all_heads_but_its_own_and_absent_clients_keep_theirs(replies):
    session = play(start("copa", clients_per_round=2, rounds=5))
    last = {u.client: u.personal for r in range(1, 6) for u in replies(session, r)}
    assert len(last) > 2
    for asked in (*sorted(last), None):
        found = EveryHead()._stacked(session.server, asked)
        others = [last[name] for name in sorted(last) if name != asked]
        for key, full in (("weight", W), ("bias", B)):
            assert torch.equal(found[key], torch.stack([head[full] for head in others]))


def test_a_new_site_is_scored_by_all_heads(visited):
    session, _, batch, heads = visited
    server = session.server
    scoring = server.scoring()
    load(server.net, server.initial, server.shared)
    net = server.net.eval()
    found = server.method.predict(net, scoring, batch.x).detach()
    z = net(batch.x).features.detach().double().numpy()
    wanted = [
        softmax(z @ head[W].double().numpy().T + head[B].double().numpy())
        for head in heads.values()
    ]
    np.testing.assert_allclose(found.exp().numpy(), np.mean(wanted, axis=0), rtol=1e-4, atol=1e-6)


def test_heads_run_in_eval_mode_and_leave_the_net_as_it_was():
    """A head with BatchNorm normalises by its own statistics: x -> (x - mean) / std per head."""
    head = torch.nn.BatchNorm1d(2).train()
    one = {k: v.clone() for k, v in head.state_dict().items()}
    heads = {k: torch.stack([v, v]) for k, v in one.items()}
    heads["running_mean"] = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
    z = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    found = through_heads(head, heads, z)
    torch.testing.assert_close(found[0], z / (1 + 1e-5) ** 0.5)
    torch.testing.assert_close(found[1], (z - torch.tensor([1.0, 2.0])) / (1 + 1e-5) ** 0.5)
    assert head.training
    assert all(torch.equal(v, one[k]) for k, v in head.state_dict().items())


def test_a_private_head_is_refused():
    with pytest.raises(ConfigError, match="every-head passes heads on"):
        play(start("fedper + every-head"), 1)
