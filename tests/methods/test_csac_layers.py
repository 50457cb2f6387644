"""Yuan et al., TKDE 2023: Eqs. 5 to 9 on their own, and the variants of Table 5."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.registry import BACKBONES
from fedshift.methods.csac import attention, discrepancy, layers
from fedshift.testing import start

R, B, C, D = 3, 5, 4, 6


@pytest.fixture
def pair():
    """Projected features of both sides, (R, B, C, d)."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(R, B, C, D)), 0.3 + rng.normal(size=(R, B, C, D))


def softmax(energy):
    return np.exp(energy) / np.exp(energy).sum(1, keepdims=True)


def attentions(a, b):
    """Eqs. 7 and 8 with the maps written out; averages over map and batch."""
    position, channel = np.zeros((R, R)), np.zeros((R, R))
    for m in range(R):
        for k in range(R):
            position[m, k] = np.mean([a[m, i].T @ b[k, i] for i in range(B)])
            channel[m, k] = np.mean([a[m, i] @ b[k, i].T for i in range(B)])
    return softmax(position), softmax(channel)


def mmd(x, y):
    """Unbiased MMD^2 of two batches (B, P) with five Gaussian kernels, sample by sample."""
    z, n = np.concatenate([x, y]), len(x)
    squared = np.array([[((u - v) ** 2).sum() for v in z] for u in z])
    k = sum(np.exp(-squared / (2 * 3.0**p * squared.mean())) for p in (-3, -2, -1, 0, 1))
    total = 0.0
    for i in range(n):
        for j in range(n):
            if i != j:
                total += (k[i, j] + k[n + i, n + j]) / (n * (n - 1))
            total -= 2 * k[i, n + j] / n**2
    return total


def pairs(a, b, differ):
    return np.array([[differ(x.reshape(B, -1), y.reshape(B, -1)) for y in b] for x in a])


def test_attention_is_equations_7_to_9(pair):
    position, channel = attentions(*pair)
    a, b = map(torch.from_numpy, pair)
    np.testing.assert_allclose(attention.position_attention(a, b), position, rtol=1e-9)
    np.testing.assert_allclose(attention.channel_attention(a, b), channel, rtol=1e-9)
    np.testing.assert_allclose(attention.both_attentions(a, b), (position + channel) / 2, rtol=1e-9)
    assert not np.allclose(position, channel)


def test_mmd_of_all_pairs_is_the_unbiased_estimate_of_each(pair):
    a, b = (torch.from_numpy(side).flatten(2) for side in pair)
    np.testing.assert_allclose(discrepancy.mmd(a, b).numpy(), pairs(*pair, mmd), rtol=1e-8)


def test_mmd_does_not_cancel_in_float32(pair):
    a, b = (torch.from_numpy(300 + side).float().flatten(2) for side in pair)
    found = discrepancy.mmd(a, b).numpy()
    np.testing.assert_allclose(found, pairs(*pair, mmd), rtol=1e-3, atol=1e-4)


def test_the_gradient_of_mmd_holds_the_bandwidth_still(pair):
    x, y = pair[0][0].reshape(B, -1), pair[1][0].reshape(B, -1)
    z = np.concatenate([x, y])
    scale = np.mean([((u - v) ** 2).sum() for u in z for v in z])

    def fixed(x):
        def k(u, v):
            return sum(math.exp(-((u - v) ** 2).sum() / (2 * 3.0**p * scale)) for p in range(-3, 2))

        same = sum(k(x[i], x[j]) for i in range(B) for j in range(B) if i != j) / (B * (B - 1))
        return same - 2 * np.mean([k(u, v) for u in x for v in y])

    leaf = torch.from_numpy(x)[None].requires_grad_()
    discrepancy.mmd(leaf, torch.from_numpy(y)[None]).sum().backward()
    for i, j in ((0, 0), (3, 7), (4, 23)):
        step = np.zeros_like(x)
        step[i, j] = 1e-5
        slope = (fixed(x + step) - fixed(x - step)) / 2e-5
        assert float(leaf.grad[0, i, j]) == pytest.approx(slope, rel=1e-5, abs=1e-10)


def test_mmd_grows_with_the_gap_and_survives_constant_features():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 64, 5, generator=generator)
    y = torch.randn(1, 64, 5, generator=generator)
    near, far = discrepancy.mmd(x, y), discrepancy.mmd(x, y + 2)
    assert abs(float(near)) < 0.1 < float(far)
    flat = torch.ones(1, 4, 3, requires_grad=True)
    found = discrepancy.mmd(flat, flat.detach())
    found.sum().backward()
    assert float(found.detach()) == pytest.approx(0, abs=1e-5)
    assert not flat.grad.any()


