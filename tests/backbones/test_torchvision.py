"""Nets in torchvision's layout: keys and shapes by a rule of our own, and weights from files."""

from __future__ import annotations

import os

import pytest
import safetensors.torch
import torch
from torch.nn import functional as F

from fedshift.backbones.alexnet import alexnet
from fedshift.backbones.pretrained import load_pretrained, read_weights
from fedshift.backbones.resnet import resnet18, resnet34, resnet50
from fedshift.backbones.vgg import vgg11
from fedshift.base import seeds
from fedshift.base.errors import ConfigError

WIDTH, BASE = 0.125, 8


def batch_norm(path, channels):
    one = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (channels,))
    return {f"{path}.{k}": v for k, v in (one | {"num_batches_tracked": ()}).items()}


def resnet_layout(depths, expansion, base=64, classes=1000):
    """State dict of torchvision's ResNets: basic blocks (expansion 1) or bottlenecks (4)."""
    out = {"conv1.weight": (base, 3, 7, 7)} | batch_norm("bn1", base)
    before = base
    for i, depth in enumerate(depths):
        c, wide = base * 2**i, base * 2**i * expansion
        for j in range(depth):
            path = f"layer{i + 1}.{j}"
            shapes = [(c, before, 3, 3), (c, c, 3, 3)]
            if expansion == 4:
                shapes = [(c, before, 1, 1), (c, c, 3, 3), (wide, c, 1, 1)]
            for k, shape in enumerate(shapes, start=1):
                out |= {f"{path}.conv{k}.weight": shape} | batch_norm(f"{path}.bn{k}", shape[0])
            if j == 0 and (i > 0 or before != wide):
                out |= {f"{path}.downsample.0.weight": (wide, before, 1, 1)}
                out |= batch_norm(f"{path}.downsample.1", wide)
            before = wide
    return out | {"fc.weight": (classes, before), "fc.bias": (classes,)}


def alexnet_layout(width=1.0, classes=1000):
    def n(channels):
        return int(channels * width)

    weights = {
        "features.0": (n(64), 3, 11, 11),
        "features.3": (n(192), n(64), 5, 5),
        "features.6": (n(384), n(192), 3, 3),
        "features.8": (n(256), n(384), 3, 3),
        "features.10": (n(256), n(256), 3, 3),
        "classifier.1": (n(4096), n(256) * 36),
        "classifier.4": (n(4096), n(4096)),
        "classifier.6": (classes, n(4096)),
    }
    return {
        key: value
        for path, shape in weights.items()
        for key, value in ((f"{path}.weight", shape), (f"{path}.bias", shape[:1]))
    }


def vgg_layout(numbers, width=1.0):
    """Convs of VGG-11 at their places in ``features``."""
    channels = [3, 64, 128, 256, 256, 512, 512, 512, 512]
    sizes = [3, *(int(c * width) for c in channels[1:])]
    out = {}
    for number, before, after in zip(numbers, sizes, sizes[1:], strict=False):
        out[f"features.{number}.weight"] = (after, before, 3, 3)
        out[f"features.{number}.bias"] = (after,)
    return out


def filled(layout):
    """Random tensors in a layout; counters are integers."""
    source = seeds.generator("weights")
    return {
        k: torch.randn(v, generator=source) if v else torch.tensor(7) for k, v in layout.items()
    }


def layout_of(net):
    return {k: tuple(v.shape) for k, v in net.state_dict().items()}


def on_meta(build, shape, classes, **options):
    with torch.device("meta"):
        return layout_of(build(shape, classes, **options))


def narrow(classes=1000, **options):
    with seeds.fork("narrow"):
        return resnet18((3, 32, 32), classes, width=WIDTH, **options)


@pytest.fixture
def weights():
    return filled(resnet_layout((2, 2, 2, 2), 1, BASE))


@pytest.fixture
def file(tmp_path, weights):
    path = tmp_path / "resnet18.pth"
    torch.save(weights, path)
    return path


