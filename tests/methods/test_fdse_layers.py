"""Wang et al., CVPR 2025, Sec. 4.1: Eqs. 2 and 3, and the counts of Table 4."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
import torch
from torch import nn

from fedshift.base.errors import ConfigError
from fedshift.core.net import Net
from fedshift.core.registry import BACKBONES
from fedshift.methods.fdse.decompose import decompose, decomposed
from fedshift.methods.fdse.layers import Decomposed, LayerForm
from fedshift.methods.fdse.method import DecomposeLayers
from fedshift.methods.fdse.statistics import batch_statistics
from fedshift.testing import start

# Table 4's net by hand: outputs, kernel, stride, padding
ALEXNET = ((64, 11, 4, 2), (192, 5, 1, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1))
POOLED = (True, True, False, False, True)


def backbone(name, shape=(3, 64, 64), classes=7, **options):
    return BACKBONES.get(name).build(shape, classes, **options)


def count(net):
    return sum(p.numel() for p in net.parameters())


def multiplications(*, decomposed, half=False, pixels=256, classes=7):
    """MACs of one image through AlexNet, from the shapes of its layers alone."""
    side, inputs, total = pixels, 3, 0
    for (out, k, stride, padding), pooled in zip(ALEXNET, POOLED, strict=True):
        side = (side + 2 * (k // 2 if half else padding) - k) // stride + 1
        made = ceil(out / 2) if decomposed else out
        total += side**2 * made * inputs * k**2
        total += side**2 * made * 9 if decomposed else 0  # one 3x3 map per channel
        side = (side - 3) // 2 + 1 if pooled else side
        inputs = out
    for wide in (9216, 1024):
        total += wide * 512 + 512 * 2 if decomposed else wide * 1024
    return total + 1024 * classes


def measured(net, images=1):
    """MACs of the net's conv, linear and scale layers, from the shapes that pass through them."""
    total = 0

    def seen(layer, _inputs, out):
        nonlocal total
        fan = layer.weight[0].numel() if not isinstance(layer, nn.Linear) else layer.in_features
        total += out.numel() * (fan if isinstance(layer, nn.Conv2d | nn.Linear) else 1)

    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear) or type(module).__name__ == "Scale":
            module.register_forward_hook(seen)
    with torch.no_grad():
        net.eval()(torch.zeros(1, *net.shape))
    return total * images


def test_alexnet_has_the_parameters_and_macs_of_table_4():
    net = backbone("alexnet-bn", (3, 256, 256))
    assert count(net) == 12_971_079
    assert multiplications(decomposed=False) * 50 == pytest.approx(4.40e10, rel=2e-3)
    assert measured(net) == multiplications(decomposed=False)
    decompose(net, LayerForm(padding="half"))
    assert count(net) == 6_505_959
    assert multiplications(decomposed=True, half=True) * 50 == pytest.approx(2.22e10, rel=1e-3)
    assert measured(net) == multiplications(decomposed=True, half=True)


def test_the_layers_own_padding_costs_a_little_less():
    net = backbone("alexnet-bn", (3, 256, 256))
    decompose(net, LayerForm())
    assert count(net) == 6_505_959
    assert net.conv1[0].dfe.padding == (2, 2)
    assert measured(net) == multiplications(decomposed=True)
    assert multiplications(decomposed=True) * 50 == pytest.approx(2.21e10, rel=2e-3)


def test_the_later_release_has_the_identity_in_its_linear_layers_too():
    """6,504,935: one weight less for each of the two times 512 features that are passed on."""
    net = backbone("alexnet-bn", (3, 64, 64))
    decompose(net, LayerForm(form="ghost-everywhere"))
    assert count(net) == 6_504_935


def normalise(x, layer):
    """BatchNorm in training, (B, C, ...)."""
    axes = (0, *range(2, x.ndim))
    shape = (1, -1, *(1,) * (x.ndim - 2))
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    weight, bias = (p.detach().numpy().reshape(shape) for p in (layer.weight, layer.bias))
    return (x - mean) / np.sqrt(var + layer.eps) * weight + bias


def conv(x, weight, padding, stride=1):
    """(B, S, H, W) with (T, S, k, k)."""
    k = weight.shape[2]
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (k, k), axis=(2, 3))
    return np.einsum("bshwij,tsij->bthw", windows[:, :, ::stride, ::stride], weight)


