from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.base.errors import ClashError, NotAllowedError
from fedshift.core.aggregate import weighted_mean
from fedshift.core.message import Broadcast
from fedshift.core.method import Method
from fedshift.core.net import Scope, load
from fedshift.core.part import Part
from fedshift.core.payload import PayloadSpec, Size
from fedshift.engine.round import exchange
from fedshift.evaluate.protocols import assemble
from fedshift.testing import RecordingTransport, play, start, worker

SIZES = {"bright-0": 7, "bright-1": 6, "dark-0": 11, "dark-1": 11}  # 22 and 13 samples, dealt
STATISTICS = {
    f"block{i}.1.{key}"
    for i in (1, 2, 3)
    for key in ("running_mean", "running_var", "num_batches_tracked")
}


def mean_of(updates, key, weights):
    rows = np.stack([u.shared[key].numpy().astype(np.float64) for u in updates.values()])
    return np.tensordot(weights, rows, axes=1)


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_the_shared_model_is_the_weighted_mean(weights, replies):
    session = play(start("fedavg", weights=weights), 1)
    updates = replies(session, 1)
    n = np.array(list(SIZES.values())) if weights == "examples" else np.ones(4)
    for key, value in session.server.shared.items():
        if value.is_floating_point():
            expected = mean_of(updates, key, n / n.sum())
            np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5, atol=1e-6)
        else:
            assert int(value) == max(int(u.shared[key]) for u in updates.values())
        assert value.dtype == session.server.initial[key].dtype


def test_the_weights_are_those_of_the_participants(replies):
    session = play(start("fedavg", clients_per_round=2), 1)
    updates = replies(session, 1)
    n = np.array([SIZES[client] for client in updates])
    assert len(n) == 2
    expected = mean_of(updates, "head.weight", n / n.sum())
    np.testing.assert_allclose(session.server.shared["head.weight"], expected, rtol=1e-5, atol=1e-7)


def test_a_running_sum_leaves_its_terms_alone():
    trees = [{"w": torch.full((2,), float(i)), "n": torch.tensor(i)} for i in (3, 1, 2)]
    out = weighted_mean(trees, torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64))
    assert out["w"].tolist() == [2.25, 2.25]
    assert int(out["n"]) == 3
    assert [t["w"].tolist() for t in trees] == [[3.0, 3.0], [1.0, 1.0], [2.0, 2.0]]
    assert [int(t["n"]) for t in trees] == [3, 1, 2]


def test_local_statistics_stay_off_the_wire(replies, sent):
    session = play(start("fedavg", bn="local"), 2)
    for message in session.transport.seen:
        assert not STATISTICS & message.shared.keys()
    assert "block1.1.weight" in sent(session, 2)["dark-0"].shared  # the layer itself is shared
    kept = worker(session).store.load("dark-0", before=3)["net"]
    assert kept.keys() == STATISTICS
    assert int(kept["block1.1.num_batches_tracked"]) == 2 * 2 * 3  # rounds, epochs, batches


def test_recomputed_statistics_are_those_of_the_aggregated_model(replies):
    """Per client mean and unbiased variance over its inputs, then the mean over clients."""
    session = play(start("fedavg", bn="recompute", batch_size=64, clients_per_round=3), 2)
    weight = session.server.shared["block1.0.weight"]
    cohort = list(replies(session, 2))
    n = np.array([SIZES[client] for client in cohort])
    means, variances = [], []
    for client in cohort:
        data = session.federation.sites[client].data.train
        maps = F.conv2d(data.take(torch.arange(len(data)))[0], weight, padding=1).numpy()
        rows = maps.transpose(1, 0, 2, 3).reshape(4, -1)  # (C, B H W)
        means.append(rows.mean(1))
        variances.append(rows.var(1, ddof=1))
    shared = session.server.shared
    for key, values in (("running_mean", means), ("running_var", variances)):
        expected = n / n.sum() @ np.stack(values)
        np.testing.assert_allclose(shared[f"block1.1.{key}"], expected, rtol=1e-4, atol=1e-6)


