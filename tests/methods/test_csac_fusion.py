"""Yuan et al., TKDE 2023, Eqs. 3 and 4, and the strategies of Table 4."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core import reply_stack
from fedshift.core.aggregate import Mean, Uniform
from fedshift.core.method import Method
from fedshift.core.net import batch_norm_buffers
from fedshift.core.registry import build
from fedshift.data.dealing.partitions import PerDomain
from fedshift.engine.preflight import check_needs
from fedshift.methods.csac import fusion
from fedshift.methods.csac.fusion import DivergenceFusion, fuse, fusion_weights
from fedshift.testing import play, start, tiny_scenario

DISTANCES = ("l2", "l1", "cosine", "similarity", "average")
TWO = {"partition": PerDomain(), "protocols": ("global",)}


def weights(layer, distance):
    """Eq. 4's fractions from the formula; ``layer`` is (n, ...)."""
    flat = layer.reshape(len(layer), -1)
    mean = flat.sum(0) / len(flat)
    far = {
        "l2": np.sqrt(((flat - mean) ** 2).sum(1)),
        "l1": np.abs(flat - mean).sum(1),
        "cosine": 1 - flat @ mean / np.linalg.norm(flat, axis=1) / np.linalg.norm(mean),
        "average": np.ones(len(flat)),
    }
    share = 1 / far["l2"] if distance == "similarity" else far[distance]
    return share / share.sum()


@pytest.fixture
def layer():
    rng = np.random.default_rng(0)
    spread = np.array([0.1, 1.0, 3.0, 0.5, 2.0])[:, None, None]
    return 4.0 + spread * rng.normal(size=(5, 3, 7))


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("block", [3, 20, 2**19])
def test_weights_are_equations_3_and_4_in_one_block_and_in_many(
    layer, distance, block, monkeypatch
):
    monkeypatch.setattr(fusion, "BLOCK", block)
    found = fusion_weights([*torch.from_numpy(layer)], distance)
    np.testing.assert_allclose(found.numpy(), weights(layer, distance), rtol=1e-9)
    assert float(found.sum()) == pytest.approx(1, abs=1e-12)


def test_fusion_is_the_weighted_sum(layer):
    share = np.array([0.1, 0.2, 0.3, 0.15, 0.25])
    found = fuse([*torch.from_numpy(layer)], torch.from_numpy(share))
    np.testing.assert_allclose(found.numpy(), np.tensordot(share, layer, 1), rtol=1e-12)


def test_far_models_count_more_and_under_similarity_less(layer):
    far, near = (fusion_weights([*torch.from_numpy(layer)], d) for d in ("l2", "similarity"))
    assert int(far.argmax()) == int(near.argmin())
    assert int(far.argmin()) == int(near.argmax())
    torch.testing.assert_close(far * near, (far * near)[0].expand(5))


@pytest.mark.parametrize("distance", ["l2", "l1", "similarity", "average"])
def test_two_clients_count_one_half_each(distance):
    a, b = torch.randn(2, 300, 11, generator=torch.Generator().manual_seed(0))
    found = fusion_weights([a, 40 + 3 * b], distance)
    torch.testing.assert_close(found, torch.full((2,), 0.5).double(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("value", [0.0, 0.1])
def test_equal_layers_are_copied(distance, value):
    layer = [torch.full((3, 2), value) for _ in range(3)]
    found = fusion_weights(layer, distance)
    assert float(found.sum()) == pytest.approx(1)
    torch.testing.assert_close(fuse(layer, found), layer[0])


def test_a_client_at_the_mean_counts_nothing_and_the_others_are_kept():
    """0, 1, 2: the released code puts 2 where Eq. 4 gives (0 + 2) / 2."""
    layer = [torch.tensor([v]) for v in (0.0, 1.0, 2.0)]
    assert fusion_weights(layer).tolist() == [0.5, 0, 0.5]
    assert fuse(layer, fusion_weights(layer)).tolist() == [1.0]
    near = fusion_weights(layer, "similarity")
    assert float(near[1]) == pytest.approx(1)


def test_cosine_keeps_small_angles_in_float32():
    rng = np.random.default_rng(1)
    layer = (rng.normal(size=400) + 1e-4 * rng.normal(size=(4, 400))).astype(np.float32)
    found = fusion_weights([*torch.from_numpy(layer)], "cosine")
    np.testing.assert_allclose(
        found.numpy(), weights(layer.astype(np.float64), "cosine"), rtol=1e-2
    )


def test_a_layer_of_zeros_has_no_direction():
    layer = [torch.zeros(3), torch.tensor([1.0, 0, 0]), torch.tensor([0.0, 1, 0])]
    share = np.array([1, 1 - 0.5**0.5, 1 - 0.5**0.5])
    np.testing.assert_allclose(fusion_weights(layer, "cosine"), share / share.sum(), rtol=1e-6)


@pytest.mark.parametrize("bn", ["average", "recompute", "local"])
def test_a_round_fuses_every_floating_entry(replies, bn):
    session = play(start(Method((), DivergenceFusion()), bn=bn), 1)
    updates, shared = replies(session, 1), session.server.shared
    statistics = batch_norm_buffers(session.server.net)
    assert bool(statistics & shared.keys()) is (bn != "local")
    for key in shared.keys() - (statistics if bn == "recompute" else set()):
        layer = np.stack([u.shared[key].double().numpy() for u in updates])
        if not shared[key].is_floating_point():
            assert int(shared[key]) == layer.max()
            continue
        expected = np.tensordot(weights(layer, "l2"), layer, 1)
        np.testing.assert_allclose(shared[key].numpy(), expected, rtol=1e-4, atol=1e-6)


def test_threads_move_no_bit_and_no_entry(monkeypatch):
    monkeypatch.setattr(reply_stack, "MANY", 1)
    spread = play(start(Method((), DivergenceFusion())), 1).server.shared
    monkeypatch.setattr(reply_stack, "MANY", 1000)
    alone = play(start(Method((), DivergenceFusion())), 1).server.shared
    assert list(spread) == list(alone)
    assert all(torch.equal(spread[k], v) for k, v in alone.items())


def test_averaging_is_the_uniform_mean():
    fused = play(start(Method((), DivergenceFusion(distance="average")))).server.shared
    plain = play(start(Method((), Mean(Uniform())))).server.shared
    for key, value in plain.items():
        torch.testing.assert_close(fused[key], value)


def test_one_client_is_told_what_to_give():
    with pytest.raises(
        ConfigError, match="divergence-fusion compares clients and needs at least 2"
    ):
        start("csac", domains=("dark",), **TWO)


def test_two_clients_get_the_uniform_mean():
    fused = play(start(Method((), DivergenceFusion()), **TWO), 1).server.shared
    plain = play(start(Method((), Mean(Uniform())), **TWO), 1).server.shared
    for key, value in plain.items():
        torch.testing.assert_close(fused[key], value, rtol=1e-4, atol=1e-6)


def test_an_unknown_distance_is_refused():
    with pytest.raises(ConfigError, match="distance is 'l3'; it takes one of l2, l1, cosine"):
        build("csac[distance=l3]")


def test_sampling_is_refused():
    with pytest.raises(ConfigError, match="semantic-acquisition needs every client in every round"):
        check_needs(build("csac"), tiny_scenario(clients_per_round=2), 4)
