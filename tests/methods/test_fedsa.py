"""Zhou et al., AAAI 2025: fixed anchors align features and heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base import seeds
from fedshift.core.loop import Batch, Step
from fedshift.core.message import Update
from fedshift.core.net import Output
from fedshift.core.registry import build
from fedshift.methods.fedsa import SemanticAnchors, mean_gap, random_anchors
from fedshift.testing import play, start

NAME = SemanticAnchors().name


def test_anchors_are_not_negative_and_every_dimension_is_normalised_over_the_classes():
    """Before the last ReLU each column has mean 0, so at most K - 1 of K classes are above it."""
    with seeds.fork(0):
        a = random_anchors(5, 64).numpy()
    assert a.shape == (5, 64)
    assert (a >= 0).all()
    assert ((a > 0).sum(0) <= 4).all()
    assert ((a**2).mean(0) <= 1 + 1e-5).all()  # the variance before it is 1


def test_the_gap_is_the_mean_distance_to_the_nearest_neighbour():
    means = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0], [12.0, 5.0]])
    assert float(mean_gap(means)) == pytest.approx((5 + 1 + 1 + 9) / 4)
    assert float(mean_gap(means[:1])) == 0.0


def cross_entropy(scores, y):
    return np.mean(np.log(np.exp(scores).sum(1)) - scores[np.arange(len(y)), y])


def term(part, open_client, own=None):
    """The part's loss on given features and anchors, and the same by its formula."""
    session = start("fedsa")
    client = open_client(session, "dark-0")
    rng = np.random.default_rng(3)
    width, y = session.server.model.features, np.array([0, 3, 1, 1, 2])
    z, a = rng.normal(size=(5, width)), rng.normal(size=(4, width))
    client.inbox = {f"{NAME}/anchors": torch.from_numpy(a).float()}
    if own is not None:
        client.state[NAME] = {"gap": torch.tensor(own)}
    out = Output(torch.zeros(5, 4), torch.from_numpy(z).float())
    found = part.loss(client, Step(Batch(torch.zeros(5, 1), torch.from_numpy(y)), out, "model"))
    far = np.linalg.norm(z[:, None] - a, axis=2)
    between = np.linalg.norm(a[:, None] - a, axis=2) + 1e9 * np.eye(4)
    gap = max(own or 0.0, between.min(1).mean())
    head = client.net.head_module
    logits = a @ head.weight.detach().double().numpy().T + head.bias.detach().double().numpy()
    terms = {
        "lam": ((z - a[y]) ** 2).mean(),
        "mcl": cross_entropy(-(far + gap * np.eye(4)[y]), y),
        "cc": cross_entropy(logits, np.arange(4)),
    }
    return float(found.detach()), sum(getattr(part, k) * v for k, v in terms.items())


@pytest.mark.parametrize(
    ("weights", "own"),
    [((1, 0, 0), None), ((0, 2, 0), None), ((0, 1, 0), 99.0), ((0, 0, 3), None), ((1, 1, 1), 0.1)],
)
def test_each_term_is_its_formula(open_client, weights, own):
    part = SemanticAnchors(**dict(zip(("lam", "mcl", "cc"), weights, strict=True)))
    found, expected = term(part, open_client, own)
    assert found == pytest.approx(expected, rel=1e-5)


def test_anchors_move_a_little_to_the_mean_of_the_clients_means():
    part, server = SemanticAnchors(ema=0.75), start("fedsa").server
    width = server.model.features
    before = part.send(server, "dark-0")["anchors"].numpy().copy()
    rows = {"a": [[1.0] * width, [2.0] * width], "b": [[4.0] * width, [6.0] * width]}
    owners = {"a": [0, 2], "b": [2, 3]}
    part.merge(
        server,
        [
            Update(
                c,
                "train",
                1,
                payload={
                    f"{NAME}/means": torch.tensor(rows[c]),
                    f"{NAME}/owners": torch.tensor(owners[c]),
                },
            )
            for c in "ab"
        ],
    )
    expected = before.copy()
    for c, mean in ((0, 1.0), (2, 3.0), (3, 6.0)):
        expected[c] = 0.75 * before[c] + 0.25 * mean
    np.testing.assert_allclose(part.send(server, "dark-0")["anchors"], expected, rtol=1e-5)
    assert server.state[NAME]["prototypes"][:, 0].tolist() == [1.0, 0.0, 3.0, 6.0]


def test_with_zero_weights_fedsa_is_fedavg(same):
    fedavg = play(start("fedavg"), 2)
    fedsa = play(start(build("fedsa", lam=0.0, mcl=0.0, cc=0.0)), 2)
    same(fedavg.server.shared, fedsa.server.shared)


def test_the_gap_of_the_last_visit_is_kept_at_the_client(state_of, replies):
    session = play(start("fedsa"), 1)
    for update in replies(session, 1):
        means = update.payload[f"{NAME}/means"].double().numpy()
        far = np.linalg.norm(means[:, None] - means, axis=2) + 1e9 * np.eye(len(means))
        kept = state_of(session, update.client, NAME)["gap"]
        assert float(kept) == pytest.approx(far.min(1).mean(), rel=1e-4)
        assert not any("counts" in key for key in update.payload)