def test_recomputed_statistics_are_not_uploaded_twice(replies):
    session = play(start("fedavg", bn="recompute"), 1)
    for update in replies(session, 1).values():
        assert not STATISTICS & update.shared.keys()
    for update in replies(session, 1, "statistics").values():
        assert update.shared.keys() == STATISTICS


def test_recomputed_statistics_average_over_batches(replies):
    """In batches of 4: the mean over batches of each batch's mean and unbiased variance."""
    session = play(start("fedavg", bn="recompute", batch_size=4), 1)
    weight = session.server.shared["block1.0.weight"]
    for client, update in replies(session, 1, "statistics").items():
        data = session.federation.sites[client].data.train
        maps = F.conv2d(data.take(torch.arange(len(data)))[0], weight, padding=1).numpy()
        parts = [
            maps[i : i + 4].transpose(1, 0, 2, 3).reshape(4, -1) for i in range(0, len(maps), 4)
        ]
        mean = np.mean([p.mean(1) for p in parts], axis=0)
        variance = np.mean([p.var(1, ddof=1) for p in parts], axis=0)
        found = update.shared
        np.testing.assert_allclose(found["block1.1.running_mean"], mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found["block1.1.running_var"], variance, rtol=1e-4)


def test_recomputing_leaves_the_weights_alone(replies):
    average, recompute = (play(start("fedavg", bn=bn), 1).server for bn in ("average", "recompute"))
    for key in average.parameters:  # statistics play no role in training mode
        assert torch.equal(average.shared[key], recompute.shared[key])


@dataclass(frozen=True)
class PersonalHead(Part):
    """Heads are uploaded; each comes back half mixed with the mean of the participants'."""

    def scope(self, net):
        return dict.fromkeys(("head.weight", "head.bias"), Scope.PERSONAL)

    def personal(self, server, updates):
        keys = updates[0].personal
        mean = {k: sum(u.personal[k] for u in updates) / len(updates) for k in keys}
        return {u.client: {k: 0.5 * (u.personal[k] + mean[k]) for k in keys} for u in updates}


@dataclass(frozen=True)
class OwnHead(Part):
    """Heads are uploaded and come back as they were."""

    def scope(self, net):
        return dict.fromkeys(("head.weight", "head.bias"), Scope.PERSONAL)


@pytest.mark.parametrize(("part", "share"), [(PersonalHead(), 0.5), (OwnHead(), 0.0)])
def test_personal_entries_are_uploaded_mixed_and_sent_back(part, share, replies, sent):
    session = play(start(Method((part,))), 2)
    updates, messages = replies(session, 1), sent(session, 2)
    for key in ("head.weight", "head.bias"):
        rows = {c: u.personal[key].numpy() for c, u in updates.items()}
        mean = np.mean(list(rows.values()), axis=0)
        for client, own in rows.items():
            expected = (1 - share) * own + share * mean
            np.testing.assert_allclose(
                messages[client].personal[key], expected, rtol=1e-5, atol=1e-7
            )
            assert key not in messages[client].shared
            assert key not in updates[client].shared


def test_personal_entries_are_what_the_client_trains(replies, sent):
    session = play(start(Method((OwnHead(),)), lr=1e-12), 1)  # so small a rate moves no bit
    moved = {k: v + 1.0 for k, v in session.server.personal_of("dark-0").items()}
    session.server.personal.save("dark-0", 1, {"net": moved})
    play(session, 1)
    received, update = sent(session, 2)["dark-0"], replies(session, 2)["dark-0"]
    for key, value in received.personal.items():
        assert torch.equal(update.personal[key], value)


def test_before_its_first_visit_a_client_gets_the_initial_personal_entries(sent):
    session = play(start(Method((PersonalHead(),)), clients_per_round=1, rounds=4))
    first = {}
    for round_ in range(1, 5):
        for client, messages in sent(session, round_).items():
            first.setdefault(client, messages)
    assert len(first) > 1
    for messages in first.values():
        for key, value in messages.personal.items():
            assert torch.equal(value, session.server.initial[key])