def drawn(module):
    """In float64, every parameter at random."""
    generator = torch.Generator().manual_seed(0)
    module = module.double()
    for p in module.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return module


@pytest.mark.parametrize("form", ["ghost", "literal"])
@pytest.mark.parametrize(("ratio", "outputs"), [(2, 6), (3, 7)])
@pytest.mark.parametrize(("relu", "own"), [(True, True), (True, False), (False, False)])
def test_a_conv_layer_is_equations_2_and_3(form, ratio, outputs, relu, own):
    layer_form = LayerForm(ratio, form, inner_relu=relu)
    layer = drawn(Decomposed(nn.Conv2d(3, outputs, 5, 2, 1), layer_form, own_norm=own))
    x = np.random.default_rng(0).normal(size=(4, 3, 9, 9))
    weights = {k: p.detach().numpy() for k, p in layer.named_parameters()}
    a = conv(x, weights["dfe.weight"], 1, 2) + weights["dfe.bias"][:, None, None]
    a = normalise(a, layer.bn_dse)
    a = np.maximum(a, 0) if relu else a
    inner = ceil(outputs / ratio)
    assert a.shape[1] == inner
    per = weights["dse.weight"].shape[0] // inner
    assert per == (ratio - 1 if form == "ghost" else ratio)
    kernels = np.split(weights["dse.weight"], inner)  # each channel by itself
    maps = [conv(a[:, [i]], kernel, 1) for i, kernel in enumerate(kernels)]
    out = np.concatenate([a, *maps] if form == "ghost" else maps, 1)[:, :outputs]
    out = out + weights["bias"][:, None, None]
    out = normalise(out, layer.bn_dfe) if own else out
    np.testing.assert_allclose(layer(torch.from_numpy(x)).detach().numpy(), out, atol=1e-10)


@pytest.mark.parametrize("form", ["ghost", "literal", "ghost-everywhere"])
@pytest.mark.parametrize(("ratio", "outputs"), [(2, 6), (3, 7)])
@pytest.mark.parametrize("own", [True, False])
def test_a_linear_layer_is_equations_2_and_3(form, ratio, outputs, own):
    layer = drawn(Decomposed(nn.Linear(5, outputs), LayerForm(ratio, form), own_norm=own))
    x = np.random.default_rng(1).normal(size=(8, 5))
    weights = {k: p.detach().numpy() for k, p in layer.named_parameters()}
    a = np.maximum(normalise(x @ weights["dfe.weight"].T + weights["dfe.bias"], layer.bn_dse), 0)
    maps = np.concatenate([a[:, [i]] * weights["dse.weight"][i] for i in range(a.shape[1])], 1)
    out = np.concatenate([a, maps], 1) if form == "ghost-everywhere" else maps
    out = out[:, :outputs] + weights["bias"]
    out = normalise(out, layer.bn_dfe) if own else out
    np.testing.assert_allclose(layer(torch.from_numpy(x)).detach().numpy(), out, atol=1e-10)


def test_an_extractor_starts_as_the_first_filters_of_the_layer():
    f = nn.Conv2d(3, 7, 3)
    layer = Decomposed(f, LayerForm(), own_norm=False)
    assert torch.equal(layer.dfe.weight, f.weight[:4])
    assert torch.equal(layer.dfe.bias, f.bias[:4])


@pytest.mark.parametrize("shape", [(6, 4, 3, 5), (6, 4)])
def test_batch_statistics_are_equation_4_with_its_gradient(shape):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    mean, variance = batch_statistics(x)
    axes = (0, *range(2, len(shape)))
    np.testing.assert_allclose(mean.detach(), x.detach().numpy().mean(axes), atol=1e-12)
    np.testing.assert_allclose(variance.detach(), x.detach().numpy().var(axes), atol=1e-12)
    assert torch.autograd.gradcheck(batch_statistics, (x,))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("alexnet-bn", {"width": 0.1}),
        ("alexnet", {"width": 0.05}),
        ("resnet10", {"width": 0.1}),
        ("resnet10", {"width": 0.1, "norm": "group", "bottleneck": 8}),
        ("resnet50", {"width": 0.05}),
        ("vgg11", {"width": 0.1}),
        ("cnn", {"width": 4}),
        ("lenet", {}),
        ("feddebias-cnn", {"width": 0.2}),
        ("fedka-cnn", {"width": 0.2}),
    ],
)
def test_every_layer_but_the_head_is_taken_apart_and_shapes_stay(name, options):
    net = backbone(name, **options)
    layers = {
        path: module
        for path, module in net.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
        and path.split(".")[: net.head_path.count(".") + 1] != net.head_path.split(".")
    }
    shapes = net.shapes()
    DecomposeLayers().build(net)
    assert net.shapes() == shapes
    assert {path for path, _ in decomposed(net)} == set(layers)
    out = net.train()(torch.randn(4, *net.shape))
    out.logits.sum().backward()
    norms = [layer.norm_path for _, layer in decomposed(net)]
    assert len(set(norms)) == len(norms)
    for path, layer in decomposed(net):
        assert net.get_submodule(layer.norm_path).num_features == layer.channels
        own = layer.norm_path == f"{path}.bn_dfe"
        assert own is isinstance(layer.bn_dfe, nn.modules.batchnorm._BatchNorm)


