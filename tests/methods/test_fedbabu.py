"""Oh et al., ICLR 2022, Algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedshift
from fedshift.base import seeds
from fedshift.base.errors import ConfigError, RunError
from fedshift.core.net import head_keys
from fedshift.core.registry import build
from fedshift.engine.round import exchange
from fedshift.methods.fedbabu import FineTuned
from fedshift.methods.shared.tuning import tuned
from fedshift.testing import play, start, tiny_scenario, worker

GROUP = {"backbone_options": {"norm": "group", "width": 4}}


def scores(session, task="score"):
    clients = sorted(session.server.roster)
    found = exchange(session.server, session.transport, task, clients, session.record)
    return {u.client: u.metrics["test/loss"] for u in found}


def test_the_head_never_changes_and_never_travels():
    session = play(start("fedbabu"))
    head = head_keys(session.server.net)
    for message in session.transport.seen:
        assert not head & (message.shared.keys() | message.personal.keys())
    now, first = worker(session).net.state_dict(), worker(session).initial
    assert all(torch.equal(now[k], first[k]) for k in head)
    assert not torch.equal(session.server.shared["block1.0.weight"], first["block1.0.weight"])


def test_the_body_is_trained_with_the_gradient_that_it_has_under_the_initial_head(replies):
    """One full-batch step: the body moves as FedAvg's, from the same model, head and all."""
    plan = {"steps": 1, "batch_size": 64}
    fedavg, fedbabu = play(start("fedavg", **plan), 1), play(start("fedbabu", **plan), 1)
    for key, value in fedbabu.server.shared.items():
        torch.testing.assert_close(value, fedavg.server.shared[key], rtol=1e-5, atol=1e-6)


def test_without_tuning_the_shared_model_is_scored():
    session = play(start(build("fedbabu", tune_epochs=0), **GROUP), 2)
    assert scores(session) == scores(session, "assess")
    assert scores(play(start("fedbabu", **GROUP), 2)) != scores(session)


def test_tuning_the_head_is_softmax_regression_on_the_shared_features():
    """One epoch of one full batch, in NumPy: w <- w - lr g."""
    plan = GROUP | {"batch_size": 64}
    session = play(start(build("fedbabu", tune_epochs=1, tune="head"), **plan), 2)
    found, server = scores(session), session.server
    site, net = session.federation.sites["dark-0"], server.net
    net.load_state_dict(worker(session).initial | server.shared)
    net.eval()
    (x, y), (x_test, y_test) = (
        s.take(torch.arange(len(s))) for s in (site.data.train, site.data.test)
    )
    with torch.no_grad():
        z, z_test = (net(t).features.numpy().astype(np.float64) for t in (x, x_test))
    w, b = (net.state_dict()[f"head.{k}"].numpy() for k in ("weight", "bias"))
    p = np.exp(z @ w.T + b)
    p = p / p.sum(1, keepdims=True)
    p[np.arange(len(y)), y.numpy()] -= 1
    w, b = w - 0.05 * p.T @ z / len(y), b - 0.05 * p.mean(0)
    logits = z_test @ w.T + b
    rows = np.arange(len(y_test))
    loss = (np.log(np.exp(logits).sum(1)) - logits[rows, y_test.numpy()]).sum()
    assert found["dark-0"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize(("tune", "moved"), [("all", "both"), ("head", "head"), ("body", "body")])
def test_what_is_tuned_moves_and_the_rest_does_not(open_client, tune, moved):
    session = play(start("fedbabu"), 1)
    client = open_client(session, "dark-0")
    before = {k: v.clone() for k, v in client.net.state_dict().items()}
    part = build("fedbabu", tune=tune).parts[1]
    after = tuned(client, part.keys(client.net), 1, seeds.generator("test"))
    changed = {k for k, _ in client.net.named_parameters() if not torch.equal(before[k], after[k])}
    head = {"head.weight", "head.bias"}
    assert bool(changed & head) == (moved in ("both", "head"))
    assert bool(changed - head) == (moved in ("both", "body"))
    assert all(torch.equal(v, before[k]) for k, v in client.net.state_dict().items())


def test_tuning_changes_nothing_of_the_federation(same):
    with_, without = play(start("fedbabu")), play(start("fedbabu - fine-tuned"))
    same(with_.server.shared, without.server.shared)


def test_fedavg_with_tuning_is_scored_as_a_client_after_one_more_visit_of_training(replies):
    """Under batches of all samples a visit and a tuning differ in nothing but their order."""
    plan = GROUP | {"batch_size": 64, "epochs": 2}
    tuned_ = play(start("fedavg + fine-tuned[tune_epochs=2]", **plan), 1)
    later = play(start("fedavg", protocols=("personal-trained",), **plan), 2)
    clients = sorted(later.server.roster)
    found = exchange(later.server, later.transport, "score", clients, later.record)
    trained = {
        u.client: next(v for k, v in u.metrics.items() if k.endswith("test/loss")) for u in found
    }
    for client, loss in scores(tuned_).items():
        assert loss == pytest.approx(trained[client], rel=1e-3)


def test_a_net_that_is_all_head_is_refused():
    with pytest.raises(ConfigError, match="no body that trains"):
        start("fedbabu", backbone="linear", backbone_options={})


def test_a_sites_model_cannot_be_loaded_without_its_samples(tmp_path):
    result = fedshift.run("fedbabu", tiny_scenario(rounds=1), out=tmp_path / "r", quiet=True)
    model = fedshift.load_model(result, "dark-0")
    with pytest.raises(RunError, match="tuned on its training samples"):
        model.logits(torch.zeros(2, 3, 8, 8))
    untuned = build("fedbabu", tune_epochs=0)
    result = fedshift.run(untuned, tiny_scenario(rounds=1), out=tmp_path / "u", quiet=True)
    model = fedshift.load_model(result, "dark-0", method=untuned)
    assert model.logits(torch.zeros(2, 3, 8, 8)).shape == (2, 4)


def test_the_body_has_nothing_of_the_head_where_that_is_trained_too():
    net = worker(start("fedavg")).net
    assert not FineTuned(tune="body").keys(net) & head_keys(net)


def test_each_protocol_tunes_its_own_model():
    """In one visit two models are scored, the aggregated one and the one just trained."""
    two = play(start("fedbabu", protocols=("personal", "personal-trained"), **GROUP), 2)
    alone = {
        p: play(start("fedbabu", protocols=(p,), **GROUP), 2)
        for p in ("personal", "personal-trained")
    }
    clients = sorted(two.server.roster)

    def found(session):
        rows = exchange(session.server, session.transport, "score", clients, session.record)
        return [{k: v for k, v in u.metrics.items() if k.endswith("test/loss")} for u in rows]

    both, one, other = found(two), found(alone["personal"]), found(alone["personal-trained"])
    assert [sorted(row.values()) for row in both] == [
        sorted([*a.values(), *b.values()]) for a, b in zip(one, other, strict=True)
    ]
    assert all(len(set(row.values())) == 2 for row in both)