@dataclass(frozen=True)
class Letters(Part):
    """The server writes to each client by name, and the client answers."""

    def send(self, server, client):
        return {"number": torch.tensor(float(SIZES[client]))}

    def uploads(self, model):
        return {"train": {"answer": PayloadSpec()}}

    def finish(self, client):
        return {"answer": client.payload(self)["number"] * 10}


def test_payload_is_written_for_each_client(replies, sent):
    session = play(start(Method((Letters(),))), 1)
    for client, n in SIZES.items():
        assert float(sent(session, 1)[client].payload["letters/number"]) == n
        assert float(replies(session, 1)[client].payload["letters/answer"]) == 10 * n
    assert not any(m.payload for m in session.transport.seen if m.task != "train")


def summed_loss(net, entries, data):
    load(net, entries)
    x, y = data.take(torch.arange(len(data)))
    with torch.no_grad():
        return float(F.cross_entropy(net.eval()(x).logits, y, reduction="sum"))


@pytest.mark.parametrize("scored", ["aggregated", "trained"])
def test_the_scored_model_is_the_aggregated_or_the_trained_one(scored, replies):
    session = play(start("fedavg", scored=scored), 2)
    server = session.server
    for client, update in replies(session, 2, "score").items():
        entries = server.shared if scored == "aggregated" else replies(session, 2)[client].shared
        data = session.federation.sites[client].data.test
        expected = summed_loss(server.net, entries, data)
        assert update.metrics["test/loss"] == pytest.approx(expected, rel=1e-5)


def test_a_client_that_has_not_trained_yet_is_scored_with_the_shared_model(replies):
    session = play(start("fedavg", scored="trained", clients_per_round=1), 1)
    (absent, *_) = sorted(SIZES.keys() - replies(session, 1).keys())
    data = session.federation.sites[absent].data.test
    expected = summed_loss(session.server.net, session.server.shared, data)
    found = replies(session, 1, "score")[absent].metrics["test/loss"]
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_new_site_is_refused_unless_private_entries_are_allowed():
    session = play(start("fedper", private_at_new_site="refuse"), 1)
    assert assemble(session.server, session.transport, session.record) is None
    assert set(session.record.metrics[-1]["scores"]) == {"personal"}
    plain = play(
        start("fedavg", private_at_new_site="refuse"), 1
    )  # nothing private, nothing to refuse
    assert "unseen" in plain.record.metrics[-1]["scores"]


@pytest.mark.parametrize("private_at_new_site", ["initial", "mean"])
def test_a_new_site_gets_initial_or_mean_private_entries(private_at_new_site):
    session = play(start("fedper", private_at_new_site=private_at_new_site), 2)
    model = assemble(session.server, session.transport, session.record)
    store = worker(session).store
    for key in ("head.weight", "head.bias"):
        heads = [store.load(c, before=3)["net"][key].numpy() for c in SIZES]
        if private_at_new_site == "initial":
            assert torch.equal(model[key], session.server.initial[key])
        else:
            np.testing.assert_allclose(model[key], np.mean(heads, axis=0), rtol=1e-5, atol=1e-7)
    for key, value in session.server.shared.items():
        assert torch.equal(model[key], value)


def test_a_new_site_gets_the_mean_of_the_personal_entries():
    session = play(start(Method((OwnHead(),))), 1)
    model = assemble(session.server, session.transport, session.record)
    heads = [session.server.personal_of(c)["head.bias"].numpy() for c in SIZES]
    np.testing.assert_allclose(model["head.bias"], np.mean(heads, axis=0), rtol=1e-5, atol=1e-7)