def test_the_batch_norm_of_the_backbone_is_the_one_that_reads_the_layer():
    net = backbone("resnet18", width=0.1)
    DecomposeLayers().build(net)
    found = {path: layer.norm_path for path, layer in decomposed(net)}
    assert found["conv1"] == "bn1"
    assert found["layer2.0.conv2"] == "layer2.0.bn2"
    assert found["layer2.0.downsample.0"] == "layer2.0.downsample.1"
    order = list(found)
    assert order.index("layer1.1.conv2") < order.index("layer2.0.conv1")
    late = backbone("feddebias-cnn", width=0.2, norm="batch")  # conv, ReLU, BatchNorm
    DecomposeLayers().build(late)
    assert decomposed(late)[0][1].norm_path == "conv1.0.bn_dfe"


def net_of(*modules):
    return Net(
        {"body": nn.Sequential(*modules), "head": nn.LazyLinear(2)},
        stages={"body": ("body",)},
        head="head",
        shape=(4, 8, 8),
        classes=2,
    )


def test_an_in_place_relu_between_layer_and_norm_parts_them():
    net = net_of(nn.Conv2d(4, 6, 3), nn.ReLU(inplace=True), nn.BatchNorm2d(6))
    DecomposeLayers().build(net)
    assert decomposed(net)[0][1].norm_path == "body.0.bn_dfe"


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x):
        return x * self.gate


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Conv2d(4, 4, 3, groups=4), "body.0 is a Conv2d of 4 groups"),
        (nn.ConvTranspose2d(4, 4, 3), "body.0 is a ConvTranspose2d"),
        (nn.Linear(8, 8), "body.0 is a Linear on inputs of 4 axes"),
        (Gate(), "body.0 is a Gate"),
    ],
)
def test_what_cannot_be_taken_apart_is_named_with_what_to_give(module, said):
    with pytest.raises(ConfigError, match=said) as error:
        DecomposeLayers().build(net_of(module, nn.Conv2d(4, 6, 3)))
    assert "alexnet-bn, resnet10 or cnn" in str(error.value)
    assert "\n" not in str(error.value)
    net = net_of(module, nn.LazyConv2d(6, 3))
    net.shapes()
    DecomposeLayers(leave="body.0").build(net)
    assert [path for path, _ in decomposed(net)] == ["body.1"]


def test_attention_is_refused_before_round_1():
    with pytest.raises(ConfigError, match=r"but tokens\.3 is a Positions"):
        start("fdse", backbone="cct-7-3x1", backbone_options={"width": 0.1})


def test_bad_settings_are_one_line():
    with pytest.raises(ConfigError, match="G is 1, which leaves form=ghost no map"):
        DecomposeLayers(G=1)
    with pytest.raises(ConfigError, match="form is 'other'"):
        DecomposeLayers(form="other")
    with pytest.raises(ConfigError, match="leave names 'conv9', which this backbone does not have"):
        DecomposeLayers(leave="conv9").build(backbone("cnn", width=4))
    with pytest.raises(ConfigError, match="finds no conv or linear layer before the head"):
        DecomposeLayers(leave="block1 block2 block3").build(backbone("cnn", width=4))
    with pytest.raises(ConfigError, match="put decompose-layers before it"):
        start("fedavg + statistics-consistency")


def test_what_other_parts_add_is_left_alone():
    session = start("moon[projector=true] + decompose-layers")
    assert not any(isinstance(m, Decomposed) for m in session.server.net.extra.modules())
    assert len(decomposed(session.server.net)) == 3
