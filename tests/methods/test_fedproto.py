"""Tan et al., AAAI 2022: class means of all clients pull features, and may classify."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.loop import Batch, Step
from fedshift.core.message import Update
from fedshift.core.net import Output
from fedshift.core.registry import build
from fedshift.methods.fedproto import GlobalPrototypes
from fedshift.methods.fedtgp import TrainablePrototypes
from fedshift.methods.shared.class_means import pool_means
from fedshift.methods.shared.prototypes import pull
from fedshift.testing import everything, play, start

NAME = GlobalPrototypes().name
TOLD = [  # two clients share class 1; class 3 is nobody's
    {"means": [[1.0, 2.0], [4.0, 0.0]], "owners": [0, 1], "counts": [3.0, 1.0]},
    {"means": [[0.0, 8.0], [5.0, 5.0]], "owners": [1, 2], "counts": [3.0, 2.0]},
]


def trees():
    return [{k: torch.tensor(v) for k, v in told.items()} for told in TOLD]


def updates():
    named = [{f"{NAME}/{k}": v for k, v in told.items()} for told in trees()]
    return [Update(c, "train", 1, payload=p) for c, p in zip("ab", named, strict=True)]


def test_a_prototype_is_the_mean_over_all_samples_of_its_class():
    by_count, known = pool_means(trees(), 4, by_count=True)
    assert by_count[:3].tolist() == [[1.0, 2.0], [1.0, 6.0], [5.0, 5.0]]  # (1*4 + 3*0)/4, (3*8)/4
    uniform, _ = pool_means(trees(), 4, by_count=False)
    assert uniform[1].tolist() == [2.0, 4.0]
    assert known.tolist() == [True, True, True, False]


def test_the_pull_is_the_squared_distance_to_the_prototype_of_the_class():
    rng = np.random.default_rng(0)
    z, prototypes, y = rng.normal(size=(5, 3)), rng.normal(size=(4, 3)), np.array([0, 1, 2, 3, 1])
    z_ = torch.from_numpy(z).requires_grad_()
    known = torch.tensor([True, True, True, False])
    term = pull(z_, torch.eye(4).double()[y], torch.from_numpy(prototypes), known)
    gaps = (z - prototypes[y]) * (y < 3)[:, None]
    assert float(term.detach()) == pytest.approx((gaps**2).mean(1).mean())
    term.backward()
    np.testing.assert_allclose(z_.grad.numpy(), 2 * gaps / 3 / 5, rtol=1e-9)


@pytest.mark.parametrize("part", [GlobalPrototypes(lam=3.0), TrainablePrototypes()])
def test_the_term_is_the_weight_times_the_pull(open_client, part):
    """Features 2 away in each of D dimensions: the mean square is 4."""
    client = open_client(start("fedproto"), "dark-0")
    prototypes, y = torch.arange(4.0)[:, None].expand(4, 5), torch.tensor([0, 3, 1])
    client.inbox = {f"{part.name}/prototypes": prototypes, f"{part.name}/known": torch.ones(4) > 0}
    out = Output(torch.zeros(3, 4), prototypes[y] + 2.0)
    term = part.loss(client, Step(Batch(torch.zeros(3, 1), y), out, "model"))
    assert float(term) == pytest.approx(4.0 * part.lam)


def test_with_zero_weight_fedproto_is_fedavg_and_round_1_always_is(same):
    plain, zero, one = (play(start(m), 1) for m in ("fedavg", build("fedproto", lam=0), "fedproto"))
    same(plain.server.shared, one.server.shared)
    play(plain), play(zero), play(one)
    same(plain.server.shared, zero.server.shared)
    assert any(not torch.equal(v, one.server.shared[k]) for k, v in plain.server.shared.items())


def test_without_shared_weights_and_pull_each_site_trains_as_alone(state_of, same):
    alone = play(start("local"), 2)
    apart = play(start(build("fedproto", share_model=False, lam=0.0)), 2)
    same(state_of(alone, "dark-0", "net"), state_of(apart, "dark-0", "net"))
    assert not apart.server.shared


def test_a_class_that_nobody_brings_keeps_its_prototype():
    part, server = GlobalPrototypes(), start("fedproto").server
    part.merge(server, updates())
    part.merge(server, updates()[:1])  # now without class 2
    sent = part.send(server, "dark-0")
    assert sent["prototypes"].tolist() == [[1.0, 2.0], [4.0, 0.0], [5.0, 5.0], [0.0, 0.0]]
    assert sent["known"].tolist() == [True, True, True, False]


def test_the_nearest_known_prototype_classifies():
    session = start(build("fedproto", classifier="prototype"))
    server, x = session.server, torch.zeros(1, 3, 8, 8)
    z = server.net.eval()(x).features.detach()
    offsets = torch.tensor([3.0, 1.0, 2.0, 0.0])[:, None] / z.shape[1] ** 0.5
    known = torch.tensor([True, True, True, False])
    server.state[NAME] = {"prototypes": z + offsets, "known": known}
    found = server.method.predict(server.net, server.scoring(), x)[0].detach()
    np.testing.assert_allclose(found[:3], [-3, -1, -2], rtol=1e-5)
    assert float(found[3]) == -1e9


def test_private_models_are_scored_at_their_sites_by_the_prototypes():
    whole = build("fedproto", share_model=False, classifier="prototype")
    scores = play(start(whole), 1).record.metrics[-1]["scores"]
    assert {"personal", "global"} <= scores.keys()


def test_counts_travel_only_where_they_weigh(replies):
    for uniform in (False, True):
        session = play(start(build("fedproto", uniform=uniform)), 1)
        for update in replies(session, 1):
            assert (f"{NAME}/counts" in update.payload) is not uniform


def test_another_classifier_is_refused():
    with pytest.raises(ConfigError, match="classifier is 'knn'; it takes one of head, prototype"):
        build("fedproto", classifier="knn")


def test_mixed_samples_have_mixed_prototypes():
    assert all(v.isfinite().all() for v in everything(play(start("fedproto + mixup"), 2)).values())
