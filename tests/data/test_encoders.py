"""Stored features: each image is encoded once, and a run on them is the run with a frozen body."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedshift.backbones import efficientnet
from fedshift.backbones.efficientnet import efficientnet_lite0
from fedshift.backbones.pretrained import read_weights
from fedshift.base import seeds
from fedshift.base.errors import ConfigError, DataError, UnknownNameError
from fedshift.base.extras import is_installed
from fedshift.core.config import configure
from fedshift.data import encoders
from fedshift.data.encoders import ENCODERS, ImageEncoder, encoded
from fedshift.data.library import loaded
from fedshift.data.registry import DATASETS
from fedshift.data.samples import Domain, as_input
from fedshift.data.store import checksum
from fedshift.engine.federation import data_fingerprint, federate, options_of, stored
from fedshift.experiment.models import load_model
from fedshift.experiment.run import run
from fedshift.testing import tiny_scenario

SIZE, NARROW = 32, {"width": 0.125}
DOMAINS = ("dark", "bright", "tinted")


def pictures(name, n=40):
    rng = seeds.numpy("pictures", name)
    x = torch.from_numpy(rng.integers(0, 255, (n, SIZE, SIZE, 3), dtype=np.uint8))
    y = torch.arange(n) % 2
    x[y == 1, :, : SIZE // 2] //= 4
    return Domain(name, x, y, torch.from_numpy(np.arange(n) % 5 // 3).byte() * 2, ("a", "b"))


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A dataset ``pictures``, and an encoder ``narrow`` from a file of weights; counts its work."""
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    path = tmp_path / "narrow.pth"
    with seeds.fork("weights"):
        torch.save(efficientnet_lite0((3, SIZE, SIZE), 9, **NARROW).state_dict(), path)
    net = efficientnet_lite0((3, SIZE, SIZE), 2, **NARROW, pretrained=str(path)).eval()
    done: list[int] = []

    @torch.no_grad()
    def features(images):
        done.append(len(images))
        return net(as_input(images)).features

    DATASETS.register("pictures")(lambda: {name: pictures(name) for name in DOMAINS})
    ENCODERS.register("narrow")(lambda: ImageEncoder("narrow 1", features))
    loaded._LOADED.clear()
    yield str(path), done
    loaded._LOADED.clear()
    DATASETS.forget("pictures")
    ENCODERS.forget("narrow")


def scenario(**changes):
    given = {"data": "pictures", "backbone_options": {}, "batch_size": 8, "epochs": 1, "rounds": 2}
    return tiny_scenario(**(given | changes))


def on_features(**changes):
    given = {"backbone": "linear", "data_options": {"encoder": "narrow"}}
    return scenario(**(given | changes))


def test_each_image_is_encoded_once_and_its_features_are_the_nets(data, tmp_path):
    path, done = data
    domain = pictures("dark")
    found = encoded(domain, "narrow", tmp_path / "kept")
    assert sum(done) == len(domain.x)
    net = efficientnet_lite0((3, SIZE, SIZE), 2, **NARROW, pretrained=path).eval()
    with torch.no_grad():
        expected = net(as_input(domain.x)).features
    torch.testing.assert_close(found.x, expected, atol=1e-6, rtol=1e-5)
    again = encoded(domain, "narrow", tmp_path / "kept")
    assert sum(done) == len(domain.x)
    assert torch.equal(again.x, found.x)
    assert again.checksum == found.checksum
    assert all(torch.equal(getattr(found, k), getattr(domain, k)) for k in ("y", "split"))


def test_other_images_and_other_weights_have_features_of_their_own(data, tmp_path):
    _, done = data
    domain = pictures("dark")
    marks = [encoded(domain, "narrow", tmp_path).checksum]
    changed = domain.x.clone()
    changed[0, 0, 0, 0] ^= 1
    marks.append(encoded(replace(domain, x=changed), "narrow", tmp_path).checksum)
    narrow = ENCODERS.get("narrow").build()
    ENCODERS.register("narrow")(lambda: replace(narrow, fingerprint="narrow 2"))
    marks.append(encoded(domain, "narrow", tmp_path).checksum)
    assert len({*marks, checksum(domain)}) == 4
    assert sum(done) == 3 * len(domain.x)


def test_the_rounding_of_a_machine_changes_no_identity(data, tmp_path):
    narrow = ENCODERS.get("narrow").build()
    here = encoded(pictures("dark"), "narrow", tmp_path / "here")
    ENCODERS.register("narrow")(
        lambda: replace(narrow, features=lambda images: narrow.features(images) * (1 + 1e-6))
    )
    there = encoded(pictures("dark"), "narrow", tmp_path / "there")
    assert not torch.equal(here.x, there.x)
    assert checksum(here) == checksum(there)


def test_damaged_features_are_made_again(data, tmp_path):
    _, done = data
    first = encoded(pictures("dark"), "narrow", tmp_path)
    (file,) = tmp_path.glob("*/x.npy")
    blob = bytearray(file.read_bytes())
    blob[-1] ^= 255
    file.write_bytes(blob)
    again = encoded(pictures("dark"), "narrow", tmp_path)
    assert sum(done) == 2 * len(first.x)
    assert torch.equal(again.x, first.x)