def test_resnets_have_the_keys_of_torchvision_in_their_order():
    image = (3, 224, 224)
    expected = resnet_layout((2, 2, 2, 2), 1)
    assert len(expected) == 122  # of torchvision's resnet18
    assert list(on_meta(resnet18, image, 1000).items()) == list(expected.items())
    expected = resnet_layout((3, 4, 6, 3), 1)
    assert list(on_meta(resnet34, image, 1000).items()) == list(expected.items())
    expected = resnet_layout((3, 4, 6, 3), 4)
    assert len(expected) == 320  # of torchvision's resnet50
    assert list(on_meta(resnet50, image, 1000).items()) == list(expected.items())


def test_alexnet_has_the_keys_of_torchvision_in_their_order():
    found = on_meta(alexnet, (3, 224, 224), 1000)
    assert list(found.items()) == list(alexnet_layout().items())


def test_vgg11_has_the_feature_keys_of_torchvision():
    found = on_meta(vgg11, (3, 32, 32), 10)
    head = {"fc.weight": (10, 512), "fc.bias": (10,)}
    assert found == vgg_layout((0, 3, 6, 8, 11, 13, 16, 18)) | head
    found = on_meta(vgg11, (3, 32, 32), 10, norm="batch")
    plain = vgg_layout((0, 4, 8, 11, 15, 18, 22, 25))  # vgg11_bn: a norm after each conv
    norms = {}
    for path, shape in plain.items():
        number = int(path.split(".")[1])
        norms |= batch_norm(f"features.{number + 1}", shape[0])
    assert found == plain | norms | head


