from __future__ import annotations

import pytest
import torch
from torch import nn

from fedshift.backbones.cnn import cnn
from fedshift.base import tree
from fedshift.base.errors import ConfigError
from fedshift.core.net import Neck, OncePerBatch, call, call_frozen, head_keys, load


class Twice(Neck):
    """Twice the maps, and their mean before."""

    def forward(self, maps):
        return 2 * maps, {"mean": maps.mean()}


class Lift(Neck):
    """The maps plus one, and their mean before."""

    def forward(self, maps):
        return maps + 1, {"mean": maps.mean()}


@pytest.fixture
def net():
    return cnn((3, 8, 8), 4, width=4)


@pytest.fixture
def x():
    return torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_taps_are_the_stages_and_features_feed_the_head(net, x):
    out = net.eval()(x)
    assert list(out.taps)[:3] == ["block1", "block2", "block3"]
    assert torch.equal(list(out.taps.values())[-1].flatten(1), out.features)
    assert torch.equal(net.head_module(out.features), out.logits)
    assert net.shapes() == {k: tuple(v.shape[1:]) for k, v in out.taps.items()} | {
        "features": (net.head_module.in_features,),
        "logits": (4,),
    }


def test_necks_chain_in_the_order_of_their_insertion(net, x):
    plain = net.eval()(x).taps["block2"]
    net.insert("twice", Twice(), after="block2")
    net.insert("lift", Lift(), after="block2")
    out = net(x)
    assert torch.equal(out.taps["block2"], 2 * plain + 1)
    torch.testing.assert_close(out.aux["twice/mean"], plain.mean())
    torch.testing.assert_close(out.aux["lift/mean"], 2 * plain.mean())


def test_a_neck_after_no_stage_is_refused(net):
    with pytest.raises(ConfigError, match=r"twice .*stage 'layer9'.* has block1, block2, block3"):
        net.insert("twice", Twice(), after="layer9")


def test_asking_for_shapes_leaves_no_trace(net):
    before = tree.clone(net.state_dict())
    net.train()
    net.shapes()
    assert net.training
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in before.items())


def test_a_head_is_found_by_its_path():
    deep = nn.Sequential(nn.Linear(9, 8), nn.Linear(8, 4))
    net = cnn((3, 8, 8), 4, width=4)
    net.head = deep
    assert head_keys(net) == {f"head.{i}.{key}" for i in (0, 1) for key in ("weight", "bias")}


def test_later_entries_win_and_unknown_ones_are_an_error(net):
    load(net, {"head.bias": torch.ones(4)}, {"head.bias": torch.full((4,), 2.0)})
    assert net.state_dict()["head.bias"].tolist() == [2.0] * 4
    with pytest.raises(KeyError, match="hed"):
        load(net, {"hed.bias": torch.ones(4)})


def test_other_entries_answer_in_place_of_the_nets_own(net, x):
    other = {k: v + 0.1 if v.is_floating_point() else v for k, v in net.state_dict().items()}
    twin = cnn((3, 8, 8), 4, width=4)
    load(twin, other)
    torch.testing.assert_close(call(net.eval(), other, x).logits, twin.eval()(x).logits)


def test_a_frozen_call_is_in_eval_mode_whatever_the_net_is_in(net, x):
    entries = tree.clone(net.state_dict())
    net.train()
    net.head_module.eval()  # a mode of its own, to be found again
    out = call_frozen(net, entries, x)
    assert not out.logits.requires_grad
    assert net.training
    assert not net.head_module.training
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in entries.items())
    torch.testing.assert_close(out.logits, net.eval()(x).logits)


def test_a_second_branch_has_statistics_of_its_own_turn(net, x):
    branch = tree.clone(net.state_dict())
    counter = "block1.1.num_batches_tracked"
    net.train()
    with OncePerBatch(net.modules()) as once:
        for _ in range(3):
            once.next_batch()
            for _ in range(2):
                net(x)
                call(net, branch, x)
    assert int(net.state_dict()[counter]) == int(branch[counter]) == 3
    net(x)  # and afterwards the layers count as before
    assert int(net.state_dict()[counter]) == 4
