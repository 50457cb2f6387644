"""Huang et al., CVPR 2023: cluster prototypes, their contrast and the pull to their mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.base.errors import ConfigError
from fedshift.core.loop import Batch, Step
from fedshift.core.message import Update
from fedshift.core.net import Output, load
from fedshift.core.registry import build
from fedshift.methods.fpl.method import ClusterPrototypes
from fedshift.methods.fpl.prototypes import cluster_prototypes, consistency, contrast
from fedshift.methods.shared.class_means import class_means, shares_of
from fedshift.testing import finite_and_moving, in_process_equals_bytes, play, start

NAME = ClusterPrototypes().name
K = 5
OWNERS = np.array([0, 0, 1, 3, 3, 3])  # classes 2 and 4 have no prototype
Y = np.array([0, 3, 1, 2, 3, 0, 4])


def contrast_of(z, y, prototypes, owners, tau):
    """Sample by sample; one without a prototype of its class adds 0."""
    total = 0.0
    for z_i, y_i in zip(z, y, strict=True):
        cosines = prototypes @ z_i / np.linalg.norm(prototypes, axis=1) / np.linalg.norm(z_i)
        e = np.exp(cosines / tau)
        if (owners == y_i).any():
            total -= np.log(e[owners == y_i].sum() / e.sum())
    return total / len(z)


def consistency_of(z, y, prototypes, owners):
    total = 0.0
    for z_i, y_i in zip(z, y, strict=True):
        if (owners == y_i).any():
            total += ((z_i - prototypes[owners == y_i].mean(0)) ** 2).mean()
    return total / len(z)


@pytest.fixture
def given():
    rng = np.random.default_rng(0)
    return rng.normal(size=(len(Y), 4)), rng.normal(size=(len(OWNERS), 4)) * 3


def tensors(z, prototypes):
    shares = shares_of(torch.from_numpy(Y), K).double()
    return torch.from_numpy(z), shares, torch.from_numpy(prototypes), torch.from_numpy(OWNERS)


def slope(fn, z, i, j, h=1e-6):
    """Central difference in one coordinate."""
    e = np.zeros_like(z)
    e[i, j] = h
    return (fn(z + e) - fn(z - e)) / (2 * h)


@pytest.mark.parametrize("tau", [0.02, 0.2, 1.0])
def test_the_contrast_sums_over_the_prototypes_of_the_class(given, tau):
    found = contrast(*tensors(*given), tau)
    expected = contrast_of(given[0], Y, given[1], OWNERS, tau)
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_the_squared_distance_is_to_the_mean_prototype_of_the_class(given):
    found = consistency(*tensors(*given))
    assert float(found) == pytest.approx(consistency_of(given[0], Y, given[1], OWNERS), rel=1e-9)


@pytest.mark.parametrize("term", ["contrast", "consistency"])
def test_gradients_are_those_of_the_formulas(given, term):
    z, prototypes = given
    z_, shares, p, owners = tensors(z, prototypes)
    z_.requires_grad_()
    if term == "contrast":
        contrast(z_, shares, p, owners, 0.2).backward()
        fn = lambda x: contrast_of(x, Y, prototypes, OWNERS, 0.2)  # noqa: E731
    else:
        consistency(z_, shares, p, owners).backward()
        fn = lambda x: consistency_of(x, Y, prototypes, OWNERS)  # noqa: E731
    expected = [[slope(fn, z, i, j) for j in range(z.shape[1])] for i in range(len(z))]
    np.testing.assert_allclose(z_.grad.numpy(), expected, rtol=1e-5, atol=1e-8)
    assert not z_.grad[torch.from_numpy(np.isin(Y, (2, 4)))].any()  # no prototype, no pull


def test_a_low_temperature_stays_finite_in_single_precision():
    """Features opposite to their prototype: e^{-2/tau} is far below the smallest float."""
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    prototypes, owners = torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
    term = contrast(z, shares_of(torch.tensor([0, 0]), 2), prototypes, owners, 0.01)
    term.backward()
    assert float(term.detach()) == pytest.approx((200 + np.log(2)) / 2, rel=1e-5)
    assert bool(z.grad.isfinite().all())


def test_one_class_with_prototypes_leaves_nothing_to_contrast(given):
    z, shares, p, _ = tensors(*given)
    assert float(contrast(z, shares, p, torch.zeros(len(p), dtype=torch.int64), 0.1)) == 0.0


def test_a_mixed_target_has_mixed_terms(given):
    """Linear in the target for the contrast; the pull goes to the mixed prototype."""
    z, shares, p, owners = tensors(*given)
    hard = shares_of(torch.from_numpy(np.roll(Y, 1)), K).double()
    mixed = 0.3 * shares + 0.7 * hard
    parts = contrast(z, shares, p, owners, 0.5), contrast(z, hard, p, owners, 0.5)
    assert float(contrast(z, mixed, p, owners, 0.5)) == pytest.approx(
        float(0.3 * parts[0] + 0.7 * parts[1])
    )
    one, zero = torch.tensor([[0.25, 0.75]]).double(), torch.zeros(1, 4).double()
    pull = consistency(zero, one, p[[0, 2]], torch.tensor([0, 1]))
    target = 0.25 * given[1][0] + 0.75 * given[1][2]
    assert float(pull) == pytest.approx((target**2).mean())


def test_class_means_skip_classes_that_are_missing():
    z = np.random.default_rng(1).normal(size=(6, 3))
    y = np.array([4, 1, 4, 4, 1, 2])
    means, held = class_means(torch.from_numpy(z), shares_of(torch.from_numpy(y), K).double())
    assert held.tolist() == [1, 2, 4]
    np.testing.assert_allclose(means.numpy(), [z[y == c].mean(0) for c in (1, 2, 4)])


def test_classes_are_clustered_apart_and_clients_count_the_same():
    a, b = np.array([1.0, 0.1]), np.array([0.1, 1.0])
    means = np.stack([a, 2 * b, 3 * a, b, 7 * a, b, 5 * a])
    owners = np.array([2, 0, 2, 2, 0, 2, 4])
    found, classes = cluster_prototypes(torch.from_numpy(means), torch.from_numpy(owners))
    assert classes.tolist() == [0, 2, 2, 4]  # two means are one cluster, four are two pairs here
    np.testing.assert_allclose(found.numpy(), [(2 * b + 7 * a) / 2, 2 * a, b, 5 * a])


def test_with_zero_weights_fpl_is_fedavg(same):
    fedavg = play(start("fedavg"))
    fpl = play(start(build("fpl", lam_contrast=0.0, lam_consistency=0.0)))
    same(fedavg.server.shared, fpl.server.shared)


def test_round_1_is_fedavg_and_round_2_is_not(same):
    fedavg, fpl = play(start("fedavg"), 1), play(start("fpl"), 1)
    same(fedavg.server.shared, fpl.server.shared)
    play(fedavg, 1), play(fpl, 1)
    moved = fpl.server.shared
    assert any(not torch.equal(v, moved[k]) for k, v in fedavg.server.shared.items())


def features(net, entries, data, *, train=False):
    load(net, entries)
    x, y = data.take(torch.arange(len(data)))
    z = net.train(train)(x).features.detach().double().numpy()
    return z, y.numpy()


def test_clients_send_class_means_of_the_trained_model_in_eval_mode(replies):
    session = play(start("fpl"), 2)
    for update in replies(session, 2):
        data = session.federation.sites[update.client].data.train
        z, y = features(session.server.net, update.shared, data)
        held = update.payload[f"{NAME}/owners"].tolist()
        assert held == np.unique(y).tolist()
        expected = [z[y == c].mean(0) for c in held]
        np.testing.assert_allclose(update.payload[f"{NAME}/means"], expected, rtol=1e-4, atol=1e-5)


def test_train_pass_averages_the_last_epoch_while_the_weights_move(replies):
    """Two epochs of one batch: the features are those after one step, in train mode."""
    session = start(build("fpl", train_pass=True), epochs=2, batch_size=64)
    net, lr = session.server.net, session.server.scenario.lr
    play(session, 1)
    for update in replies(session, 1):
        data = session.federation.sites[update.client].data.train
        load(net, session.server.initial)
        x, y = data.take(torch.arange(len(data)))
        gradients = torch.autograd.grad(
            F.cross_entropy(net.train()(x).logits, y), list(net.parameters())
        )
        moved = {
            k: p.detach() - lr * g
            for (k, p), g in zip(net.named_parameters(), gradients, strict=True)
        }
        z, y = features(net, moved, data, train=True)
        expected = [z[y == c].mean(0) for c in np.unique(y)]
        np.testing.assert_allclose(update.payload[f"{NAME}/means"], expected, rtol=1e-3, atol=1e-4)


def test_train_pass_takes_every_batch_of_the_last_epoch_and_keeps_nothing(open_client):
    part = ClusterPrototypes(train_pass=True)
    client = open_client(start("fpl"), "dark-0")  # 11 samples in batches of 4: 3 an epoch
    assert client.examples == 11
    rng = np.random.default_rng(2)
    batches = [(rng.normal(size=(4, 3)), rng.integers(0, 4, 4)) for _ in range(6)]
    for index, (z, y) in enumerate(batches):
        batch = Batch(torch.zeros(4, 1), torch.from_numpy(y), index)
        out = Output(torch.zeros(4, 4), torch.from_numpy(z).float())
        assert part.loss(client, Step(batch, out, "model")) is None
    found = part.finish(client)
    z, y = (np.concatenate(v) for v in zip(*batches[3:], strict=True))
    expected = [z[y == c].mean(0) for c in np.unique(y)]
    np.testing.assert_allclose(found["means"], expected, rtol=1e-5, atol=1e-6)
    assert not client.state[NAME]


def told(client, means, owners):
    payload = {f"{NAME}/means": torch.tensor(means), f"{NAME}/owners": torch.tensor(owners)}
    return Update(client, "train", 1, payload=payload)


def test_the_server_sends_the_clusters_of_this_rounds_participants():
    part, server = ClusterPrototypes(), start("fpl").server
    assert part.send(server, "dark-0") == {}
    part.merge(server, [told("dark-0", [[9.0, 9.0]], [1])])
    part.merge(
        server,
        [told("bright-0", [[1.0, 2.0], [0.0, 1.0]], [0, 3]), told("dark-1", [[3.0, 4.0]], [0])],
    )
    sent = part.send(server, "dark-0")
    assert sent["owners"].tolist() == [0, 3]
    assert sent["prototypes"].tolist() == [[2.0, 3.0], [0.0, 1.0]]


def test_prototypes_follow_partial_participation(replies):
    session = play(start("fpl", clients_per_round=2), 2)
    first = replies(session, 1)
    assert len(first) == 2
    messages = [m for m in session.transport.seen if m.task == "train" and m.round == 2]
    broadcasts = [m for m in messages if not hasattr(m, "steps")]
    assert len(broadcasts) == 2
    rows = {c: [] for c in range(4)}
    for update in first:
        means = update.payload[f"{NAME}/means"].numpy()
        for c, mean in zip(update.payload[f"{NAME}/owners"].tolist(), means, strict=True):
            rows[c].append(mean)
    expected = [np.mean(r, axis=0) for r in rows.values() if r]  # two means are one cluster
    for message in broadcasts:
        np.testing.assert_allclose(message.payload[f"{NAME}/prototypes"], expected, rtol=1e-5)


def term(part, given, open_client):
    session = start("fpl")
    client = open_client(session, "dark-0")
    z, p = (torch.from_numpy(v).float() for v in given)
    y = torch.from_numpy(np.minimum(Y, 3))  # four classes here
    client.inbox = {f"{NAME}/prototypes": p, f"{NAME}/owners": torch.from_numpy(OWNERS)}
    step = Step(Batch(torch.zeros(len(z), 1), y), Output(torch.zeros(len(z), 4), z), "model")
    return part.loss(client, step), z.double().numpy(), p.double().numpy(), y.numpy()


def test_the_term_is_the_weighted_sum(given, open_client):
    part = ClusterPrototypes(tau=0.3, lam_contrast=2.0, lam_consistency=0.5)
    found, z, p, y = term(part, given, open_client)
    expected = 2.0 * contrast_of(z, y, p, OWNERS, 0.3) + 0.5 * consistency_of(z, y, p, OWNERS)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_the_squared_distance_can_be_summed_over_the_dimensions(given, open_client):
    part = ClusterPrototypes(lam_contrast=0.0, summed=True)
    found, z, p, y = term(part, given, open_client)
    assert float(found) == pytest.approx(4 * consistency_of(z, y, p, OWNERS), rel=1e-5)


def test_defaults_are_the_papers():
    part = build("fpl").parts[0]
    assert (part.tau, part.lam_contrast, part.lam_consistency) == (0.02, 1.0, 1.0)
    assert part.shares


def test_fpl_composes_with_mixup_a_private_norm_and_another_aggregator():
    finite_and_moving("fpl + mixup + fedbn + fedheal")
    in_process_equals_bytes("fpl[train_pass=true] + mixup + fedheal")


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ConfigError, match=r"cluster-prototypes.tau is 0.0; it must be at least"):
        build("fpl", tau=0.0)