def functional_resnet(w, x, depths, convs, stem_stride=2):
    """Logits from a torchvision state dict in evaluation, written with functions alone."""

    def norm(y, path):
        stats = (w[f"{path}.running_mean"], w[f"{path}.running_var"])
        return F.batch_norm(y, *stats, w[f"{path}.weight"], w[f"{path}.bias"])

    x = F.relu(norm(F.conv2d(x, w["conv1.weight"], stride=stem_stride, padding=3), "bn1"))
    x = F.max_pool2d(x, 3, 2, 1)
    for i, depth in enumerate(depths):
        for j in range(depth):
            path, stride, y = f"layer{i + 1}.{j}", 2 if i and not j else 1, x
            for k in range(1, convs + 1):
                kernel = w[f"{path}.conv{k}.weight"]
                at = stride if k == (1 if convs == 2 else 2) else 1  # 3x3 has the stride (v1.5)
                y = F.conv2d(y, kernel, stride=at, padding=kernel.shape[2] // 2)
                y = norm(y, f"{path}.bn{k}")
                y = F.relu(y) if k < convs else y
            if f"{path}.downsample.0.weight" in w:
                short = F.conv2d(x, w[f"{path}.downsample.0.weight"], stride=stride)
                x = norm(short, f"{path}.downsample.1")
            x = F.relu(x + y)
    return F.linear(x.mean((2, 3)), w["fc.weight"], w["fc.bias"])


@pytest.mark.parametrize(
    ("build", "depths", "expansion"),
    [(resnet18, (2, 2, 2, 2), 1), (resnet34, (3, 4, 6, 3), 1), (resnet50, (3, 4, 6, 3), 4)],
)
def test_a_resnet_computes_what_its_state_dict_says(build, depths, expansion):
    with seeds.fork("resnet"):
        net = build((3, 48, 40), 6, width=WIDTH).eval()
    x = torch.randn(2, 3, 48, 40, generator=seeds.generator("x"))
    expected = functional_resnet(net.state_dict(), x, depths, 3 if expansion == 4 else 2)
    torch.testing.assert_close(net(x).logits, expected, atol=1e-4, rtol=1e-4)


def test_alexnet_computes_what_its_state_dict_says():
    with seeds.fork("alexnet"):
        net = alexnet((3, 80, 70), 6, width=WIDTH).eval()
    w, x = net.state_dict(), torch.randn(2, 3, 80, 70, generator=seeds.generator("x"))
    expected = x
    for i, stride, padding, pool in ((0, 4, 2, 1), (3, 1, 2, 1), (6, 1, 1, 0), (8, 1, 1, 0)):
        kernel, bias = w[f"features.{i}.weight"], w[f"features.{i}.bias"]
        expected = F.relu(F.conv2d(expected, kernel, bias, stride, padding))
        expected = F.max_pool2d(expected, 3, 2) if pool else expected
    last = F.relu(F.conv2d(expected, w["features.10.weight"], w["features.10.bias"], padding=1))
    flat = F.adaptive_avg_pool2d(F.max_pool2d(last, 3, 2), 6).flatten(1)
    for i in (1, 4):
        flat = F.relu(F.linear(flat, w[f"classifier.{i}.weight"], w[f"classifier.{i}.bias"]))
    expected = F.linear(flat, w["classifier.6.weight"], w["classifier.6.bias"])
    torch.testing.assert_close(net(x).logits, expected, atol=1e-5, rtol=1e-4)


def test_a_checkpoint_of_torchvision_is_loaded_whole(file, weights):
    found = narrow(pretrained=str(file)).state_dict()
    assert all(torch.equal(found[k], v) for k, v in weights.items())


def test_the_file_of_a_hub_is_loaded_whole(tmp_path, weights):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(weights, path)
    found = narrow(pretrained=str(path)).state_dict()
    assert all(torch.equal(found[k], v) for k, v in weights.items())


def test_a_head_of_other_classes_stays_new(file, weights):
    found, fresh = narrow(7, pretrained=str(file)).state_dict(), narrow(7).state_dict()
    for key, value in found.items():
        expected = fresh[key] if key.startswith("fc.") else weights[key]
        assert torch.equal(value, expected), key


def test_a_file_without_a_head_leaves_it_new(file, weights):
    torch.save({k: v for k, v in weights.items() if not k.startswith("fc.")}, file)
    found, fresh = narrow(pretrained=str(file)).state_dict(), narrow().state_dict()
    assert torch.equal(found["fc.weight"], fresh["fc.weight"])
    assert torch.equal(found["conv1.weight"], weights["conv1.weight"])


def test_a_bottleneck_stays_new_and_the_rest_is_loaded(file, weights):
    found = narrow(1000, bottleneck=16, pretrained=str(file)).state_dict()
    fresh = narrow(1000, bottleneck=16).state_dict()
    new = {k for k in found if k.startswith(("fc.", "bottleneck."))}
    assert all(torch.equal(found[k], fresh[k] if k in new else weights[k]) for k in found)
    torch.save({k: v + 1 for k, v in fresh.items()}, file)  # and one of our own is loaded whole
    found = narrow(1000, bottleneck=16, pretrained=str(file)).state_dict()
    assert all(torch.equal(found[k], fresh[k] + 1) for k in found)


def test_older_checkpoints_have_no_counters_and_another_format(file, weights):
    old = {k: torch.nn.Parameter(v) for k, v in weights.items() if v.dim()}
    torch.save(old, file, _use_new_zipfile_serialization=False)
    found = narrow(pretrained=str(file)).state_dict()
    assert all(torch.equal(found[k], v) for k, v in old.items())
    assert int(found["bn1.num_batches_tracked"]) == 0


def test_alexnet_is_loaded_but_for_its_head(tmp_path):
    weights = filled(alexnet_layout(WIDTH))
    path = tmp_path / "alexnet.pth"
    torch.save(weights, path)
    found = alexnet((3, 64, 64), 7, width=WIDTH, pretrained=str(path)).state_dict()
    body = [k for k in found if not k.startswith("classifier.6")]
    assert len(body) == 14
    assert all(torch.equal(found[k], weights[k]) for k in body)


def test_vgg11_takes_the_features_and_leaves_the_classifier(tmp_path):
    numbers = (0, 3, 6, 8, 11, 13, 16, 18)
    weights = filled(vgg_layout(numbers, WIDTH) | {"classifier.0.weight": (4, 9)})
    path = tmp_path / "vgg11.pth"
    torch.save(weights, path)
    found = vgg11((3, 32, 32), 7, width=WIDTH, pretrained=str(path)).state_dict()
    kept = [k for k in weights if k.startswith("features.")]
    assert len(kept) == 16
    assert all(torch.equal(found[k], weights[k]) for k in kept)


def fails(message, path, **options):
    """Loading raises one line that names the file and says ``message``."""
    with pytest.raises(ConfigError, match=message) as caught:
        narrow(pretrained=str(path), **options)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_wrong_shape_names_key_both_shapes_and_remedy(file, weights):
    fails(
        r"conv1.weight of shape \(8, 3, 7, 7\), but it is \(8, 3, 3, 3\).*; use .*stem",
        file,
        stem="small",
    )
    torch.save(weights | {"layer4.1.bn2.bias": torch.zeros(65)}, file)
    fails(r"layer4.1.bn2.bias of shape \(65,\), but it is \(64,\) in this net; use", file)


def test_a_missing_key_is_named(file, weights):
    del weights["layer3.0.downsample.0.weight"]
    torch.save(weights, file)
    fails(r"lacks layer3.0.downsample.0.weight, which is \(32, 16, 1, 1\) in this net; use", file)


def test_a_deeper_net_is_not_taken_for_a_shallow_one(file):
    torch.save(filled(resnet_layout((3, 4, 6, 3), 1, BASE)), file)
    fails(r"has layer1.2.conv1.weight of shape \(8, 8, 3, 3\), which this net lacks; use", file)


@pytest.mark.parametrize(
    ("norm", "message"),
    [("group", r"has bn1.running_mean .* lacks; use"), ("none", r"lacks conv1.bias, which is")],
)
def test_weights_with_batch_norm_do_not_fit_another_norm(file, norm, message):
    fails(message, file, norm=norm)


def test_a_failed_load_leaves_the_net_as_it_was(file, weights):
    torch.save(weights | {"layer4.1.bn2.bias": torch.zeros(65)}, file)
    net, before = narrow(), narrow().state_dict()
    with pytest.raises(ConfigError):
        load_pretrained(net, file)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    fails(r"do not exist; nothing is downloaded", tmp_path / "none.pth")
    (tmp_path / "folder.pth").mkdir()
    fails(r"do not exist", tmp_path / "folder.pth")
    fails(r"it takes a .pth, .pt or .safetensors file", tmp_path / "weights.npz")


class Trap:
    """Makes a directory when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_with_code_in_it_is_refused_and_not_run(tmp_path, weights, zipped):
    path, mark = tmp_path / "trap.pth", tmp_path / "mark"
    trapped = weights | {"fc.bias": Trap(mark)}
    torch.save(trapped, path, _use_new_zipfile_serialization=zipped)
    fails(r"is refused: .*could run code; save model.state_dict\(\) alone", path)
    assert not mark.exists()


def test_a_damaged_file_is_refused_however_it_is_damaged(tmp_path):
    plain, broken = tmp_path / "whole", tmp_path / "broken"
    source = seeds.numpy("damage")
    for suffix in (".pth", ".pt", ".safetensors"):
        if suffix == ".safetensors":
            safetensors.torch.save_file({"a": torch.zeros(3)}, plain)
        else:
            torch.save({"a": torch.zeros(3)}, plain, _use_new_zipfile_serialization=suffix == ".pt")
        whole = plain.read_bytes()
        for size in (0, 5, *source.integers(1, len(whole) - 16, 20)):
            path = broken.with_suffix(suffix)
            path.write_bytes(whole[:size])
            with pytest.raises(ConfigError, match=r"broken.* (refused|cannot be read)[^\n]*$"):
                read_weights(path)


@pytest.mark.parametrize("content", [{"state_dict": {}}, [torch.zeros(2)], {1: torch.zeros(2)}])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    path = tmp_path / "training.pth"
    torch.save(content, path)
    fails(r"is not a state dict of tensors by name; save model.state_dict\(\) alone", path)
