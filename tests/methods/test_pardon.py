"""Nguyen et al., ICDCS 2025: the interpolated style, and the loss on features that are inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core.loop import Batch, Step
from fedshift.core.registry import build
from fedshift.methods.pardon.method import InterpolatedStyle, other_class, triplet
from fedshift.methods.pardon.styles import interpolated_style, local_style
from fedshift.testing import play, start

NAME = InterpolatedStyle().name
LINEAR = {"backbone": "linear", "backbone_options": {}}  # its features are the inputs


@pytest.fixture
def visit(open_client):
    client = open_client(play(start("pardon", **LINEAR), 1), "dark-0")
    return client, Batch(*client.site.data.train.take(torch.arange(6)))


def test_every_cluster_of_images_counts_the_same():
    """Three images of one look and two of another: the mean of two means, not of five."""
    a, b = np.array([[2.0, 0.1], [0.5, 0.4]]), np.array([[-1.0, 3.0], [0.2, 0.8]])
    jitter = np.random.default_rng(0).normal(0, 1e-4, (5, 2, 2))
    found = local_style(torch.from_numpy(np.stack([a] * 3 + [b] * 2) + jitter)).numpy()
    mean = (a[0] + b[0]) / 2
    second = (a[1] ** 2 + a[0] ** 2 + b[1] ** 2 + b[0] ** 2) / 2
    np.testing.assert_allclose(found, [mean, np.sqrt(second - mean**2)], rtol=1e-2)


def test_the_interpolated_style_is_the_median_of_clusters():
    """Three groups of alike clients, of two, two and four: each counts once."""
    groups = np.array([[[9.0, 0.1], [1.0, 1.0]], [[0.1, 9.0], [1.0, 2.0]], [[-8.0, -7.0], [3, 1]]])
    styles = np.repeat(groups, (2, 2, 4), 0) + np.random.default_rng(0).normal(0, 1e-3, (8, 2, 2))
    found = interpolated_style(torch.from_numpy(styles)).numpy()
    np.testing.assert_allclose(found, np.median(groups, 0), atol=0.01)


def test_the_triplet_loss_is_that_of_normalised_features():
    a, p, n = np.random.default_rng(0).normal(size=(3, 5, 4))

    def unit(z):
        return z / np.linalg.norm(z, axis=1, keepdims=True)

    near, far = (np.linalg.norm(unit(a) - unit(z), axis=1) for z in (p, n))
    expected = np.maximum(0, near - far + 0.3).mean()
    found = triplet(*map(torch.from_numpy, (a, p, n)), 0.3)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_negatives_are_of_another_class_and_rows_without_one_are_left_out():
    y = torch.tensor([0, 0, 1, 2, 0])
    rows, drawn = other_class(y, torch.Generator().manual_seed(0))
    assert rows.tolist() == [0, 1, 2, 3, 4]
    assert (y[rows] != y[drawn]).all()
    assert len(other_class(torch.zeros(3), torch.Generator())[0]) == 0


def test_a_restyled_image_is_between_its_own_and_the_common_style(visit):
    client, batch = visit
    mean, std = client.payload(InterpolatedStyle())["style"].numpy()
    whole = InterpolatedStyle(alpha=1.0).restyled(client, batch.x * 0.2).numpy()
    np.testing.assert_allclose(whole.mean((2, 3)), np.tile(mean, (6, 1)), atol=0.02)
    np.testing.assert_allclose(whole.std((2, 3)), np.tile(std, (6, 1)), atol=0.02)
    none = InterpolatedStyle(alpha=0.0).restyled(client, batch.x)
    assert torch.equal(none, batch.x)
    half = InterpolatedStyle(alpha=0.5).restyled(client, batch.x * 0.2).numpy()
    np.testing.assert_allclose(half, (batch.x.numpy() * 0.2 + whole) / 2, atol=0.02)


def test_the_loss_has_both_terms_with_their_weights(visit):
    client, batch = visit
    state = client.generator(NAME).get_state()
    part = InterpolatedStyle(gamma=0.5, kappa=0.3, margin=2.0)  # so wide that it counts
    found = part.loss(client, Step(batch, client.net(batch.x), "model"))
    client.generator(NAME).set_state(state)
    z, other = (t.flatten(1).double() for t in (batch.x, part.restyled(client, batch.x)))
    client.generator(NAME).set_state(state)
    rows, drawn = other_class(batch.y, client.generator(NAME))
    squares = (z.numpy() ** 2 + other.numpy() ** 2).mean()
    contrast = float(triplet(z[rows], other[rows], other[drawn], 2.0))
    assert contrast > 0.1
    expected = 0.5 * contrast + 0.3 * squares
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_without_both_weights_it_is_fedavg(same):
    found = play(start(build("pardon", gamma=0.0, kappa=0.0)), 2)
    same(play(start("fedavg"), 2).server.shared, found.server.shared)
