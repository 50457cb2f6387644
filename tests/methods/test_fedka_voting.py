"""Sun et al., ACML 2022, Section 3.2.5: votes, and one server phase on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.base import tree
from fedshift.core.method import Method
from fedshift.core.net import batch_norm_buffers, call_frozen, load
from fedshift.core.part import Part
from fedshift.methods.fedka.equations import coefficient
from fedshift.methods.fedka.voting import FederatedVoting
from fedshift.testing import play, start

NAME = "federated-voting"
LITERAL = "fedavg + federated-voting[paper_literal=true]"


def changed(setting):
    """The same with another setting, as text."""
    return LITERAL.replace("]", f", {setting}]")


def literal(**settings):
    """Voting as the paper prints it, without our precautions."""
    return FederatedVoting(paper_literal=True, **settings)


class Watch(Part):
    """Copies what was voted between ``merge`` and ``refine``; comes before the voting in refine."""

    def refine(self, server):
        held = server.state[NAME]
        server.state[self.name] = dict(held)


def voted(part, *, play_rounds=1, **changes):
    """A session after some rounds, the rows voted on in the last of them, and the labels."""
    session = play(start(Method((Watch(), part)), **changes), play_rounds)
    held = session.server.state["watch"]
    return session, held["rows"], held["labels"]


def test_the_clients_trained_models_vote_in_eval_mode(replies):
    session, rows, labels = voted(literal())
    server = session.server
    target = session.federation.unseen.inputs
    assert sorted(rows.tolist()) == list(range(len(target)))  # fewer inputs than voting_samples
    x, _ = target.take(rows)
    ballots = []
    for update in replies(session, 1):
        load(server.net, server.initial, update.shared)
        ballots.append(server.net.eval()(x).logits.argmax(1).numpy())
    for i, label in enumerate(labels.tolist()):
        votes = np.bincount([b[i] for b in ballots], minlength=4)
        assert votes[label] == votes.max()


def test_votes_in_train_mode_use_the_targets_statistics(replies):
    session, rows, labels = voted(literal(voter_statistics="target"), rounds=1)
    server = session.server
    x, _ = session.federation.unseen.inputs.take(rows)
    ballots = []
    for update in replies(session, 1):
        load(server.net, server.initial, update.shared)
        ballots.append(server.net.train()(x).logits.argmax(1).numpy())
    for i, label in enumerate(labels.tolist()):
        votes = np.bincount([b[i] for b in ballots], minlength=4)
        assert votes[label] == votes.max()


def test_the_number_of_inputs_is_a_setting_and_they_change_with_the_round():
    _, first, _ = voted(literal(voting_samples=5), play_rounds=1)
    _, second, _ = voted(literal(voting_samples=5), play_rounds=2)
    assert len(first) == len(set(first.tolist())) == 5
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("scale_loss", [False, True])
def test_one_batch_is_one_step_of_lambda_times_the_learning_rate(scale_loss):
    """G* = G - lambda_p eta grad J(Y*, G(X)), with all inputs in one batch; round 2 of 3."""
    part = literal(scale_loss=scale_loss)
    session, rows, labels = voted(part, play_rounds=2, batch_size=50)
    server = session.server
    net = server.net
    load(net, server.initial, server.aggregated)
    net.train().zero_grad()
    x, _ = session.federation.unseen.inputs.take(rows)
    F.cross_entropy(net(x).logits, labels).backward()
    step = coefficient(1 / 3, 5.0) * server.scenario.lr
    for name, p in net.named_parameters():
        expected = server.aggregated[name] - step * p.grad
        torch.testing.assert_close(server.shared[name], expected, rtol=1e-5, atol=1e-7)


def test_lambda_grows_over_the_servers_own_batches():
    """Two batches, statistics kept, a linear schedule by hand."""
    part = literal(statistics="kept", voting_batch=6)
    session, rows, labels = voted(part)
    server = session.server
    net = server.net
    load(net, server.initial, server.aggregated)
    for b, chunk in enumerate(torch.arange(12).split(6)):
        net.eval().zero_grad()
        x, _ = session.federation.unseen.inputs.take(rows[chunk])
        F.cross_entropy(net(x).logits, labels[chunk]).backward()
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(coefficient(b / 2 / 3, 5.0) * server.scenario.lr * p.grad)
    for name, p in net.named_parameters():
        torch.testing.assert_close(server.shared[name], p.detach(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("statistics", ["target", "kept"])
def test_the_statistics_go_to_the_target_or_stay(statistics):
    session, *_ = voted(literal(statistics=statistics))
    server = session.server
    stay = [
        torch.equal(server.shared[k], server.aggregated[k]) for k in batch_norm_buffers(server.net)
    ]
    assert all(stay) if statistics == "kept" else not any(stay)


def test_the_voted_model_is_what_clients_receive(same):
    session = play(start(LITERAL), 1)
    voted_, averaged = (tree.clone(t) for t in (session.server.shared, session.server.aggregated))
    assert any(not torch.equal(v, averaged[k]) for k, v in voted_.items())
    same(session.server.broadcast("train", "dark-0").shared, voted_)


def test_discarded_votes_are_scored_but_clients_start_from_the_average(same, open_client):
    session = play(start(changed("discard_voted=true"), rounds=2), 1)
    averaged = tree.clone(session.server.aggregated)
    client = open_client(session, "dark-0")
    FederatedVoting().begin(client)
    same(dict(client.net.state_dict()), averaged)
    play(session)
    plain = play(start("fedavg", rounds=2))
    same(session.server.aggregated, plain.server.shared)
    assert any(not torch.equal(v, plain.server.shared[k]) for k, v in session.server.shared.items())


def test_adam_undoes_a_scaled_loss_but_not_a_scaled_step():
    adam = {"optimiser": "adam", "lr": 0.01, "batch_size": 50, "rounds": 30}
    moves = {}
    for scale_loss in (False, True):
        session, *_ = voted(literal(scale_loss=scale_loss), play_rounds=2, **adam)
        server = session.server
        moves[scale_loss] = float(
            (server.shared["head.bias"] - server.aggregated["head.bias"]).norm()
        )
    lam = coefficient(1 / 30, 5.0)
    assert moves[False] == pytest.approx(lam * moves[True], rel=1e-2)


def test_the_servers_optimiser_is_kept_over_rounds_where_the_scenario_says_so():
    adam = {"optimiser": "adam", "lr": 0.01}
    kept, *_ = voted(literal(), play_rounds=2, optimiser_state="keep", **adam)
    fresh, *_ = voted(literal(), play_rounds=2, optimiser_state="reset", **adam)
    steps = [v for k, v in kept.server.state[NAME].items() if k.endswith("/step")]
    assert steps
    assert all(float(v) == 2 * 3 for v in steps)  # 12 inputs in batches of four, twice
    assert not [k for k in fresh.server.state[NAME] if k.startswith("optimiser")]


def test_nothing_travels_for_the_votes_but_each_model_is_seen(replies):
    session = play(start(LITERAL))
    assert all(m.payload == {} for m in session.transport.seen)
    assert FederatedVoting.needs_individual_updates


@pytest.mark.parametrize(
    "setting",
    [
        "voting_samples=5",
        "voting_batch=6",
        "gamma=2",
        "voter_statistics=target",
        "statistics=kept",
        "discard_voted=true",
    ],
)
def test_every_setting_changes_something(setting):
    base = play(start(LITERAL), 2).server.shared
    found = play(start(changed(setting)), 2).server.shared
    assert any(not torch.equal(v, base[k]) for k, v in found.items())


def test_voting_teaches_the_target():
    """Labels that the majority has right are learnt: fewer wrong answers on the inputs voted on."""
    scenario = {"rounds": 8, "epochs": 3, "evaluate_every": 8}
    plain = play(start("fedavg", **scenario))
    tuned, rows, labels = voted(literal(), play_rounds=8, **scenario)
    x, _ = tuned.federation.unseen.inputs.take(rows)

    def agreement(session):
        server = session.server
        out = call_frozen(server.net, server.initial | server.shared, x)
        return float((out.logits.argmax(1) == labels).float().mean())

    assert agreement(tuned) >= agreement(plain)
    assert agreement(tuned) > 0.9


def test_the_default_uses_inputs_on_which_more_than_half_agree_by_the_targets_statistics(replies):
    session, rows, labels = voted(FederatedVoting(), rounds=1)
    server, target = session.server, session.federation.unseen.inputs
    _, every, _ = voted(literal(), rounds=1)  # the same rows before any is left out
    x, _ = target.take(every)
    ballots = []
    for update in replies(session, 1):
        load(server.net, server.initial, update.shared)
        ballots.append(server.net.train()(x).logits.argmax(1).numpy())
    counts = np.stack([np.bincount(column, minlength=4) for column in np.stack(ballots).T])
    agreed = counts.max(1) > len(ballots) / 2
    assert 0 < agreed.sum() < len(agreed)  # else this test shows nothing
    assert rows.tolist() == every[torch.from_numpy(agreed)].tolist()
    assert labels.tolist() == counts.argmax(1)[agreed].tolist()


def test_the_default_step_is_lambda_times_kappa_times_the_rate():
    session, rows, labels = voted(FederatedVoting(), play_rounds=2, batch_size=50, steps=1)
    kappa = float(session.server.state["watch"]["trust"])
    assert 0 < kappa < 1
    server, net = session.server, session.server.net
    load(net, server.initial, server.aggregated)
    net.train().zero_grad()
    x, _ = session.federation.unseen.inputs.take(rows)
    F.cross_entropy(net(x).logits, labels).backward()
    step = kappa * coefficient(1 / 3, 5.0) * server.scenario.lr
    for name, p in net.named_parameters():
        expected = server.aggregated[name] - step * p.grad
        torch.testing.assert_close(server.shared[name], expected, rtol=1e-5, atol=1e-7)


def test_the_server_takes_no_more_inputs_than_a_client_does():
    """One step of four: four inputs of the twelve are voted on, however many might be."""
    changes = {"steps": 1, "epochs": None, "batch_size": 4}
    _, rows, _ = voted(FederatedVoting(), **changes)
    assert len(rows) <= 4
    _, rows, _ = voted(literal(), **changes)
    assert len(rows) == 12


class Split(Part):
    """After aggregation: as if the voters had agreed by chance only."""

    def refine(self, server):
        server.state[NAME]["trust"] = torch.tensor(-0.1)


def test_votes_that_agree_by_chance_only_move_nothing(same):
    session = play(start(Method((Split(), FederatedVoting()))), 2)
    same(session.server.shared, session.server.aggregated)
