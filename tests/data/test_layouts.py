"""Folders as people and benchmarks have them, each made small here: which row is whose, in which
split, and what is said about rows that cannot be used."""

from __future__ import annotations

import csv
import json
import os

import numpy as np
import pytest
from PIL import Image
from sklearn.feature_extraction.text import HashingVectorizer

from fedshift.base.errors import DataError
from fedshift.data.catalogue import CATALOGUE, DatasetCard, Variant
from fedshift.data.library.prepare import load, prepare, read_report, store_of
from fedshift.data.sources.discover import find
from fedshift.data.sources.layouts import inside_or_held_out

CARD = DatasetCard("mine", "mine", (), 0)


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDSHIFT_SOURCES", raising=False)


def picture(path, value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 6), (value, 0, 0)).save(path)
    return path


def table(path, rows, delimiter=","):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def held(root, card=CARD):
    """By domain: label and split code of each row, in order of the files."""
    prepare(card, Variant(), source=root)
    return {
        name: [(d.classes[k], s) for k, s in zip(d.y.tolist(), d.split.tolist(), strict=True)]
        for name, d in load(card).items()
    }


def first_pixels(card=CARD):
    return {name: d.x[:, 0, 0, 0].tolist() for name, d in load(card).items()}


def listed(root, delimiter=","):
    rows = []
    for i, (site, split) in enumerate(
        [("north", "train"), ("north", "Validation"), ("south", "test"), ("south", "0"),
         ("north", "1"), ("south", "2")]
    ):  # fmt: skip
        name = f"images/{i}.png"
        picture(root / name, 10 * i)
        rows.append(
            {"path": name, "label": "cat" if i % 2 else "dog", "site": site, "split": split}
        )
    return table(root / "list.csv", rows, delimiter)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_csv_lists_path_label_site_and_split(delimiter, whole, tmp_path):
    file = listed(tmp_path / "raw", delimiter)
    assert held(tmp_path / "raw" if whole else file) == {
        "north": [("dog", 0), ("cat", 1), ("dog", 2)],  # 0 train, 1 val, 2 test
        "south": [("dog", 2), ("cat", 0), ("cat", 1)],
    }
    assert first_pixels() == {"north": [0, 10, 40], "south": [20, 30, 50]}