@dataclass(frozen=True)
class Census(Part):
    """Counts the classes once, and tells the server."""

    def uploads(self, model):
        return {"enrol": {"counts": PayloadSpec((model.classes,), torch.int64, low=0)}}

    def enrol(self, client):
        return {"counts": client.site.data.train.labels.bincount(minlength=4)}

    def admit(self, server, enrolments):
        total = sum(e.payload["census/counts"] for e in enrolments)
        server.state[self.name] = {"total": total}


def test_enrolment_reaches_the_server_once_before_round_1():
    session = start(Method((Census(),)))
    # labels go 0 1 2 3 0 1 ...: 22 dark samples are 6 6 5 5, 13 bright ones 4 3 3 3
    assert session.server.state["census"]["total"].tolist() == [10, 9, 8, 8]
    play(session, 1)
    assert sum(isinstance(m, Broadcast) and m.task == "train" for m in session.transport.seen) == 4


@dataclass(frozen=True)
class Shift(Part):
    """A server phase: adds one to the aggregated head."""

    def refine(self, server):
        server.shared = server.shared | {"head.bias": server.shared["head.bias"] + 1.0}


def test_the_server_phase_follows_the_aggregation():
    plain, shifted = play(start("fedavg"), 1), play(start(Method((Shift(),))), 1)
    a, b = (s.server.shared["head.bias"] for s in (plain, shifted))
    assert torch.equal(b, a + 1.0)


def test_replies_come_largest_client_first_whatever_the_order_of_their_arrival():
    session = start("fedavg")
    session.transport = RecordingTransport(worker(session), backwards=True)
    server = session.server
    found = exchange(server, session.transport, "score", list(SIZES), session.record)
    assert [u.client for u in found] == sorted(SIZES, key=lambda c: (-SIZES[c], c))


def test_domains_are_told_only_if_granted():
    told, untold = start("fedavg"), start("fedavg", allow=("client_val",))
    assert {u.facts.get("domain") for u in told.server.roster.values()} == {"dark", "bright"}
    assert all(u.facts == {} for u in untold.server.roster.values())


def test_examples_are_those_of_the_training_split():
    session = start("fedavg")
    assert {c: u.examples for c, u in session.server.roster.items()} == SIZES


class Diary(Part):
    """Writes at enrolment, reads in every visit."""

    def uploads(self, model):
        return {"train": {"seen": PayloadSpec()}}

    def enrol(self, client):
        client.state[self.name]["seen"] = torch.tensor(float(client.examples))
        return {}

    def finish(self, client):
        return {"seen": client.state[self.name]["seen"]}


def test_what_a_part_writes_at_enrolment_is_there_in_every_visit(tmp_path):
    for path in (None, tmp_path / "run"):
        session = start(Method((Diary(),)), path=path)
        for _ in range(2):
            session.advance()
        messages = [m.payload for m in session.transport.seen]
        seen = [payload["diary/seen"] for payload in messages if "diary/seen" in payload]
        assert sorted(set(map(float, seen))) == [6.0, 7.0, 11.0]
        assert len(seen) == 8


class Curious(Part):
    """Tells how many target inputs a client may see, and their labels."""

    needs = frozenset({"client_target_unlabelled"})

    def uploads(self, model):
        return {"train": {"labels": PayloadSpec((Size("n", most=99),), torch.int64)}}

    def finish(self, client):
        return {"labels": client.resources["client_target_unlabelled"].labels}


def test_the_targets_inputs_reach_clients_without_labels_and_only_if_allowed():
    method = Method((Curious(),))
    with pytest.raises(NotAllowedError, match="add 'client_target_unlabelled'"):
        start(method)
    session = start(method, allow=("client_target_unlabelled",))
    session.advance()
    told = [m.payload["curious/labels"] for m in session.transport.seen if m.payload]
    assert len(told) == 4
    assert all(labels.tolist() == [-1] * 12 for labels in told)
    assert start("fedavg").transport.worker.resources == {}


def test_a_part_cannot_take_the_cores_names():
    class Net(Part):
        """Badly named."""

    with pytest.raises(ClashError, match="cannot be called 'net'"):
        Method((Net(),))
