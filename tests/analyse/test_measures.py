"""The formulas behind the analyses, against planted answers, SciPy and hand computation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.decomposition import PCA
from torch import nn

from fedshift.analyse.kinds.biased_features import LocalBias, gap, shift
from fedshift.analyse.kinds.cost import forward_flops
from fedshift.analyse.kinds.distances import pair_distances
from fedshift.analyse.kinds.domain_gap import mmd, proxy_a_distance
from fedshift.analyse.kinds.embedding import pca, plane, silhouette
from fedshift.analyse.kinds.gradcam import focus, heat_map, showing
from fedshift.analyse.kinds.ranking import groups
from fedshift.analyse.kinds.reliability import in_bins
from fedshift.analyse.kinds.spectrum import effective_rank, singular_values
from fedshift.core.net import Net
from fedshift.evaluate.analyses.fusion_weights import combination
from fedshift.evaluate.layers import last_weights
from fedshift.methods.csac.fusion import fuse, fusion_weights
from fedshift.methods.f2dc.layers import DecouplingNeck, Mask
from fedshift.report.ranking import Ranking


def planted(values, n=60, seed=0):
    """Features (n, D) whose covariance has exactly these singular values."""
    rng = np.random.default_rng(seed)
    d = len(values)
    raw = rng.normal(size=(n, d))
    left = np.linalg.qr(raw - raw.mean(0))[0]  # orthonormal and centred
    right = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return left * np.sqrt(n * np.array(values)) @ right.T + rng.normal(size=d)


def test_a_planted_spectrum_is_found_whatever_the_mean_and_the_rotation():
    values = [9.0, 4.0, 1.0, 0.25, 0.0]
    np.testing.assert_allclose(singular_values(planted(values)), values, atol=1e-9)


def test_fewer_samples_than_features_leave_the_other_singular_values_at_zero():
    found = singular_values(np.random.default_rng(0).normal(size=(3, 7)))
    assert found.shape == (7,)
    assert (found[2:] < 1e-20).all()  # three centred rows span two directions


def test_effective_rank_is_the_number_of_equal_directions_and_exp_of_the_entropy():
    assert effective_rank(np.array([5.0, 5.0, 5.0, 0.0])) == pytest.approx(3)
    values = np.array([7.0, 2.0, 0.5, 0.5])
    assert effective_rank(values) == pytest.approx(math.exp(stats.entropy(values)))
    assert effective_rank(np.zeros(3)) == 0.0


def test_pca_agrees_with_scikit_learn_up_to_the_sign_of_an_axis():
    x = planted([5.0, 2.0, 1.0, 0.1])
    np.testing.assert_allclose(np.abs(pca(x)), np.abs(PCA(2).fit_transform(x)), atol=1e-9)


def test_tsne_keeps_two_clusters_apart_and_draws_the_same_picture_twice():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(0, 1, (20, 3)), rng.normal(40, 1, (20, 3))])
    found = plane(x, "tsne", 10)
    a, b = found[:20], found[20:]
    spread = max(np.linalg.norm(c - c.mean(0), axis=1).max() for c in (a, b))
    assert np.linalg.norm(a.mean(0) - b.mean(0)) > spread
    np.testing.assert_array_equal(found, plane(x, "tsne", 10))


def test_a_silhouette_of_one_group_is_nothing_and_of_far_points_nearly_one():
    x = np.array([[0.0], [1.0], [100.0], [101.0]])
    # each: (b - 1) / b with b the mean distance to the other pair: 100.5 or 99.5
    wanted = np.mean([(b - 1) / b for b in (100.5, 99.5, 99.5, 100.5)])
    assert silhouette(x, np.array([0, 0, 1, 1])) == pytest.approx(wanted)
    assert silhouette(x, np.zeros(4, int)) == 0.0


def test_calibration_bins_are_those_of_the_hand():
    confidence = torch.tensor([0.55, 0.6, 0.95, 1.0], dtype=torch.float64)
    right = torch.tensor([True, False, True, True])
    rows, error = in_bins(confidence, right, 5)
    assert [(r["from"], r["samples"]) for r in rows] == [(0.4, 2), (0.8, 2)]  # closed on the right
    assert [r["accuracy"] for r in rows] == [0.5, 1.0]
    assert rows[0]["confidence"] == pytest.approx(0.575)
    assert error == pytest.approx(0.5 * 0.075 + 0.5 * 0.025)


@pytest.mark.parametrize(("distance", "tolerance"), [(0.0, 0.1), (2.0, 0.08), (12.0, 1e-6)])
def test_the_proxy_a_distance_of_two_gaussians_is_that_of_their_bayes_error(distance, tolerance):
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 1, (3000, 1)), rng.normal(distance, 1, (3000, 1))
    error = stats.norm.cdf(-distance / 2)
    assert proxy_a_distance(a, b) == pytest.approx(2 * (1 - 2 * error), abs=tolerance)


def test_the_mmd_of_two_gaussians_has_its_closed_form():
    points = stats.norm.ppf((np.arange(1000) + 0.5) / 1000)[:, None]  # no chance in them
    mean, width = 1.2, 1.5
    scale = math.sqrt(width**2 / (width**2 + 2))
    wanted = 2 * scale * (1 - math.exp(-(mean**2) / (2 * (width**2 + 2))))
    assert mmd(points, points + mean, width) == pytest.approx(wanted, rel=0.01)
    assert abs(mmd(points, points, width)) < 0.002


def test_the_unbiased_mmd_is_that_of_the_sums():
    a, b = np.array([[0.0], [1.0]]), np.array([[3.0], [5.0]])
    k = lambda d: math.exp(-(d**2) / 2)  # noqa: E731
    cross = np.mean([k(3), k(5), k(2), k(4)])
    assert mmd(a, b, 1.0) == pytest.approx(k(1) + k(2) - 2 * cross)


def test_distances_of_parameters_are_counted_within_and_between_domains():
    def model(x, y):
        return {"block": torch.tensor([float(x), float(y)])}

    found = pair_distances([[("a", model(0, 0)), ("a", model(3, 4)), ("b", model(0, 12))]])
    assert found[0] == {"block": [5.0]}
    assert found[1]["block"] == pytest.approx([12.0, math.hypot(3, 8)])
    runs = [[("a", model(0, 0)), ("b", model(1, 1))], [("a", model(3, 4))]]
    assert pair_distances(runs) == ({}, {"block": [pytest.approx(math.sqrt(2))]})
    across = pair_distances(runs, across=True)  # pairs of different runs, and those only
    assert across == ({"block": [5.0]}, {"block": [pytest.approx(math.hypot(2, 3))]})


def test_planted_weights_are_read_off_the_aggregate():
    rng = np.random.default_rng(3)
    common = rng.normal(size=(4, 5))
    versions = [torch.tensor(common + 1e-2 * rng.normal(size=(4, 5))).float() for _ in range(4)]
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
    merged = sum(w * v for w, v in zip(weights, versions, strict=True))
    np.testing.assert_allclose(combination(versions, merged), weights, atol=1e-4)


def test_csacs_weights_are_read_off_its_fused_layer():
    versions = [torch.zeros(2), torch.tensor([1.0, 1.0]), torch.tensor([5.0, 6.0])]
    c = fusion_weights(versions)
    np.testing.assert_allclose(combination(versions, fuse(versions, c)), c, atol=1e-6)


def test_versions_that_are_all_alike_count_the_same():
    assert combination([torch.ones(3)] * 4, torch.ones(3)).tolist() == [0.25] * 4


class MeanOfMaps(nn.Module):
    def forward(self, x):
        return x.mean((2, 3), keepdim=True)


def linear_net(neck=None):
    """A convolution, the mean over positions, and a linear head: its CAM is known."""
    generator = torch.Generator().manual_seed(0)
    conv, head = nn.Conv2d(2, 3, 1, bias=False), nn.Linear(3, 4)
    for p in (*conv.parameters(), *head.parameters()):
        p.data = torch.randn(p.shape, generator=generator)
    parts = {"conv": conv, "pool": MeanOfMaps(), "head": head}
    stages = {"maps": ["conv"], "mean": ["pool"]}
    net = Net(parts, stages=stages, head="head", shape=(2, 6, 5), classes=4)
    if neck is not None:
        net.insert("neck", neck, after="maps")
    return net.eval(), torch.randn(1, 2, 6, 5, generator=generator)


def test_the_map_of_a_linear_net_is_its_class_activation_map():
    net, x = linear_net()
    f = np.einsum("oc,chw->ohw", net.conv.weight.detach().numpy()[:, :, 0, 0], x[0].numpy())
    for wanted in range(4):
        cam = np.einsum("o,ohw->hw", net.head.weight.detach().numpy()[wanted], f) / 30
        found = heat_map(net, x, wanted)
        np.testing.assert_allclose(found[0, 0], np.maximum(cam, 0), atol=1e-6)


def test_f2dcs_parts_of_an_even_mask_are_halves_of_the_whole():
    neck = DecouplingNeck(3, 4, mask=Mask(0.1, draws=1, at_test=False), width=2, depth=2,
                          scored="final")  # fmt: skip
    for module in (neck.decoupler, neck.corrector):
        module[-1].weight.data.zero_()  # scores 0: the mask is 1/2; and nothing is corrected
    net, x = linear_net(neck)
    whole = heat_map(net, x, 1)
    assert whole.max() > 0
    for part in ("robust", "related", "rectified"):
        with showing([neck], part):
            np.testing.assert_allclose(heat_map(net, x, 1), whole / 2, atol=1e-6)
    assert neck.scored == "final"


def test_focus_is_the_share_of_positions_with_heat():
    assert focus(np.array([[2.0, 2.0], [0.0, 0.0]])) == pytest.approx(0.5)
    assert focus(np.zeros((2, 2))) == 0.0


def test_the_layers_of_a_net_are_the_last_weights_of_its_stages():
    net, _ = linear_net()
    assert last_weights(net) == {"maps": "conv.weight", "head": "head.weight"}
    block = nn.Sequential(
        nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
    )
    parts = {"block": block, "pool": MeanOfMaps(), "head": nn.Linear(3, 4)}
    stages = {"maps": ["block"], "mean": ["pool"]}
    net = Net(parts, stages=stages, head="head", shape=(2, 6, 5), classes=4)
    assert last_weights(net) == {"maps": "block.2.weight", "head": "head.weight"}


def test_flops_are_two_per_multiplication_and_addition():
    net, _ = linear_net()
    assert forward_flops(net) == 2 * (3 * 2 * 30 + 4 * 3)


def test_a_shift_of_all_features_is_its_length_in_units_of_their_spread():
    glob = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])  # spread sqrt(10 / 4)
    local = glob + np.array([3.0, 4.0])
    assert shift(local, glob) == pytest.approx(5 / math.sqrt(2.5))
    assert gap(glob, local) == pytest.approx(5 / math.sqrt(2.5))
    assert gap(local, local) == 0.0


def test_a_classifier_that_knows_its_own_classes_only_is_told():
    z = np.zeros((4, 2))
    labels = np.array([2, 2, 1, 2])
    found = LocalBias(
        "s", "classes", ("a", "b", "c"), np.array([5, 3, 0]), (z, z), (z, z),
        (labels, labels), (np.array([0, 0, 1, 0]), np.array([2, 2, 1, 0])),
        (np.array([0.8, 0.2, 0.0]), np.array([0.1, 0.1, 0.8])),
    )  # fmt: skip
    told = found.numbers()
    assert (told["into_own"], told["into_own_global"]) == (1.0, 0.5)
    rows = found.shares()
    assert [r["true"] for r in rows] == [0.0, 0.25, 0.75]
    assert [r["local"] for r in rows] == [0.75, 0.25, 0.0]
    assert [r["global"] for r in rows] == [0.25, 0.25, 0.5]
    assert [r["one_local"] for r in rows] == [0.8, 0.2, 0.0]


def test_bars_join_the_largest_groups_that_are_not_told_apart():
    found = Ranking({"a": 1.0, "b": 1.5, "c": 2.5, "d": 4.0}, 9, 0.01, 1.2)
    assert groups(found) == [("a", "b"), ("b", "c")]
    assert groups(Ranking({"a": 1.0, "b": 2.0, "c": 3.0}, 9, 0.01, 5.0)) == [("a", "c")]
    assert groups(Ranking({"a": 1.0, "b": 2.0, "c": 3.0}, 9, 0.01, 0.5)) == []
