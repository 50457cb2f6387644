"""The prepared store: whole or absent, mapped not copied, and honest about what it lacks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedshift.base.errors import ConfigError, DataError
from fedshift.data import store
from fedshift.data.catalogue import CATALOGUE, DatasetCard, Variant
from fedshift.data.library.inspection import find_duplicates, inspect, sheet, write_pages
from fedshift.data.library.prepare import load, prepare, prepared, read_report, store_of
from fedshift.data.samples import Domain
from fedshift.data.sources import images

CARD = DatasetCard("mine", "mine", (), 0)


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDSHIFT_SOURCES", raising=False)


def tree(root, domains=("x", "y"), classes=("a", "b"), count=5):
    rng = np.random.default_rng(0)
    for domain in domains:
        for kind in classes:
            (root / domain / kind).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                pixels = rng.integers(0, 255, (9, 9, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / domain / kind / f"{i}.png")
    return root


def domain(x, y=None, name="d") -> Domain:
    x = torch.as_tensor(x)
    y = torch.zeros(len(x), dtype=torch.int64) if y is None else torch.as_tensor(y)
    return Domain(name, x, y, torch.zeros(len(x), dtype=torch.uint8), ("a", "b"))


def files(folder):
    return sorted(p.name for p in folder.rglob("*"))


def test_a_store_is_read_back_with_the_names_of_its_files(tmp_path):
    report = prepare(CARD, Variant(4), source=tree(tmp_path / "raw"))
    assert report == {"left_out": [], "notes": []}
    domains = load(CARD, Variant(4))
    assert list(domains) == ["x", "y"]
    assert domains["x"].shape == (3, 4, 4)
    assert (domains["x"].split == 2).sum() == 2
    assert prepared(CARD) == ["4"]
    ids = store.read_ids(store_of(CARD, Variant(4)) / "y")
    assert ids[0] == "y/a/0.png"
    assert len(ids) == 10


def test_a_loaded_store_is_mapped_and_writes_do_not_reach_the_disk(tmp_path):
    folder = tmp_path / "d"
    store.write_domain(folder, domain(torch.zeros(4, 2, dtype=torch.float16)), ["ä", "b", "c", "d"])
    first = store.read_domain(folder)
    first.x[0] = 1
    assert store.read_domain(folder).x[0].sum() == 0
    assert isinstance(np.load(folder / "x.npy", mmap_mode="c"), np.memmap)
    assert store.read_ids(folder)[0] == "ä"


def test_large_stores_are_checked_by_stamp_and_in_full_on_demand(tmp_path, monkeypatch):
    folder = tmp_path / "d"
    store.write_domain(folder, domain(torch.zeros(64, 3)))
    monkeypatch.setattr(store, "SMALL", 0)
    hashed = []
    real = store.digest
    monkeypatch.setattr(store, "digest", lambda p: (hashed.append(p.name), real(p))[1])
    store.read_domain(folder)
    assert hashed == []
    stat = (folder / "x.npy").stat()
    data = bytearray((folder / "x.npy").read_bytes())
    data[-1] ^= 1
    (folder / "x.npy").write_bytes(data)
    with pytest.raises(DataError, match="checksum does not match"):
        store.read_domain(folder)  # the stamp tells
    os.utime(folder / "x.npy", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    store.read_domain(folder)  # a forged stamp goes unseen,
    with pytest.raises(DataError, match="checksum does not match"):
        store.read_domain(folder, verify=True)  # but not by the full check
    data[-1] ^= 1
    (folder / "x.npy").write_bytes(data)
    store.read_domain(folder)  # a copy elsewhere in time is hashed, and fine
    assert hashed[-1] == "x.npy"


def test_a_small_store_is_hashed_at_every_load(tmp_path):
    prepare(CARD, source=tree(tmp_path / "raw"))
    path = store_of(CARD, Variant()) / "x" / "x.npy"
    stat, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(DataError, match="checksum does not match"):
        load(CARD)


def test_what_is_there_survives_a_rename_that_fails(tmp_path, monkeypatch):
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "old").touch()
    real = Path.rename

    def refuse(self, target):
        if self.name.startswith(".d.") and not self.name.endswith(".old"):
            raise OSError("no")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="no"), store.beside(folder, replace=True) as part:
        (part / "new").touch()
    assert files(tmp_path) == ["d", "old"]


def test_who_comes_second_loses_unless_it_is_to_replace(tmp_path):
    for replace, content in ((False, "first"), (False, "second"), (True, "third")):
        with store.beside(tmp_path / "d", replace=replace) as part:
            (part / content).touch()
        assert files(tmp_path)[1] == ("third" if replace else "first")
    assert files(tmp_path) == ["d", "third"]


def test_a_failure_leaves_nothing_and_keeps_what_was_there(tmp_path):
    raw = tree(tmp_path / "raw")
    prepare(CARD, Variant(4), source=raw)
    before = files(tmp_path / "home")
    for path in (raw / "y").rglob("*.png"):
        path.write_bytes(b"broken")
    with pytest.raises(DataError, match="domain 'y' has no image that can be read; the first: "):
        prepare(CARD, Variant(4), source=raw)
    assert files(tmp_path / "home") == before
    assert len(load(CARD, Variant(4))["y"].y) == 10


def test_a_disk_that_refuses_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot prepare 'mine'.*FEDSHIFT_HOME"):
        prepare(CARD, source=tree(tmp_path / "raw"))


def test_what_is_left_out_is_reported_and_the_rest_prepared(tmp_path):
    raw = tree(tmp_path / "raw")
    tree(raw, domains=("x",), classes=("typo",), count=1)
    tree(raw, domains=("x", "y"), classes=("c",), count=1)
    (raw / "z").mkdir()
    (raw / "x" / "a" / "0.png").write_bytes((raw / "x" / "a" / "0.png").read_bytes()[:60])
    (raw / "readme.md").write_text("hello")
    tree(raw, domains=("w",), classes=("a", "b"))
    report = prepare(CARD, source=raw)
    left_out, notes = "\n".join(report["left_out"]), "\n".join(report["notes"])
    assert "x/typo: no other domain has this class; rename the folder, or add it" in left_out
    assert "x/a/0.png: cannot be decoded" in left_out
    assert "domain 'w' has nothing of class c; add some, or leave the class out" in notes
    assert "z: has no class folders with images; left out" in notes
    assert "readme.md: is neither a domain's folder nor its npz" in notes
    domains = load(CARD)
    assert list(domains) == ["w", "x", "y"]
    assert domains["x"].classes == ("a", "b", "c")
    assert len(domains["x"].y) == 10
    assert read_report(store_of(CARD, Variant())) == report


def test_class_folders_with_other_capitals_are_one_class(tmp_path):
    raw = tree(tmp_path / "raw", domains=("x",), classes=("Cat", "dog"))
    tree(raw, domains=("y",), classes=("cat", "dog"))
    report = prepare(CARD, source=raw)
    assert report["left_out"] == []
    assert report["notes"] == ["sites write names differently; taken as the same: Cat = cat"]
    assert [d.classes for d in load(CARD).values()] == [("cat", "dog")] * 2
    assert [len(d.y) for d in load(CARD).values()] == [10, 10]


def test_letters_that_one_site_tells_apart_stay_two_classes(tmp_path):
    raw = tree(tmp_path / "raw", domains=("x", "y"), classes=("A", "a"))
    assert "stay several, as one site has: A, a" in prepare(CARD, source=raw)["notes"][0]
    assert load(CARD)["x"].classes == ("A", "a")


def test_one_common_class_is_too_few(tmp_path):
    raw = tree(tmp_path / "raw", domains=("x",), classes=("a", "b"))
    tree(raw, domains=("y",), classes=("a", "c"))
    with pytest.raises(DataError, match=r"'a' is the only class in common.*y has a, c"):
        prepare(CARD, source=raw)


def test_first_use_prepares_and_says_what_was_left_out(tmp_path, caplog):
    raw = tree(tmp_path / "raw")
    (raw / "x" / "a" / "0.png").write_text("no image")
    card = DatasetCard("mine", "mine", (), 0, origin=str(raw))
    load(card)
    load(card)  # no second warning: it is prepared
    (note,) = caplog.messages
    assert "mine: 1 left out, the first: x/a/0.png: is not an image" in note


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda raw: raw.mkdir(), "has no domain; expected <domain>/<class>/"),
        (lambda raw: tree(raw, domains=("cat",), classes=(".",)), "cat: has no class folders"),
        (lambda raw: raw.write_text("x"), "expected a folder, csv, parquet, xlsx or npz"),
        (lambda raw: None, "does not exist; check the path"),
        (lambda raw: [tree(raw, (d,), (d,)) for d in "ab"], "no class occurs in two domains"),
    ],
)
def test_a_source_without_data_says_what_was_expected(make, expected, tmp_path):
    make(tmp_path / "raw")
    with pytest.raises(DataError, match=expected):
        prepare(CARD, source=tmp_path / "raw")
    assert not (tmp_path / "home" / "mine").exists() or files(tmp_path / "home" / "mine") == []


def test_a_card_wants_its_domains_and_classes(tmp_path):
    raw = tree(tmp_path / "raw", ("photo", "Art Painting", "cartoon"), ("dog", "Horse"))
    with pytest.raises(DataError, match="'pacs' has no domain sketch; it has photo, art_painting"):
        prepare(CATALOGUE["pacs"], source=raw)
    tree(raw, ("sketch",), ("dog", "horse", "unicorn"))
    report = prepare(CATALOGUE["pacs"], source=raw)
    assert report["left_out"] == [
        "sketch/unicorn: not of pacs; rename the folder, or add it to the others"
    ]
    domains = load(CATALOGUE["pacs"])
    assert domains["art_painting"].y.unique().tolist() == [0, 4]  # dog, horse
    assert "domain 'photo' has nothing of class elephant, giraffe" in report["notes"][0]


def test_a_part_of_the_classes_is_not_a_lack(tmp_path):
    raw = tree(tmp_path / "raw", CATALOGUE["domainnet"].domains, ("zebra", "bird", "axe"), 1)
    variant = Variant(only=("bird", "zebra"))
    assert prepare(CATALOGUE["domainnet-10"], variant, source=raw) == {"left_out": [], "notes": []}
    assert load(CATALOGUE["domainnet-10"], variant)["real"].classes == ("bird", "zebra")
    with pytest.raises(DataError, match="no domain has the class whale; there are axe, bird"):
        prepare(CATALOGUE["domainnet-10"], Variant(only=("bird", "whale")), source=raw)


def test_domains_of_different_shapes_are_refused(tmp_path):
    tmp_path.joinpath("raw").mkdir()
    for name, width in {"x": 2, "y": 3}.items():
        np.savez(tmp_path / "raw" / f"{name}.npz", x=np.ones((4, width)), y=[0, 1, 0, 1])
    with pytest.raises(DataError, match=r"'y' has inputs of \(3,\), 'x' of \(2,\)"):
        prepare(CARD, source=tmp_path / "raw")


def test_a_damaged_or_unreadable_store_says_what_to_delete(tmp_path):
    prepare(CARD, source=tree(tmp_path / "raw"))
    folder = store_of(CARD, Variant())
    (folder / "x" / "y.npy").unlink()
    with pytest.raises(DataError, match=r"is damaged .*; delete it and prepare it again"):
        load(CARD)
    (folder / "dataset.json").write_text("{")
    with pytest.raises(DataError, match=r"is damaged .*; delete it and prepare it again"):
        load(CARD)


def test_another_recipe_than_the_prepared_one_is_explained(tmp_path):
    prepare(CATALOGUE["vlcs"], Variant(4), source=tree(
        tmp_path / "raw", CATALOGUE["vlcs"].domains, ("bird", "car"), 1))  # fmt: skip
    with pytest.raises(DataError, match="'vlcs' is prepared as 4, not as stored; set its size"):
        load(CATALOGUE["vlcs"])
    with pytest.raises(ConfigError, match="size is 0; it must be at least 1"):
        Variant(0)


def test_duplicates_are_counted_within_and_across():
    x = torch.arange(6)[:, None].float()
    x[1], x[2] = x[0], x[0]
    one = domain(x)
    one.split[2] = 2
    two = domain(x[3:4], name="e")
    assert find_duplicates({"d": one, "e": two}) == {
        "across domains": 1,
        "across train/test of d": 1,
        "within d train": 1,
    }


def test_inspection_writes_a_sheet_and_a_page_that_stands_alone(tmp_path):
    raw = tree(tmp_path / "raw", domains=("<x>", "y"))
    (raw / "y" / "a" / "0.png").write_text("broken")
    prepare(CARD, source=raw)
    found = inspect("mine", store_of(CARD, Variant()), verify=True)
    assert found.counts() == [[5, 4], [5, 5]]
    png, page = write_pages(found, tmp_path / "out")
    with Image.open(png) as image:
        assert image.size == (96 + 2 * 48, 16 + 2 * 48)
    text = page.read_text()
    assert "&lt;x&gt;" in text
    assert "<x>" not in text
    assert 'src="data:image/png;base64,' in text
    assert "http" not in text
    assert "0.png: is not an image" in text
    assert json.loads(json.dumps(found.summary()))["counts"]["y"] == {"a": 4, "b": 5}


def test_vectors_have_no_sheet():
    assert sheet({"d": domain(torch.ones(2, 3))}) is None


def test_a_domain_that_does_not_fit_in_memory_is_decoded_to_disk(tmp_path, monkeypatch):
    raw = tree(tmp_path / "raw")
    prepare(CARD, Variant(4), source=raw)
    before = {name: one.x.clone() for name, one in load(CARD, Variant(4)).items()}
    monkeypatch.setattr(images, "LARGE", 0)
    prepare(CARD, Variant(4), source=raw)
    assert all(torch.equal(one.x, before[name]) for name, one in load(CARD, Variant(4)).items())
    assert [p.name for p in (tmp_path / "home").iterdir()] == ["mine"]
