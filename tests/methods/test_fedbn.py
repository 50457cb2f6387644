"""Li et al., ICLR 2021."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedshift
from fedshift.base import seeds
from fedshift.core.net import Net, Scope, load
from fedshift.core.part import Scoring
from fedshift.core.registry import build, register_backbone
from fedshift.engine.federation import federate
from fedshift.methods.fedbn import PrivateBatchNorm
from fedshift.testing import play, start, tiny_scenario

FIVE = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")

NOTHING = Scoring(None, {}, seeds.generator)


class Block(nn.Module):
    """A residual block whose BatchNorms have "bn" nowhere in their names."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.gn = nn.GroupNorm(2, 4)
        self.downsample = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))

    def forward(self, x):
        return (self.gn(self.conv(x)) + self.downsample(x)).relu().mean((2, 3))


@register_backbone("residual")
def residual(shape, classes):
    modules = {"layer": Block(), "bn": nn.Linear(4, 4), "head": nn.Linear(4, classes)}
    stages = {"layer": ("layer", "bn")}
    return Net(modules, stages=stages, head="head", shape=shape, classes=classes)


RESIDUAL = {"backbone": "residual", "backbone_options": {}}


def test_batch_norm_is_found_by_type_whatever_it_is_called():
    """All five entries of ``downsample.1``, and nothing of a Linear that is called ``bn``."""
    scope = PrivateBatchNorm().scope(residual((3, 8, 8), 4))
    assert scope == {f"layer.downsample.1.{key}": Scope.PRIVATE for key in FIVE}


def test_batch_norm_stays_at_home_and_everything_else_travels():
    session = play(start("fedbn", **RESIDUAL), 2)
    private = {f"layer.downsample.1.{key}" for key in FIVE}
    sent = [m for m in session.transport.seen if m.task in ("train", "score")]
    everything = set(session.server.net.state_dict())
    assert {frozenset(m.shared) for m in sent if m.shared} == {frozenset(everything - private)}


def test_each_site_keeps_its_own_normalisation(state_of):
    session = play(start("fedbn", **RESIDUAL), 2)
    key = "layer.downsample.1.running_mean"
    dark, bright = (state_of(session, c, "net")[key] for c in ("dark-0", "bright-0"))
    assert not torch.equal(dark, bright)


def test_private_normalisation_is_trained_on(replies, state_of):
    """Round 2 continues from the layer that round 1 left: the counter counts both rounds."""
    session = play(start("fedbn"), 2)
    batches = {"bright-0": 2, "bright-1": 2, "dark-0": 3, "dark-1": 3}  # of 4: 7, 6, 11, 11 samples
    for client, per_epoch in batches.items():
        kept = state_of(session, client, "net")["block1.1.num_batches_tracked"]
        assert int(kept) == 2 * 2 * per_epoch  # rounds x epochs x batches


def test_without_batch_norm_fedbn_is_fedavg(same):
    plain = {"backbone_options": {"width": 4, "norm": "none"}}
    fedavg, fedbn = play(start("fedavg", **plain), 2), play(start("fedbn", **plain), 2)
    same(fedavg.server.shared, fedbn.server.shared)


def test_a_new_site_gets_the_statistics_of_its_own_inputs():
    session = start("fedbn")
    net, target = session.server.net, session.federation.unseen.train
    # whatever was there is forgotten, and so is how often it had moved
    past = {"running_mean": torch.full((4,), 7.0), "num_batches_tracked": torch.tensor(5)}
    load(net, {f"block1.1.{key}": value for key, value in past.items()})
    before = {k: v.clone() for k, v in net.state_dict().items() if "running" not in k}
    build("fedbn").parts[0].adapt(net, target.unlabelled(), NOTHING)
    x, _ = target.take(torch.arange(len(target)))
    maps = F.conv2d(x, net.get_parameter("block1.0.weight"), padding=1).detach().numpy()
    rows = maps.transpose(1, 0, 2, 3).reshape(4, -1)  # (C, B H W)
    found = net.state_dict()
    np.testing.assert_allclose(found["block1.1.running_mean"], rows.mean(1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["block1.1.running_var"], rows.var(1, ddof=1), rtol=1e-4)
    changed = [k for k, v in before.items() if not torch.equal(v, found[k])]
    assert changed == [f"block{i}.1.num_batches_tracked" for i in (1, 2, 3)]


def test_a_trailing_single_input_does_not_stop_the_adaptation():
    """65 vectors in chunks of 64 leave one, which BatchNorm1d cannot normalise alone."""
    from fedshift.backbones.mlp import mlp
    from fedshift.data.samples import Samples

    net = mlp((5,), 3, hidden=6, features=4)
    x = torch.randn(65, 5, generator=torch.Generator().manual_seed(0))
    inputs = Samples(x, torch.zeros(65, dtype=torch.int64), torch.arange(65))
    build("fedbn").parts[0].adapt(net, inputs, NOTHING)
    hidden = (
        x @ net.get_parameter("layer1.0.weight").T + net.get_parameter("layer1.0.bias")
    ).detach()
    # one chunk of 65, or two that differ in size: the mean of all inputs, loosely
    np.testing.assert_allclose(net.state_dict()["layer1.1.running_mean"], hidden.mean(0), atol=0.2)


@pytest.mark.parametrize("protocol", ["unseen", "unseen-adapted"])
def test_an_unseen_site_is_scored_with_what_the_scenario_grants(protocol):
    refused = play(start("fedbn", private_at_new_site="refuse"), 1).record.metrics[-1]["scores"]
    allowed_data = play(start("fedbn", private_at_new_site="initial"), 1).record.metrics[-1][
        "scores"
    ]
    assert protocol not in refused
    assert protocol in allowed_data


@pytest.mark.parametrize(
    "transport", ["inprocess", pytest.param("pool", marks=pytest.mark.exhaustive)]
)
def test_recomputed_statistics_reach_those_that_are_private(transport, tmp_path):
    """At every site: mean and unbiased variance of the aggregated conv on its own inputs."""
    result = fedshift.run(
        "fedbn",
        tiny_scenario(bn="recompute", batch_size=64),
        out=tmp_path,
        transport=transport,
        quiet=True,
    )
    for site in ("bright-0", "dark-1"):
        net = fedshift.load_model(tmp_path, site).net
        data = federate(result.config.scenario, 0).sites[site].data.train
        x, _ = data.take(torch.arange(len(data)))
        entries = {k: v.numpy() for k, v in net.state_dict().items()}
        maps = F.conv2d(x, net.state_dict()["block1.0.weight"], padding=1).numpy()
        rows = maps.transpose(1, 0, 2, 3).reshape(4, -1)  # (C, B H W)
        np.testing.assert_allclose(entries["block1.1.running_mean"], rows.mean(1), atol=1e-5)
        expected = rows.var(1, ddof=1)
        np.testing.assert_allclose(entries["block1.1.running_var"], expected, rtol=1e-4)


def test_recomputing_does_not_move_fedbns_training():
    average, recompute = (play(start("fedbn", bn=bn)).server for bn in ("average", "recompute"))
    assert all(torch.equal(v, recompute.shared[k]) for k, v in average.shared.items())