def test_blocks_cover_every_image(data, tmp_path, monkeypatch):
    _, done = data
    monkeypatch.setattr(encoders, "BLOCK", 7)
    assert encoded(pictures("dark"), "narrow", tmp_path).x.shape == (40, 160)
    assert done == [7] * 5 + [5]


def test_a_federated_head_on_stored_features_is_the_head_of_a_frozen_net(data):
    path, done = data
    options = {**NARROW, "pretrained": path, "train": "head"}
    frozen = scenario(backbone="efficientnet-lite0", backbone_options=options)
    images, vectors = run("fedavg", frozen, seed=3), run("fedavg", on_features(), seed=3)
    assert sum(done) == 3 * 40  # every image of every domain, once in the whole run
    for a, b in zip(images.history, vectors.history, strict=True):
        assert b["losses"]["task"] == pytest.approx(a["losses"]["task"], rel=1e-5)
        for protocol, scored in a["scores"].items():
            assert b["scores"][protocol]["test"]["confusion"] == scored["test"]["confusion"]
            assert b["scores"][protocol]["test"]["loss"] == pytest.approx(scored["test"]["loss"])
    sent = [result.summary["bytes"]["train"]["down"] for result in (images, vectors)]
    assert sent[0] == sent[1]  # the head alone


def test_training_moves_the_head_and_nothing_else(data, tmp_path):
    path, _ = data
    options = {**NARROW, "pretrained": path, "train": "head"}
    frozen = scenario(backbone="efficientnet-lite0", backbone_options=options)
    run("fedavg", frozen, out=tmp_path / "run")
    net = load_model(tmp_path / "run").net
    before = read_weights(Path(path))
    body = [key for key in before if not key.startswith("fc.")]
    assert len(body) == 294
    assert all(torch.equal(net.state_dict()[key], before[key]) for key in body)


def test_a_model_of_features_classifies_images_that_are_encoded(data, tmp_path):
    run("fedavg", on_features(rounds=1), out=tmp_path / "run")
    features = ENCODERS.get("narrow").build().features
    named = load_model(tmp_path / "run").predict(features(pictures("dark").x[:3]))
    assert len(named) == 3
    assert set(named) <= {"a", "b"}


def test_a_run_has_one_name_whether_features_are_stored_or_not(data):
    _, done = data
    first = data_fingerprint(on_features()), configure("fedavg", on_features())[0].name
    loaded._LOADED.clear()
    again = data_fingerprint(on_features()), configure("fedavg", on_features())[0].name
    assert first == again
    assert sum(done) == 3 * 40
    assert first[0] != data_fingerprint(scenario())


def test_a_worker_process_is_handed_features_and_encodes_nothing(data):
    _, done = data
    stores = stored(on_features())
    before = sum(done)
    loaded._LOADED.clear()
    loaded.adopt("pictures", options_of(on_features()), stores)
    made = federate(on_features(), 0)
    assert sum(done) == before
    assert made.sites["dark-0"].data.train.x is stores["dark"].x


def test_results_say_that_inputs_are_features(data):
    assert federate(on_features(), 0).shape == (160,)
    assert on_features().confounders()["inputs"] == "features of narrow, stored once"
    assert "inputs" not in scenario().confounders()


def test_what_cannot_be_encoded_is_refused_in_one_line(data, tmp_path):
    with pytest.raises(UnknownNameError, match="encoder"):
        loaded.load("pictures", json.dumps({"encoder": "efficientnet-lite"}))
    vectors = encoded(pictures("dark"), "narrow", tmp_path)
    with pytest.raises(DataError, match=r"has vectors of shape \(160,\).*leave .*encoder out"):
        encoded(vectors, "narrow", tmp_path)
    with pytest.raises(ConfigError, match=r"augment is 'csac', which changes images.*augment=none"):
        run("fedavg", on_features(augment="csac"))
    with pytest.raises(ConfigError, match=r"not inputs of shape \(160,\); use mlp or linear"):
        run("fedavg", on_features(backbone="cnn"))


@pytest.mark.skipif(not is_installed(efficientnet.PACKAGE), reason="needs the extra pretrained")
def test_the_published_encoder_has_1280_features_and_takes_grey_images():
    encoder = ENCODERS.get("efficientnet-lite0").build()
    colour = pictures("dark").x[:2]
    grey = colour[..., :1]
    found = encoder.features(grey)
    assert found.shape == (2, 1280)
    assert torch.equal(found, encoder.features(grey.expand(-1, -1, -1, 3)))
    net = efficientnet_lite0((3, SIZE, SIZE), 1000, pretrained="imagenet").eval()
    with torch.no_grad():
        expected = net((colour.permute(0, 3, 1, 2).double() / 127.5 - 1).float()).features
    torch.testing.assert_close(encoder.features(colour), expected, atol=1e-4, rtol=1e-3)
