"""Cubuk et al., 2020: each operation against a line of NumPy or PIL, and how they are drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from fedshift.core.loop import Batch
from fedshift.core.registry import build
from fedshift.methods.randaugment.method import RandAugment
from fedshift.methods.randaugment.operations import OPERATIONS, augmented
from fedshift.testing import play, start

NAMES = [*OPERATIONS]
LEVELLED = [n for n in NAMES if n not in ("identity", "auto-contrast", "equalise")]


@pytest.fixture
def images():
    stored = np.random.default_rng(0).integers(20, 220, (3, 3, 12, 12))
    return torch.from_numpy(stored / 255).float()


def applied(name, x, level):
    """One operation on all images, as bytes (B, H, W, C)."""
    out = augmented(x, torch.full((len(x),), NAMES.index(name)), torch.full((len(x),), level))
    return (out * 255).round().permute(0, 2, 3, 1).numpy()


def pil(x, change):
    stored = (x * 255).round().byte().permute(0, 2, 3, 1).numpy()
    return np.stack([np.asarray(change(Image.fromarray(image))) for image in stored]).astype(float)


PIL = {
    "auto-contrast": (0.3, ImageOps.autocontrast),
    "posterise": (0.75, lambda im: ImageOps.posterize(im, 5)),
    "solarise": (0.4, lambda im: ImageOps.solarize(im, 154)),
    "brightness": (0.5, lambda im: ImageEnhance.Brightness(im).enhance(1.45)),
    "colour": (-0.5, lambda im: ImageEnhance.Color(im).enhance(0.55)),
    "contrast": (0.5, lambda im: ImageEnhance.Contrast(im).enhance(1.45)),
    "sharpness": (-1.0, lambda im: ImageEnhance.Sharpness(im).enhance(0.1)),
}


@pytest.mark.parametrize("name", PIL)
def test_an_operation_on_pixels_is_pils(images, name):
    """PIL rounds to bytes in between, so a pixel may differ by one or two of 255."""
    level, change = PIL[name]
    np.testing.assert_allclose(applied(name, images, level), pil(images, change), atol=2)


def test_equalised_values_are_ranks(images):
    found = augmented(images, torch.full((3,), NAMES.index("equalise")), torch.zeros(3)).numpy()
    x = images.numpy().reshape(9, -1)
    below = (x[:, :, None] > x[:, None, :]).sum(2)
    expected = below / below.max(1, keepdims=True)
    np.testing.assert_allclose(found.reshape(9, -1), expected, atol=1e-6)


def test_translations_move_by_pixels_and_leave_black(images):
    level = 3 / 12 / 0.45  # three of twelve columns
    right = augmented(images, torch.full((3,), NAMES.index("translate-x")), torch.full((3,), level))
    np.testing.assert_allclose(right[..., :9].numpy(), images[..., 3:].numpy(), atol=1e-5)
    assert not right[..., 9:].any()
    down = augmented(images, torch.full((3,), NAMES.index("translate-y")), torch.full((3,), -level))
    np.testing.assert_allclose(down[..., 3:, :].numpy(), images[..., :9, :].numpy(), atol=1e-5)


def test_shears_move_each_row_by_its_distance_from_the_middle():
    x = torch.zeros(1, 1, 8, 9)
    x[..., 4] = 1.0  # a column
    level = torch.tensor([1.0])
    found = augmented(x, torch.tensor([NAMES.index("shear-x")]), level)
    place = (found[0, 0] * torch.arange(9.0)).sum(1) / found[0, 0].sum(1)
    expected = 4 - 0.3 * (torch.arange(8.0) + 0.5 - 4)
    np.testing.assert_allclose(place.numpy(), expected.numpy(), atol=1e-4)
    turned = augmented(x.mT.contiguous(), torch.tensor([NAMES.index("shear-y")]), level)
    np.testing.assert_allclose(turned.mT.numpy(), found.numpy(), atol=1e-5)


def test_rotation_by_90_degrees_turns_the_image(images):
    """The level is out of range on purpose: 3 times 30 degrees."""
    found = augmented(images, torch.full((3,), NAMES.index("rotate")), torch.full((3,), 3.0))
    np.testing.assert_allclose(found.numpy(), np.rot90(images.numpy(), axes=(2, 3)), atol=1e-4)


@pytest.mark.parametrize("name", LEVELLED)
def test_at_level_zero_an_operation_changes_nothing(images, name):
    found = augmented(images, torch.full((3,), NAMES.index(name)), torch.zeros(3))
    np.testing.assert_allclose(found.numpy(), images.numpy(), atol=1e-5)


def test_with_no_operation_it_is_fedavg(same):
    plain, found = play(start("fedavg"), 2), play(start(build("randaugment", operations=0)), 2)
    same(plain.server.shared, found.server.shared)


def test_a_batch_is_changed_within_the_range_of_pixels_and_keeps_its_labels(open_client):
    client = open_client(start("randaugment"), "dark-0")
    x, y = client.site.data.train.take(torch.arange(8))
    out = RandAugment(magnitude=30).batch(client, Batch(x, y))
    assert torch.equal(out.y, y)
    assert out.x.shape == x.shape
    assert float(out.x.abs().max()) <= 2 + 1e-5  # pixels 0 and 1 of "centred"
    assert not torch.equal(out.x, RandAugment(magnitude=30).batch(client, Batch(x, y)).x)


def test_what_an_operation_leaves_alone_reaches_the_net_as_before(open_client):
    """At magnitude 0 only auto-contrast and equalise change an image."""
    client = open_client(start("randaugment"), "dark-0")
    x, y = client.site.data.train.take(torch.arange(8))
    generator = torch.Generator()
    generator.set_state(client.generator("rand-augment").get_state())
    drawn = torch.randint(len(NAMES), (8,), generator=generator)
    kept = [i for i, k in enumerate(drawn) if NAMES[k] not in ("auto-contrast", "equalise")]
    assert kept
    out = RandAugment(operations=1, magnitude=0.0).batch(client, Batch(x, y))
    np.testing.assert_allclose(out.x[kept].numpy(), x[kept].numpy(), atol=1e-4)
