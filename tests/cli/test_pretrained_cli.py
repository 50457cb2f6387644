"""A pretrained net from the command line: on images, on their stored features, and without it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedshift.backbones import efficientnet
from fedshift.base import seeds
from fedshift.base.extras import is_installed
from fedshift.cli import main
from fedshift.data.library import loaded
from fedshift.data.registry import DATASETS

BACKBONE = (
    "--set",
    "scenario.backbone=efficientnet-lite0",
    "--set",
    "backbone.pretrained=imagenet",
)
SHORT = ("--rounds", "1", "--set", "scenario.batch_size=8", "--set", "scenario.protocols=global")
installed = pytest.mark.skipif(
    not is_installed(efficientnet.PACKAGE), reason="needs the extra pretrained"
)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch) -> None:
    """Two domains of two classes, added as the dataset ``mine``."""
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    rng = seeds.numpy("images")
    for site in ("berlin", "madrid"):
        for label in ("cat", "dog"):
            folder = tmp_path / "images" / site / label
            folder.mkdir(parents=True)
            for i in range(10):
                pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    assert run("data", "add", "mine", "images") == 0
    yield
    loaded._LOADED.clear()
    DATASETS.forget("mine")


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    return int(stop.value.code or 0)


@installed
@pytest.mark.usefixtures("mine")
def test_a_head_on_stored_features_of_ones_own_images():
    args = ("run", "--method", "fedavg", "--scenario", "mine", *SHORT)
    encoder = ("--set", "data.encoder=efficientnet-lite0", "--set", "data.size=32")
    assert run(*args, *encoder, "--backbone", "mlp", "--out", "features") == 0
    summary = json.loads(Path("features/summary.json").read_text())
    assert summary["confounders"]["inputs"] == "features of efficientnet-lite0, stored once"
    home = Path(os.environ["FEDSHIFT_HOME"])
    assert len(list(home.glob(".features/*/x.npy"))) == 2  # one per domain
    scenario = json.loads(Path("features/config.json").read_text())["run"]["scenario"]
    assert scenario["data_options"] == {"encoder": "efficientnet-lite0", "size": 32}


@installed
@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("train", ["head", pytest.param("bn", marks=pytest.mark.exhaustive)])
def test_a_frozen_net_sends_its_head_alone(train):
    args = ("run", "--method", "fedavg", "--scenario", "mine", *SHORT, *BACKBONE)
    given = ("--set", f"backbone.train={train}", "--set", "scenario.pixels=inception")
    assert run(*args, *given, "--out", "frozen") == 0
    summary = json.loads(Path("frozen/summary.json").read_text())
    sent = 4 * (1280 * 2 + 2)
    if train == "bn":  # weights, biases, means and variances of 49 BatchNorms, and their counters
        sent += 4 * 2 * 42_016 + 49 * 8
    assert 2 * sent <= summary["bytes"]["train"]["up"] <= 2 * sent + 20_000  # and names


@pytest.mark.usefixtures("mine")
def test_without_the_package_both_say_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(efficientnet, "PACKAGE", "no_such_package")
    for given in (BACKBONE, ("--set", "data.encoder=efficientnet-lite0", "--backbone", "linear")):
        assert run("run", "--method", "fedavg", "--scenario", "mine", *given) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert 'not installed; pip install "fedshift[pretrained]"' in told


@pytest.mark.usefixtures("mine")
def test_an_unknown_encoder_is_a_word_away(capsys):
    given = ("--set", "data.encoder=efficientnet-lite")
    assert run("run", "--method", "fedavg", "--scenario", "mine", *given) == 2
    assert "efficientnet-lite0" in capsys.readouterr().err
