"""Le et al., CVPR 2024."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedshift.base.errors import ConfigError
from fedshift.core.net import batch_norm_keys
from fedshift.core.registry import BACKBONES, build
from fedshift.methods.gperxan import MixedNorm
from fedshift.testing import play, start, worker

FULL = {"steps": 1, "batch_size": 64}


def test_the_mixture_weighs_batch_and_instance_norm_by_the_softmax_of_the_scores():
    x = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 3 + 1
    norm = MixedNorm(nn.BatchNorm2d(3))
    norm.score_batch.data.fill_(0.7)
    norm.score_instance.data.fill_(-0.2)
    norm.instance.bias.data.fill_(2.0)
    a = x.numpy().astype(np.float64)

    def normalised(axes):
        mean, var = a.mean(axes, keepdims=True), a.var(axes, keepdims=True)
        return (a - mean) / np.sqrt(var + 1e-5)

    share = np.exp(0.7) / (np.exp(0.7) + np.exp(-0.2))
    expected = share * normalised((0, 2, 3)) + (1 - share) * (normalised((2, 3)) + 2.0)
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=1e-3, atol=1e-4)


def test_both_halves_begin_equal_and_with_the_affine_map_of_the_layer_replaced():
    batch = nn.BatchNorm2d(3)
    batch.weight.data = torch.tensor([1.0, 2.0, 3.0])
    batch.bias.data = torch.tensor([-1.0, 0.0, 1.0])
    norm = MixedNorm(batch)
    assert norm.batch is batch
    assert torch.equal(norm.instance.weight, batch.weight)
    assert torch.equal(norm.instance.bias, batch.bias)
    assert float(norm.score_batch.detach()) == float(norm.score_instance.detach())


def test_instance_norm_alone_ignores_the_contrast_of_each_image():
    norm = MixedNorm(nn.BatchNorm2d(2))
    norm.score_instance.data.fill_(200.0)
    x = torch.rand(4, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    contrast = torch.tensor([1.0, 2.0, 0.5, 3.0]).view(4, 1, 1, 1)
    torch.testing.assert_close(norm(x * contrast + 7), norm(x), rtol=1e-3, atol=1e-2)


def test_the_received_head_makes_the_bodys_first_step_longer_and_leaves_the_heads(replies):
    """Both heads are the same in the first step: the body gets 1 + lam times its gradient."""
    plain = play(start("fedavg", **FULL), 1)
    guided = play(start("fedavg + received-head[lam=0.5]", **FULL), 1)
    first = plain.server.initial
    for a, b in zip(replies(plain, 1), replies(guided, 1), strict=True):
        assert torch.equal(a.shared["head.weight"], b.shared["head.weight"])
        for key in ("block1.0.weight", "block3.0.weight"):
            step, longer = a.shared[key] - first[key], b.shared[key] - first[key]
            torch.testing.assert_close(longer, 1.5 * step, rtol=1e-3, atol=1e-6)


def test_the_received_head_is_held_fixed(same):
    """On a linear net there is no body, and its loss is a constant: nothing changes."""
    plan = {"backbone": "linear", "backbone_options": {}}
    same(
        play(start("fedavg", **plan)).server.shared,
        play(start("fedavg + received-head", **plan)).server.shared,
    )


def test_batch_norm_stays_at_the_site_and_instance_norm_and_scores_travel():
    session = play(start("gperxan"), 1)
    private = batch_norm_keys(session.server.net)
    assert len(private) == 15  # three layers, five entries each
    for message in session.transport.seen:
        assert not private & (message.shared.keys() | message.personal.keys())
    shared = session.server.shared
    assert {"block1.1.instance.weight", "block1.1.score_batch"} <= shared.keys()
    first = session.server.initial
    assert not torch.equal(shared["block1.1.score_batch"], first["block1.1.score_batch"])


def test_the_score_of_batch_norm_stays_too_if_released_code_is_followed():
    session = start(build("gperxan", local_score=True))
    assert "block1.1.score_batch" not in session.server.shared
    assert "block1.1.score_instance" in session.server.shared


def test_nets_without_maps_to_normalise_are_refused():
    with pytest.raises(ConfigError, match="this backbone has none"):
        start("gperxan", backbone_options={"norm": "group"})
    with pytest.raises(ConfigError, match="this backbone has none"):
        start("gperxan", backbone="mlp", backbone_options={})


def test_maps_of_one_pixel_are_refused():
    with pytest.raises(ConfigError, match="maps of one pixel"):
        start("gperxan", backbone="resnet10", backbone_options={"width": 0.1})


def test_every_batch_norm_of_a_resnet_is_replaced_whatever_its_name():
    net = BACKBONES.get("resnet10").build((3, 32, 32), 4)
    before = sum(isinstance(m, nn.BatchNorm2d) for m in net.modules())
    build("gperxan").parts[0].build(net)
    assert sum(isinstance(m, MixedNorm) for m in net.modules()) == before > 8


def test_worker_and_server_build_the_same_net(same):
    session = start("gperxan")
    same(session.server.initial, worker(session).initial)