def test_mse_of_all_pairs(pair):
    a, b = (torch.from_numpy(side).flatten(2) for side in pair)
    expected = pairs(*pair, lambda x, y: ((x - y) ** 2).mean())
    np.testing.assert_allclose(discrepancy.mse(a, b).numpy(), expected, rtol=1e-9)


def test_alignment_is_the_double_sum_without_gradient_to_alpha():
    alpha = torch.tensor([[0.25, 0.75], [0.5, 0.5]], requires_grad=True)
    gaps = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    found = discrepancy.alignment(alpha, gaps)
    assert float(found.detach()) == pytest.approx(0.25 + 1.5 + 1.5 + 2)
    found.backward()
    assert alpha.grad is None
    torch.testing.assert_close(gaps.grad, alpha.detach())


def test_projection_is_one_convolution_to_the_size_of_the_last_layer():
    rng = np.random.default_rng(0)
    shapes = [(2, 7, 6), (3, 3, 4), (4, 3, 2)]
    drawn = layers.new_projections(shapes, 5, torch.Generator().manual_seed(0))
    maps = [rng.normal(size=(B, *shape)) for shape in shapes]
    double = {k: v.double() for k, v in drawn.items()}
    found = layers.project([torch.from_numpy(m) for m in maps], double).numpy()
    assert found.shape == (3, B, 5, 6)
    for i, layer in enumerate(maps):
        weight, bias = (double[f"{i}/{k}"].numpy() for k in ("weight", "bias"))
        high, wide = weight.shape[2:]
        down, right = layer.shape[2] // 3, layer.shape[3] // 2
        assert 2 * down + high == layer.shape[2]  # the windows reach the last row and column
        assert right + wide == layer.shape[3]
        for j in range(6):
            top, left = down * (j // 2), right * (j % 2)
            patch = layer[:, :, top : top + high, left : left + wide]
            expected = np.einsum("bcij,ocij->bo", patch, weight) + bias
            np.testing.assert_allclose(found[i, :, :, j], expected, rtol=1e-9)
    bound = (2 * 3 * 3) ** -0.5  # as torch draws a convolution: 1 / sqrt(fan in)
    assert 0.9 * bound < float(double["0/weight"].abs().max()) <= bound


@pytest.mark.parametrize(
    ("backbone", "shape", "stages"),
    [
        ("resnet18", (3, 32, 32), ["layer2", "layer3", "layer4"]),
        ("alexnet", (3, 63, 63), ["conv3", "conv4", "conv5"]),
        ("mnist-cnn", (1, 28, 28), ["conv1", "conv2"]),
        ("cnn", (3, 16, 16), ["block1", "block2", "block3"]),
    ],
)
def test_the_last_three_layers_with_maps_are_taken(backbone, shape, stages):
    options = {"width": 0.125} if backbone != "cnn" else {}
    net = BACKBONES.get(backbone).build(shape, 4, **options)
    shapes = net.shapes()
    assert layers.adopted(shapes, "auto") == stages
    drawn = layers.new_projections([shapes[k] for k in stages], 2, torch.Generator())
    maps = [torch.zeros(2, *shapes[k]) for k in stages]
    _, high, wide = shapes[stages[-1]]
    assert layers.project(maps, drawn).shape == (len(stages), 2, 2, high * wide)


def test_layers_that_cannot_be_aligned_are_one_line():
    maps = {"first": (2, 4, 4), "second": (2, 8, 8), "flat": (9,)}
    assert layers.adopted(maps, "second") == ["second"]
    with pytest.raises(ConfigError, match="names 'third'; this backbone has maps after first, sec"):
        layers.adopted(maps, "first+third")
    with pytest.raises(ConfigError, match="first has smaller maps than second"):
        layers.adopted(maps, "second+first")
    with pytest.raises(ConfigError, match="no stage of this backbone has any; choose a convolut"):
        start("csac", backbone="mlp", backbone_options={})


def test_same_layer_alignment_weighs_the_diagonal(pair):
    a, b = map(torch.from_numpy, pair)
    torch.testing.assert_close(attention.same_layer(a, b), torch.eye(R, dtype=torch.float64))
    torch.testing.assert_close(attention.no_attention(a, b), torch.full((R, R), 1 / 3).double())
