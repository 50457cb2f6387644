"""Every backbone: sizes as published, taps, modes, options, errors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift.backbones.fedka import domain_classifier
from fedshift.backbones.layers import normalisation, scaled
from fedshift.base import seeds
from fedshift.base.errors import ConfigError
from fedshift.core.registry import BACKBONES

# name: one small input and options that keep it fast
SMALL = {
    "alexnet": ((3, 64, 64), {"width": 0.05}),
    "alexnet-bn": ((3, 64, 64), {"width": 0.05}),
    "cct-7-3x1": ((3, 8, 8), {"width": 0.125}),
    "cnn": ((3, 8, 8), {"width": 4}),
    "efficientnet-lite0": ((3, 32, 32), {"width": 0.125}),
    "feddebias-cnn": ((1, 14, 14), {"width": 0.25}),
    "fedka-cnn": ((3, 16, 20), {"width": 0.25}),
    "lenet": ((1, 28, 28), {}),
    "linear": ((384,), {}),
    "mlp": ((384,), {"hidden": 16, "features": 8}),
    "mnist-cnn": ((1, 14, 14), {"width": 0.25}),
    "resnet10": ((3, 16, 16), {"width": 0.125}),
    "resnet18": ((3, 32, 32), {"width": 0.125, "bottleneck": 16}),
    "resnet34": ((3, 32, 32), {"width": 0.125}),
    "resnet50": ((3, 32, 32), {"width": 0.125, "stem": "small"}),
    "vgg11": ((3, 32, 32), {"width": 0.125}),
}
NORMED = [n for n in SMALL if n not in ("alexnet", "cct-7-3x1", "linear")]
IMAGES = [n for n in SMALL if n not in ("mlp", "linear")]


def build(name, shape, classes, **options):
    with seeds.fork("test", name):
        return BACKBONES.get(name).build(shape, classes, **options)


def small(name, **options):
    shape, given = SMALL[name]
    return build(name, shape, 5, **(given | options))


def batch(name, size=4):
    return torch.randn(size, *SMALL[name][0], generator=seeds.generator("batch", name))


def on_meta(name, shape, classes, **options):
    """A net of any size without memory or time, and its shapes."""
    with torch.device("meta"):
        net = BACKBONES.get(name).build(shape, classes, **options)
        return net, net.shapes()


def count(module):
    return sum(p.numel() for p in module.parameters())


def test_every_backbone_of_ours_is_tested_here():
    ours = {
        name
        for name, entry in BACKBONES.entries().items()
        if entry.build.__module__.startswith("fedshift.backbones.")
    }
    assert ours == set(SMALL)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "body", "whole"),
    [
        ("fedka-cnn", (3, 28, 28), 10, 85_142, 85_142 + 81_310),  # released notebook
        ("feddebias-cnn", (1, 28, 28), 10, 370_560, 370_560 + 1_290),  # released code
        ("mnist-cnn", (1, 28, 28), 10, 1_663_370 - 5_130, 1_663_370),  # McMahan et al., section 3
        ("lenet", (1, 32, 32), 10, 61_706 - 850, 61_706),
        ("lenet", (1, 28, 28), 10, 61_706 - 850, 61_706),
        ("alexnet-bn", (3, 256, 256), 7, 12_971_079 - 7_175, 12_971_079),  # FDSE, table 4
        ("alexnet", (3, 224, 224), 1000, 61_100_840 - 4_097_000, 61_100_840),  # torchvision
        ("resnet10", (3, 128, 128), 7, 4_901_703 - 3_591, 4_901_703),  # F2DC
        ("resnet18", (3, 224, 224), 1000, 11_689_512 - 513_000, 11_689_512),  # torchvision
        ("resnet34", (3, 224, 224), 1000, 21_797_672 - 513_000, 21_797_672),
        ("resnet50", (3, 224, 224), 1000, 25_557_032 - 2_049_000, 25_557_032),
        # torchvision's 132,863,336 without its classifier of 123,642,856
        ("vgg11", (3, 32, 32), 10, 132_863_336 - 123_642_856, 9_220_480 + 5_130),
        # CCT's own classifier of 100 classes is our head: with it, and without
        ("cct-7-3x1", (3, 32, 32), 100, 3_783_269 - 25_700, 3_783_269),
        ("efficientnet-lite0", (3, 224, 224), 1000, 4_652_008 - 1_281_000, 4_652_008),  # released
        ("linear", (1280,), 7, 0, 1280 * 7 + 7),
        ("mlp", (384,), 2, 192_500 + 1_000 + 50_100 + 200, 244_002),
        ("linear", (384,), 2, 0, 385 * 2),
    ],
)
def test_parameters_are_as_many_as_published(name, shape, classes, body, whole):
    net, _ = on_meta(name, shape, classes)
    assert (count(net) - count(net.head_module), count(net)) == (body, whole)


def test_the_domain_classifier_of_fedka_has_its_published_size():
    assert count(domain_classifier(800)) == 80_502
    assert domain_classifier(8, domains=3)(torch.zeros(2, 8)).shape == (2, 3)


def test_vgg11_with_batch_norm_has_the_size_of_vgg11_bn():
    net, _ = on_meta("vgg11", (3, 32, 32), 10, norm="batch")
    assert count(net.features) == 132_868_840 - 123_642_856


def test_the_bottleneck_of_csac_adds_its_layers():
    net, shapes = on_meta("resnet18", (3, 224, 224), 7, bottleneck=256)
    linear, norm, head = 512 * 256 + 256, 2 * 256, 256 * 7 + 7
    assert count(net) == 11_689_512 - 513_000 + linear + norm + head
    assert (shapes["bottleneck"], shapes["features"]) == ((256,), (256,))


@pytest.mark.parametrize("name", ["resnet10", "resnet34", "resnet50"])
def test_every_resnet_takes_the_options_of_the_family(name):
    options = {"bottleneck": 24, "width": 0.25, "norm": "group", "stem": "small"}
    net, shapes = on_meta(name, (3, 32, 32), 7, **options)
    assert (shapes["stem"], shapes["features"]) == ((16, 32, 32), (24,))
    assert not any(isinstance(m, _BatchNorm) for m in net.modules())


@pytest.mark.parametrize(
    ("init", "spread"),
    [({}, (1 / (3 * 128 * 9)) ** 0.5), ({"init": "he"}, (2 / (256 * 9)) ** 0.5)],
)
def test_resnet10_starts_as_pytorch_does_or_by_hes_rule(init, spread):
    """The default is uniform within 1 / sqrt(fan in), whose deviation is 1 / sqrt(3 fan in)."""
    weight = build("resnet10", (3, 16, 16), 5, **init).get_parameter("layer3.0.conv1.weight")
    assert float(weight.detach().std()) == pytest.approx(spread, rel=0.02)


def test_conv_weights_are_drawn_as_torchvision_draws_them():
    fan_out = build("resnet18", (3, 16, 16), 5).get_parameter("layer3.0.conv1.weight")
    assert float(fan_out.detach().std()) == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.02)
    vgg = build("vgg11", (3, 32, 32), 5, width=0.5)
    spread = float(vgg.get_parameter("features.6.weight").detach().std())
    assert spread == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.02)
    assert not vgg.get_parameter("features.6.bias").any()


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("fedka-cnn", (3, 28, 28), {"conv1": (64, 12, 12), "conv2": (50, 4, 4)}),
        (
            "feddebias-cnn",
            (3, 28, 28),
            {"conv1": (64, 28, 28)}
            | {f"conv{i}": (128, 14, 14) for i in (2, 3, 4)}
            | {"pool": (128,)},
        ),
        ("mnist-cnn", (1, 28, 28), {"conv1": (32, 14, 14), "conv2": (64, 7, 7), "fc1": (512,)}),
        (
            "lenet",
            (1, 28, 28),
            {"conv1": (6, 14, 14), "conv2": (16, 5, 5), "fc1": (120,), "fc2": (84,)},
        ),
        (
            "alexnet",  # CSAC's layers: conv3, conv4 at 13x13, conv5 after its pool at 6x6
            (3, 224, 224),
            {"conv1": (64, 27, 27), "conv2": (192, 13, 13), "conv3": (384, 13, 13)}
            | {"conv4": (256, 13, 13), "conv5": (256, 6, 6), "fc1": (4096,), "fc2": (4096,)},
        ),
        (
            "alexnet-bn",
            (3, 256, 256),
            {"conv1": (64, 31, 31), "conv2": (192, 15, 15), "conv3": (384, 15, 15)}
            | {"conv4": (256, 15, 15), "conv5": (256, 7, 7), "pool": (9216,)}
            | {"fc1": (1024,), "fc2": (1024,)},
        ),
        (
            "resnet10",  # F2DC's f at 128 pixels
            (3, 128, 128),
            {"stem": (64, 128, 128), "layer1": (64, 128, 128), "layer2": (128, 64, 64)}
            | {"layer3": (256, 32, 32), "layer4": (512, 16, 16), "pool": (512,)},
        ),
        (
            "resnet18",  # CSAC's layers
            (3, 224, 224),
            {"stem": (64, 56, 56), "layer1": (64, 56, 56), "layer2": (128, 28, 28)}
            | {"layer3": (256, 14, 14), "layer4": (512, 7, 7), "pool": (512,)},
        ),
        (
            "resnet50",
            (3, 224, 224),
            {"stem": (64, 56, 56), "layer1": (256, 56, 56), "layer2": (512, 28, 28)}
            | {"layer3": (1024, 14, 14), "layer4": (2048, 7, 7), "pool": (2048,)},
        ),
        (
            "vgg11",
            (3, 32, 32),
            {"block1": (64, 16, 16), "block2": (128, 8, 8), "block3": (256, 4, 4)}
            | {"block4": (512, 2, 2), "block5": (512, 1, 1), "pool": (512,)},
        ),
        (
            "cct-7-3x1",
            (3, 32, 32),
            {"tokens": (256, 256)}
            | {f"block{i}": (256, 256) for i in range(1, 8)}
            | {"pool": (256,)},
        ),
        (
            "efficientnet-lite0",
            (3, 224, 224),
            {"stem": (32, 112, 112), "blocks1": (16, 112, 112), "blocks2": (24, 56, 56)}
            | {"blocks3": (40, 28, 28), "blocks4": (80, 14, 14), "blocks5": (112, 14, 14)}
            | {"blocks6": (192, 7, 7), "blocks7": (320, 7, 7), "conv_head": (1280, 7, 7)}
            | {"pool": (1280,)},
        ),
        ("linear", (384,), {"flatten": (384,)}),
        ("mlp", (384,), {"layer1": (500,), "layer2": (100,)}),
    ],
)
def test_taps_have_the_shapes_of_the_papers(name, shape, expected):
    _, shapes = on_meta(name, shape, 10)
    shapes.pop("features")
    assert shapes.pop("logits") == (10,)
    assert list(shapes.items()) == list(expected.items())


def test_layer4_of_f2dc_is_4x4_on_small_images():
    assert on_meta("resnet10", (3, 32, 32), 10)[1]["layer4"] == (512, 4, 4)


def test_a_small_stem_keeps_the_size_of_the_image():
    net, shapes = on_meta("resnet18", (3, 32, 32), 10, stem="small")
    assert (shapes["stem"], shapes["layer4"]) == ((64, 32, 32), (512, 4, 4))
    assert count(net) == 11_689_512 - 513_000 + 5_130 - 3 * 64 * (49 - 9)


@pytest.mark.parametrize("name", SMALL)
def test_outputs_and_gradients_are_finite_and_reach_every_parameter(name):
    net = small(name).train()
    out = net(batch(name))
    assert out.logits.shape == (4, 5)
    assert all(t.isfinite().all() for t in (out.logits, *out.taps.values()))
    F.cross_entropy(out.logits, torch.tensor([0, 1, 2, 3])).backward()
    for key, parameter in net.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
    assert any(p.grad.abs().sum() > 0 for p in net.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_the_stages_and_the_head_run_every_layer(name):
    net, ran = small(name), set()
    leaves = {path for path, m in net.named_modules() if not list(m.children())} - {"extra"}
    for path in leaves:
        net.get_submodule(path).register_forward_hook(lambda *_, path=path: ran.add(path))
    net(batch(name))
    assert ran == leaves


@pytest.mark.parametrize("name", SMALL)
def test_evaluation_is_deterministic_and_of_each_example_alone(name):
    net, x = small(name).eval(), batch(name)
    first = net(x).logits
    assert torch.equal(first, net(x).logits)
    torch.testing.assert_close(first[:1], net(x[:1]).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_building_twice_from_one_seed_gives_one_net(name):
    one, two = small(name).state_dict(), small(name).state_dict()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize("name", NORMED)
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_the_norm_is_the_one_asked_for(name, norm):
    net = small(name, norm=norm).train()
    found = {type(m) for m in net.modules() if isinstance(m, _BatchNorm | nn.GroupNorm)}
    assert bool(found & {nn.BatchNorm1d, nn.BatchNorm2d}) == (norm == "batch")
    assert (nn.GroupNorm in found) == (norm == "group")
    assert net(batch(name)).logits.isfinite().all()


@pytest.mark.parametrize("name", NORMED)
def test_an_unknown_norm_is_refused(name):
    with pytest.raises(ConfigError, match=r"norm is 'layer'; it takes batch, group or none"):
        small(name, norm="layer")


def test_groups_divide_the_channels():
    assert normalisation("group", 64).num_groups == 8
    assert normalisation("group", 50).num_groups == 5  # 10 channels each; 6 groups do not divide 50
    assert normalisation("group", 4).num_groups == 1
    assert normalisation("group", 128, groups=8).num_groups == 8


def test_feddebias_normalises_after_the_relu_in_eight_groups():
    net, _ = on_meta("feddebias-cnn", (1, 28, 28), 10)
    for name in ("conv1", "conv2", "conv3", "conv4"):
        block = net.get_submodule(name)
        assert [type(m) for m in block] == [nn.Conv2d, nn.ReLU, nn.GroupNorm]
        assert block[2].num_groups == 8


def test_dropout_of_fedka_is_off_unless_asked_for_and_drops_whole_maps():
    x = batch("fedka-cnn", 32)
    off = small("fedka-cnn", norm="none").train()
    assert torch.equal(off(x).features, off.eval()(x).features)
    net = small("fedka-cnn", norm="none", dropout=0.5)
    kept = net.eval()(x).taps["conv2"].flatten(2).amax(2) > 0  # (B, C), maps that are not all zero
    with seeds.fork("drop"):
        maps = net.train()(x).taps["conv2"].flatten(2).amax(2) > 0
    gone = 1 - maps[kept].float().mean()
    assert 0.35 < gone < 0.65


@pytest.mark.parametrize("name", ["alexnet", "cct-7-3x1"])
def test_dropout_acts_in_training_only(name):
    x = batch(name)
    off = {"dropout": 0.0} | ({"drop_path": 0.0} if name.startswith("cct") else {})
    net = small(name).train()
    assert not torch.equal(net(x).logits, net(x).logits)
    plain = small(name, **off).train()
    assert torch.equal(plain(x).logits, plain(x).logits)
    assert torch.equal(plain(x).logits, net.eval()(x).logits)


@pytest.mark.parametrize("name", IMAGES)
def test_a_vector_is_no_image(name):
    with pytest.raises(ConfigError, match=rf"^{name}.* takes images .*\(384,\)[^\n]*$"):
        build(name, (384,), 5)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("alexnet", 63),
        ("alexnet-bn", 63),
        ("cct-7-3x1", 4),
        ("cnn", 8),
        ("efficientnet-lite0", 32),
        ("feddebias-cnn", 4),
        ("fedka-cnn", 16),
        ("lenet", 12),
        ("mnist-cnn", 4),
        ("resnet10", 8),
        ("resnet18", 16),
        ("resnet34", 16),
        ("resnet50", 16),
        ("vgg11", 32),
    ],
)
def test_the_smallest_image_works_and_a_smaller_one_is_refused(name, least):
    _, shapes = on_meta(name, (3, least, least + 5), 5)
    assert shapes["logits"] == (5,)
    too_small = rf"^{name}.* at least {least}x{least}.*\(3, {least + 5}, {least - 1}\)[^\n]*$"
    with pytest.raises(ConfigError, match=too_small):
        build(name, (3, least + 5, least - 1), 5)


@pytest.mark.parametrize("width", [0, -1, 9, "wide", None, float("nan")])
def test_a_width_that_is_no_multiplier_is_refused(width):
    with pytest.raises(ConfigError, match=r"width is .*; it multiplies .* above 0 and at most 8"):
        scaled(64, width)


@pytest.mark.parametrize("name", [n for n in IMAGES if n != "cnn"])
def test_half_the_width_is_half_the_channels(name):
    shape = (3, 64, 64)
    whole, half = (on_meta(name, shape, 5, width=w)[1] for w in (1.0, 0.5))
    assert half["features"][0] * 2 == whole["features"][0]
    first = next(iter(whole))
    axis = -1 if first == "tokens" else 0
    assert half[first][axis] * 2 == whole[first][axis]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18", {"stem": "tiny"}, r"stem is 'tiny'; it takes imagenet or small"),
        ("resnet18", {"bottleneck": -1}, r"bottleneck is -1; .*or 0 for none"),
        ("resnet18", {"bottleneck": "yes"}, r"bottleneck is 'yes'"),
        ("alexnet", {"dropout": 1.0}, r"dropout is 1.0; it must be a number from 0 to below 1"),
        ("fedka-cnn", {"dropout": "half"}, r"dropout is 'half'"),
        ("cct-7-3x1", {"drop_path": -0.1}, r"drop_path is -0.1"),
        ("cct-7-3x1", {"residual": "post"}, r"residual is 'post'; it takes plain or normed"),
    ],
)
def test_a_wrong_option_is_named(name, options, message):
    with pytest.raises(ConfigError, match=message):
        small(name, **options)