def test_rows_of_a_csv_that_cannot_be_used_are_named(tmp_path):
    root = tmp_path / "raw"
    picture(tmp_path / "secret.png")
    good = [
        {"file": f"{i}.png", "label": "ab"[i % 2], "domain": "xy"[i // 2], "split": "train"}
        for i in range(4)
    ]
    for row in good:
        picture(root / row["file"])
    rows = [
        *good,
        good[0] | {"file": "../secret.png"},
        good[0] | {"file": str(tmp_path / "secret.png")},
        good[0] | {"file": "none.png"},
        good[0] | {"label": " "},
        good[0] | {"split": "holdout"},
        good[0] | {"domain": ""},
    ]
    held(table(root / "list.csv", rows))
    text = "\n".join(read_report(store_of(CARD, Variant()))["left_out"])
    assert "list.csv:6: ../secret.png leads out of the folder" in text
    assert "list.csv:7" in text
    assert "none.png: cannot be decoded" in text
    assert "list.csv:9: the label is empty" in text
    assert "list.csv:10: the split is unknown; write train, val or test" in text
    assert "list.csv:11: the site is empty" in text


def test_a_csv_without_the_label_column_names_those_it_has(tmp_path):
    file = listed(tmp_path / "raw")
    with pytest.raises(DataError, match=r"no column 'diagnosis'; it has path, label, site, split"):
        find(DatasetCard("m", "m", (), 0, columns=("diagnosis", "domain")), Variant(), file)


def test_paths_of_a_csv_may_start_elsewhere(tmp_path):
    file = listed(tmp_path / "raw")
    moved = tmp_path / "lists" / "list.csv"
    moved.parent.mkdir()
    file.rename(moved)
    card = DatasetCard("mine", "mine", (), 0, images=str(tmp_path / "raw"))
    assert list(held(moved, card)) == ["north", "south"]


def test_a_csv_without_sites_is_one_domain_and_one_of_numbers_is_still_a_table(tmp_path):
    rows = [{"path": f"{i}.png", "label": "ab"[i % 2]} for i in range(4)]
    for row in rows:
        picture(tmp_path / "raw" / row["path"])
    assert list(held(table(tmp_path / "raw" / "clinic.csv", rows))) == ["clinic"]
    numbers = [{"path": i, "label": "ab"[i % 2], "domain": "xy"[i // 5]} for i in range(10)]
    found = find(CARD, Variant(), table(tmp_path / "numbers.csv", numbers))
    assert found.sources[0].read(("a", "b"), None).domain.x.shape == (5, 1)


def test_an_image_folder_of_torchvision_is_one_domain(tmp_path):
    for kind in "ab":
        for i in range(5):
            picture(tmp_path / "photos" / kind / f"{i}.png", i)
    assert list(held(tmp_path / "photos")) == ["photos"]
    notes = read_report(store_of(CARD, Variant()))["notes"]
    assert any("was read as one domain with the classes a, b" in note for note in notes)


def test_splits_of_torchvision_come_first_and_are_kept(tmp_path):
    for split, count in (("train", 3), ("val", 1), ("test", 2)):
        for kind in "ab":
            for i in range(count):
                picture(tmp_path / "photos" / split / kind / f"{i}.png", i)
    rows = held(tmp_path / "photos")["photos"]
    assert sorted(rows) == sorted(
        [(k, s) for k in "ab" for s, n in ((0, 3), (1, 1), (2, 2)) for _ in range(n)]
    )


def test_domains_below_splits_and_splits_below_domains(tmp_path):
    for i, split in enumerate(("train", "test")):
        for site in ("center0", "center1"):
            for kind in "ab":
                picture(tmp_path / "one" / split / site / kind / "x.png", 10 + i)
                picture(tmp_path / "two" / site / split / kind / "x.png", 10 + i)
    expected = sorted((k, s) for k in "ab" for s in (0, 2))
    for root in ("one", "two"):  # the second as FLamby's folders have it
        found = held(tmp_path / root)
        assert {name: sorted(rows) for name, rows in found.items()} == {
            "center0": expected, "center1": expected,
        }  # fmt: skip
        assert sorted(first_pixels()["center0"]) == [10, 10, 11, 11]


def test_domainbed_trees_are_domain_then_class(tmp_path):
    for site in ("location_38", "location_43"):
        for kind in ("bird", "cat"):
            for i in range(5):
                picture(tmp_path / "terra_incognita" / site / kind / f"{i}.jpg", i)
    assert list(held(tmp_path / "terra_incognita")) == ["location_38", "location_43"]


def camelyon(root):
    rows = []
    for i in range(8):
        row = {"": i, "patient": "004", "node": "4", "x_coord": 30 + i, "y_coord": 50,
               "tumor": i % 2, "slide": 0, "center": i // 4, "split": int(i % 4 == 3)}  # fmt: skip
        slide = "patient_004_node_4"
        picture(root / "patches" / slide / f"patch_{slide}_x_{30 + i}_y_50.png", i)
        rows.append(row)
    return table(root / "metadata.csv", rows).parent


def test_wilds_camelyon17_by_centre(tmp_path):
    found = held(camelyon(tmp_path / "camelyon17_v1.0"))
    rows = [("normal", 0), ("tumor", 0), ("normal", 0), ("tumor", 2)]
    assert found == {"center0": rows, "center1": rows}
    assert first_pixels() == {"center0": [0, 1, 2, 3], "center1": [4, 5, 6, 7]}
    assert "WILDS Camelyon17" in read_report(store_of(CARD, Variant()))["notes"][0]


def test_a_line_that_was_cut_short_is_left_out_and_named(tmp_path):
    root = camelyon(tmp_path / "camelyon17_v1.0")
    with (root / "metadata.csv").open("a") as file:
        file.write("8,004\n")
    held(root)
    (line,) = read_report(store_of(CARD, Variant()))["left_out"]
    assert "metadata.csv:10: the label is empty; fill it in" in line
    rows = [{"reviewerID": "ann", "overall": str(i), "reviewText": "x"} for i in (1, 2)]
    rows.append({"reviewerID": "ann", "overall": "", "reviewText": "x"})
    held(table(tmp_path / "amazon" / "reviews.csv", rows).parent)
    (line,) = read_report(store_of(CARD, Variant()))["left_out"]
    assert "reviews.csv:4: has no text or no label" in line


def test_a_benchmark_has_a_card_and_is_found_under_the_sources(tmp_path, monkeypatch):
    camelyon(tmp_path / "sources" / "camelyon17_v1.0")
    monkeypatch.setenv("FEDSHIFT_SOURCES", str(tmp_path / "sources"))
    assert list(load(CATALOGUE["camelyon17"])) == ["center0", "center1"]


def test_wilds_iwildcam_by_location_and_unseen_locations_apart(tmp_path):
    root = tmp_path / "iwildcam_v2.0"
    splits = ["train", "train", "id_val", "id_test", "val", "test", "train", "id_test"]
    rows = []
    for i, split in enumerate(splits):
        picture(root / "train" / f"{i}.jpg", 20 * i)
        place = {4: 7, 5: 8, 6: 2, 7: 2}.get(i, 1)
        rows.append({"split": split, "location_remapped": place, "filename": f"{i}.jpg",
                     "y": i % 2, "sequence_remapped": 0})  # fmt: skip
    table(root / "metadata.csv", rows)
    table(root / "categories.csv", [{"y": 0, "name": "empty"}, {"y": 1, "name": "ocelot"}])
    assert held(root) == {
        "location1": [("empty", 0), ("ocelot", 0), ("empty", 1), ("ocelot", 2)],
        "location2": [("empty", 0), ("ocelot", 2)],
        "unseen-test": [("ocelot", 2)],
        "unseen-val": [("empty", 2)],
    }


def test_rows_of_a_benchmark_with_an_unknown_split_are_left_out():
    assert inside_or_held_out("a", "train") == ("a", 0)
    assert inside_or_held_out("a", "bonus") == ("a", None)


@pytest.mark.parametrize("name", ["all_data_with_identities.csv", "metadata.csv"])
def test_wilds_civilcomments_by_identity(name, tmp_path):
    rows = []
    for i in range(9):
        row = {"": i, "comment_text": f"word{i} shared", "split": ["train", "val", "test"][i % 3],
               "toxicity": 0.5 if i % 2 else 0.4, "male": 0, "female": 0.9 if i < 4 else 0.2,
               "muslim": 0.6}  # fmt: skip
        rows.append(row | ({"muslim": ""} if i >= 7 else {}))
    root = table(tmp_path / "civilcomments_v1.0" / name, rows).parent
    assert held(root) == {
        "female": [("civil", 0), ("toxic", 1), ("civil", 2), ("toxic", 0)],
        "muslim": [("civil", 1), ("toxic", 2), ("civil", 0)],
        "none": [("toxic", 1), ("civil", 2)],
    }
    words = HashingVectorizer(n_features=1024).transform(["word1 shared"]).toarray()[0]
    np.testing.assert_allclose(load(CARD)["female"].x[1].numpy(), words, atol=1e-6)


def test_wilds_amazon_by_reviewer_with_the_split_file(tmp_path):
    root = tmp_path / "amazon_v2.1"
    rows = [
        {"reviewerID": r, "asin": "B0", "overall": f"{1 + i % 2}.0", "reviewText": f"text {i}"}
        for i, r in enumerate(["ann", "ann", "ann", "bob", "bob", "eve", "eve", "kim"])
    ]
    table(root / "reviews.csv", rows)
    marks = [0, 0, 4, 0, 4, 3, -1, 1]  # train, id_test, test, not in the benchmark, val
    table(root / "splits" / "user.csv", [{"split": mark} for mark in marks])
    assert held(root) == {
        "ann": [("1", 0), ("2", 0), ("1", 2)],
        "bob": [("2", 0), ("1", 2)],
        "unseen-test": [("2", 2)],
        "unseen-val": [("2", 2)],
    }


@pytest.mark.parametrize("name", ["train_test_split", "train_test_folds.csv"])
def test_flamby_isic_by_centre(name, tmp_path):
    rows = []
    for i in range(8):
        picture(tmp_path / "isic" / "ISIC_2019_Training_Input_preprocessed" / f"I{i}.jpg")
        fold = "test" if i % 4 == 3 else "train"
        rows.append({"image": f"I{i}", "target": i % 2, "center": i // 4, "fold": fold,
                     "fold2": f"{fold}_{i // 4}"})  # fmt: skip
    rows.append(rows[0] | {"image": "gone"})
    table(tmp_path / "isic" / name, rows)
    expected = [("0", 0), ("1", 0), ("0", 0), ("1", 2)]
    assert held(tmp_path / "isic") == {"center0": expected, "center1": expected}
    assert "gone.jpg" in read_report(store_of(CARD, Variant()))["left_out"][0]


@pytest.mark.parametrize("inner", ["", "data"])
def test_leaf_femnist_by_writer(inner, tmp_path):
    for part, values in (("train", (0.0, 1.0)), ("test", (0.5,))):
        held_by = {
            writer: {"x": [[v] * 784 for v in values], "y": [0, 36][: len(values)]}
            for writer in ("f0000_14", "f0001_41")
        }
        users = {"users": list(held_by), "num_samples": [len(values)] * 2, "user_data": held_by}
        folder = tmp_path / "femnist" / inner / part
        folder.mkdir(parents=True)
        (folder / "all_data_0_niid.json").write_text(json.dumps(users))
    found = held(tmp_path / "femnist")
    assert found == {w: [("0", 0), ("a", 0), ("0", 2)] for w in ("f0000_14", "f0001_41")}
    assert first_pixels() == {w: [0, 255, 128] for w in found}
    assert load(CARD)["f0000_14"].shape == (3, 28, 28)


@pytest.mark.parametrize("text", ["[]", "{", '{"user_data": {"w": {"x": [[1]], "y": [0]}}}'])
def test_a_broken_file_of_leaf_is_one_line(text, tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "x.json").write_text(text)
    with pytest.raises(DataError, match=r"x.json is not a file of LEAF's FEMNIST"):
        find(CARD, Variant(), tmp_path)


def test_domains_tables_and_layouts_behind_links_are_not_read(tmp_path):
    for kind in "ab":
        picture(tmp_path / "elsewhere" / kind / "1.png")
        picture(tmp_path / "raw" / "real" / kind / "1.png")
    (tmp_path / "raw" / "linked").symlink_to(tmp_path / "elsewhere")
    file = camelyon(tmp_path / "other") / "metadata.csv"
    (tmp_path / "raw" / "metadata.csv").symlink_to(file)
    found = find(CARD, Variant(), tmp_path / "raw")
    assert [source.name for source in found.sources] == ["real"]
    assert any("linked: is a link that leads out of the folder" in note for note in found.notes)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["x.csv", "x.npz", "x.mat", "x.parquet", "metadata.csv"])
def test_pipes_among_the_files_do_not_block(name, tmp_path):
    for kind in "ab":
        picture(tmp_path / "raw" / "real" / kind / "1.png")
    os.mkfifo(tmp_path / "raw" / name)
    assert [s.name for s in find(CARD, Variant(), tmp_path / "raw").sources] == ["real"]
    with pytest.raises(DataError, match="is neither a file nor a folder"):
        find(CARD, Variant(), tmp_path / "raw" / name)
