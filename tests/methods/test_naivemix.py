"""Yoon et al., ICLR 2021, Section 3.2: means of samples, and mixup with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.loop import Batch
from fedshift.core.registry import build
from fedshift.methods.naivemix import MeanMixing, MeanPool, group_means
from fedshift.testing import play, start

POOL = MeanPool().name


@pytest.fixture
def visit(open_client):
    session = play(start("naivemix"), 1)
    client = open_client(session, "dark-0")
    x, y = client.site.data.train.take(torch.arange(6))
    return client, Batch(x, y)


def test_means_are_over_groups_and_a_rest_is_left_out():
    x, y = torch.arange(14.0).view(7, 2), torch.eye(7)
    means, labels = group_means(x, y, 3)
    np.testing.assert_allclose(means.numpy(), [[2, 3], [8, 9]])
    assert labels[0].tolist() == pytest.approx([1 / 3] * 3 + [0] * 4)
    few, _ = group_means(x, y, 20)
    np.testing.assert_allclose(few.numpy(), x.numpy().mean(0, keepdims=True))


def test_a_mean_over_everything_is_the_clients_mean():
    session = start("naivemix[group=50]")
    play(session, 1)
    for client, site in session.federation.sites.items():
        x, y = site.data.train.take(torch.arange(len(site.data.train)))
        told = session.server.state[POOL]
        torch.testing.assert_close(told[f"x/{client}"], x.mean(0, keepdim=True))
        share = torch.bincount(y, minlength=4) / len(y)
        torch.testing.assert_close(told[f"y/{client}"], share[None])


def test_each_sample_is_in_one_mean_at_most():
    """11 samples in means of 5: two means, whose labels count 10 samples."""
    session = play(start("naivemix"), 1)
    labels = session.server.state[POOL]["y/dark-0"] * 5
    assert labels.shape == (2, 4)
    torch.testing.assert_close(labels, labels.round())
    held = torch.bincount(session.federation.sites["dark-0"].data.train.labels, minlength=4)
    assert (labels.sum(0) <= held + 1e-4).all()
    assert float(labels.sum()) == pytest.approx(10)


def test_a_client_gets_the_means_of_the_others(visit):
    client, _ = visit
    server = play(start("naivemix"), 1).server
    kept, sent = server.state[POOL], client.payload(MeanPool())
    others = [kept[f"x/{c}"] for c in ("bright-0", "bright-1", "dark-1")]
    assert torch.equal(sent["x"], torch.cat(others))


def test_a_message_carries_some_of_them_with_their_labels_and_others_in_the_next_round():
    session = play(start("naivemix[per_round=2, group=2]"), 1)
    server, part = session.server, session.server.method.parts[0]
    every = MeanPool(per_round=0).send(server, "dark-0")
    told = []
    for round_ in range(1, 6):
        server.round = round_
        sent = part.send(server, "dark-0")
        rows = [int((every["x"] == x).flatten(1).all(1).nonzero()) for x in sent["x"]]
        assert torch.equal(sent["y"], every["y"][rows])
        assert len(set(rows)) == 2
        told.append(tuple(rows))
    assert len(set(told)) > 1


def test_inputs_and_labels_are_mixed_with_the_same_mean(visit):
    client, batch = visit
    pool = client.payload(MeanPool())
    out = MeanMixing(lam=0.3).batch(client, batch)
    x, onehot = batch.x.numpy(), np.eye(4)[batch.y.numpy()]
    mean = (out.x.numpy() - 0.7 * x) / 0.3  # the same row for all
    gaps = np.abs(pool["x"].numpy() - mean[0]).max((1, 2, 3))
    row = int(gaps.argmin())
    np.testing.assert_allclose(mean, np.broadcast_to(pool["x"][row].numpy(), x.shape), atol=1e-4)
    np.testing.assert_allclose(
        out.y.numpy(), 0.7 * onehot + 0.3 * pool["y"][row].numpy(), atol=1e-6
    )


def test_without_a_share_of_the_mean_the_batch_is_the_clients_own(visit):
    client, batch = visit
    out = MeanMixing(lam=0.0).batch(client, batch)
    assert torch.equal(out.x, batch.x)
    assert torch.equal(out.y, torch.eye(4)[batch.y])


def test_mixing_without_a_pool_says_what_to_add():
    with pytest.raises(ConfigError, match=r"add \+ mean-pool"):
        play(start(build("naivemix").without("mean-pool")), 1)
