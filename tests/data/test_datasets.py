"""Datasets by name: their options, your own data, and the real ones where their files are."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError, DataError, UnknownNameError
from fedshift.base.files import home
from fedshift.data.catalogue import CATALOGUE
from fedshift.data.library.datasets import add, card_of, own_datasets
from fedshift.data.registry import DATASETS

SHARED = Path(__file__).parents[3] / "shared" / "data"
REAL = Path(os.environ.get("FEDSHIFT_SOURCES") or SHARED)
CLASSES = np.array([str(i) for i in range(10)])


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDSHIFT_SOURCES", str(tmp_path / "sources"))


@pytest.fixture(scope="module")
def real_home(tmp_path_factory):
    return tmp_path_factory.mktemp("real")


@pytest.fixture
def real(monkeypatch, real_home):
    """Builds a dataset from the real files, once per module."""

    def build(folder, name, **options):
        if not (REAL / folder).is_dir():
            pytest.skip(f"no {folder} in {REAL}; set FEDSHIFT_SOURCES")
        monkeypatch.setenv("FEDSHIFT_SOURCES", str(REAL))
        monkeypatch.setenv("FEDSHIFT_HOME", str(real_home))
        return DATASETS.get(name).build(**options)

    return build


def splits(domains):
    return {n: (len(d.rows(0)), len(d.rows(2))) for n, d in domains.items()}


def source(tmp_path, name="digits", domains=("mnist",), count=12):
    """Images whose pixel value is their class, a mark in the top row."""
    folder = tmp_path / "sources" / name
    folder.mkdir(parents=True, exist_ok=True)
    y = np.repeat(np.arange(10), count)
    rng = np.random.default_rng(0)
    for domain in domains:
        x = rng.integers(0, 255, (len(y), 9, 9, 3), dtype=np.uint8)
        split = (np.arange(len(y)) % 4 == 0).astype(np.uint8)
        np.savez(folder / f"{domain}.npz", x=x, y=y, classes=CLASSES, split=split)
    return folder


def build(name, **options):
    return DATASETS.get(name).build(**options)


def test_every_card_is_a_dataset_and_without_a_source_says_what_to_do():
    for name, card in CATALOGUE.items():
        entry = DATASETS.get(name)
        assert entry.summary.endswith(".")
        with pytest.raises(DataError) as caught:
            entry.build()
        text = str(caught.value)
        assert f"dataset {name!r} is not prepared and has no source" in text
        assert f"`fedshift data prepare {name}`" in text
        assert "from a folder DIR with DIR/<domain>" in text
        assert caught.value.options[-1] == ("from=hub or DIR" if card.hub else "from=DIR")
        assert all(hub.id in text for hub in card.hub)
        assert "\n" not in text


def test_options_of_a_dataset_are_the_parameters_of_its_builder():
    def options(name):
        return list(DATASETS.get(name).options)

    assert options("pacs") == ["size"]
    assert options("rotated-mnist") == ["size", "angles", "per_class", "disjoint"]
    assert options("amazon-review") == ["form", "encoder"]
    assert options("domainnet-10") == ["size", "only"]
    assert options("femnist") == ["size", "sites"]
    assert DATASETS.get("rotated-mnist-10").options["disjoint"].default is True


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("pacs", {"size": 0}, "size is 0; it must be at least 1"),
        ("pacs", {"size": 1.5}, "size is 1.5; it takes a whole number"),
        ("pacs", {"sizes": 1}, "no option of dataset 'pacs' is called 'sizes'; did you mean size"),
        ("rotated-mnist", {"angles": "0,x"}, "angles is '0,x'; write degrees such as 0,15,30"),
        ("rotated-mnist", {"angles": "0,0"}, "name at least one, each once"),
        ("amazon-review", {"form": "bert"}, "no form of amazon-review is called 'bert'"),
        ("amazon-review", {"form": "text"}, "an encoder, a Python file that defines encode"),
        ("amazon-review", {"form": "text", "encoder": "no.py"}, "encoder no.py does not exist"),
    ],
)
def test_bad_options_are_one_line(name, options, expected):
    with pytest.raises((ConfigError, UnknownNameError)) as caught:
        build(name, **options)
    assert expected in str(caught.value)


def test_digits_are_found_in_the_shared_layout_with_a_note_about_syn(tmp_path):
    source(tmp_path, "digits", ("mnist", "usps", "svhn", "syn_regen", "meter"))
    domains = build("digits-4", size="6")
    assert list(domains) == ["mnist", "usps", "svhn", "syn"]
    assert domains["syn"].shape == (3, 6, 6)
    (report,) = home().glob("digits-4/6/report.json")
    assert "syn is syn_regen.npz: regenerated from fonts, not the SYN" in report.read_text()


def test_rotated_mnist_has_the_same_images_at_each_angle_clockwise(tmp_path):
    source(tmp_path)
    domains = build("rotated-mnist", per_class=10, angles="0,90")
    assert {n: len(d.y) for n, d in domains.items()} == {"deg0": 100, "deg90": 100}
    upright, turned = domains["deg0"], domains["deg90"]
    assert torch.equal(upright.split, turned.split)
    assert torch.equal(upright.x.rot90(-1, (1, 2)), turned.x)  # -1 is clockwise
    with pytest.raises(DataError, match="has 12 images; per_class=100 needs more; lower it"):
        build("rotated-mnist")


def test_rotated_mnist_10_gives_each_training_image_to_one_angle(tmp_path):
    source(tmp_path)
    domains = build("rotated-mnist-10")
    assert list(domains)[:3] == ["deg0", "deg15", "deg30"]
    assert len(domains) == 10
    assert sum(len(d.rows(0)) for d in domains.values()) == 90
    assert all(len(d.rows(2)) == 30 for d in domains.values())
    whole = build("rotated-mnist-10", disjoint=False, angles="0,90")
    assert torch.equal(whole["deg0"].x.rot90(1, (1, 2)), whole["deg90"].x)


def test_sites_of_a_hub_layout_are_domains_and_the_largest_may_be_kept(tmp_path):
    import io

    import pandas as pd
    from PIL import Image

    rows = []
    for writer, count in {"f1": 3, "f2": 9, "f3": 6}.items():
        for i in range(count):
            buffer = io.BytesIO()
            Image.new("L", (28, 28), i).save(buffer, "PNG")
            image = {"bytes": buffer.getvalue(), "path": None}
            rows.append({"image": image, "writer_id": writer, "character": i % 3})
    (tmp_path / "sources" / "femnist" / "data").mkdir(parents=True)
    pd.DataFrame(rows).to_parquet(tmp_path / "sources" / "femnist" / "data" / "train-0.parquet")
    assert {n: len(d.y) for n, d in build("femnist").items()} == {"f1": 3, "f2": 9, "f3": 6}
    largest = build("femnist", sites=2, size=14)
    assert list(largest) == ["f2", "f3"]
    assert largest["f2"].shape == (3, 14, 14)
    assert largest["f2"].classes == ("0", "1", "2")


def images(root, domains="xy"):
    from PIL import Image

    for i, name in enumerate(domains):
        for kind in ("cat", "dog"):
            (root / name / kind).mkdir(parents=True)
            for k in range(5):
                size = (8 + i, 8)
                Image.new("RGB", size, (k, i, 0)).save(root / name / kind / f"{k}.png")
    return root


def test_own_images_are_a_dataset_in_one_call_and_found_again(tmp_path):
    card, report = add("my-cats", images(tmp_path / "cats"), size=4)
    assert report["left_out"] == []
    assert (card.domains, card.class_names, card.form) == (
        ("x", "y"),
        ("cat", "dog"),
        "3x4x4 images",
    )
    assert own_datasets() == ["my-cats"]
    assert build("my-cats")["x"].shape == (3, 4, 4)  # its size is remembered
    assert build("my-cats", size=6)["x"].shape == (3, 6, 6)  # and may be changed
    assert DATASETS.get("my-cats").summary.startswith("Your own, from")


def test_own_vectors_with_names_that_are_no_folders(tmp_path):
    path = tmp_path / "v.csv"
    lines = [f"{i % 2},{d},{i},{i * i}" for d in ("a/b", "..") for i in range(10)]
    path.write_text("\n".join(["kind,site,u,v", *lines]))
    card, _ = add("numbers", path, columns=("kind", "site"), table={"scale": "none"})
    domains = build("numbers")
    assert sorted(domains) == ["..", "a/b"]
    assert domains["a/b"].x.tolist()[3] == [3, 9]
    assert card.form == "2 vectors"
    assert not list(tmp_path.glob("*.npy"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("pacs", "called 'pacs' already"), ("digits", "already"), ("a/b", "cannot be a dataset")],
)
def test_own_names_must_be_free_and_plain(name, expected, tmp_path):
    with pytest.raises(ConfigError, match=expected):
        add(name, tmp_path)


def test_a_failed_addition_leaves_no_card(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no domain"):
        add("nothing", tmp_path / "empty")
    with pytest.raises(DataError, match="does not exist"):
        add("nothing", tmp_path / "missing")
    assert own_datasets() == []
    with pytest.raises(UnknownNameError, match="no dataset is called 'nothing'"):
        card_of("nothing")


def test_a_card_that_cannot_be_read_is_a_note_not_an_end(caplog):
    (home() / "own").mkdir(parents=True)
    (home() / "own" / "bad.json").write_text("{")
    own_datasets()
    own_datasets()
    (note,) = caplog.messages  # once, however often it is looked at
    assert re.search(r"bad.json is not a card .*; add the data again", note)


def test_real_digits(real):
    assert splits(real("digits", "digit-five")) == {
        "mnist": (4000, 1500),
        "mnist_m": (2500, 800),
        "usps": (3500, 1000),
        "svhn": (2984, 725),
        "syn": (2000, 600),
    }


def test_real_pacs(real):
    domains = real("pacs", "pacs")
    assert splits(domains) == {
        "photo": (1337, 333),
        "art_painting": (1638, 410),
        "cartoon": (1875, 469),
        "sketch": (3143, 786),
    }
    assert domains["photo"].shape == (3, 48, 48)


def test_real_office_caltech(real):
    domains = real("office_caltech10", "office-caltech10")
    assert splits(domains) == {
        "amazon": (760, 198),
        "caltech": (898, 225),
        "dslr": (126, 31),
        "webcam": (237, 58),
    }


def test_real_cifar_and_its_rotations(real):
    assert splits(real("cifar10", "cifar10")) == {"cifar10": (2000, 600)}
    assert splits(real("cifar10", "rotated-cifar10"))["deg135"] == (200, 600)


def test_real_reviews_in_two_forms(real):
    vectors = real("amazon_minilm384", "amazon-review")
    assert list(vectors) == ["books", "dvd", "electronics", "kitchen"]
    norms = vectors["dvd"].x.float().norm(dim=1)
    assert torch.allclose(norms, torch.ones(2000), atol=1e-2)
    counts = real("amazon_bow5000", "amazon-review", form="bow5000")
    assert {n: s[0] for n, s in splits(counts).items()} == dict.fromkeys(vectors, 2000)
    assert counts["books"].shape == (5000,)
