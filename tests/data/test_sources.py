"""Readers of images, arrays, tables and hub layouts: what they take, what they say of bad input."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
from PIL import Image

from fedshift.base.errors import DataError
from fedshift.data.catalogue import CATALOGUE, Variant
from fedshift.data.sources.arrays import mat_source, npz_source
from fedshift.data.sources.discover import find, is_found, source_folders
from fedshift.data.sources.hub import load_hub
from fedshift.data.sources.images import resize_all, rotate_all, tree_source
from fedshift.data.sources.pixels import decode
from fedshift.data.sources.source import draw_test
from fedshift.data.sources.tables.federated import table_sources
from fedshift.data.sources.tables.schema import TableSchema
from fedshift.data.sources.vectors import npz_sources, text_sources


def picture(path, colour=(255, 0, 0), size=(10, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 6), (value, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def test_a_tree_is_read_in_the_order_of_its_sorted_names(tmp_path):
    for kind, names in {"b": "21", "a": "31"}.items():
        for name in names:
            picture(tmp_path / "d" / kind / f"{name}.png", (int(name), 0, 0))
    read = tree_source(tmp_path / "d", "d").read(("a", "b"), 4)
    assert read.ids == ("d/a/1.png", "d/a/3.png", "d/b/1.png", "d/b/2.png")
    assert read.domain.x.shape == (4, 4, 4, 3)
    assert read.domain.x[:, 0, 0, 0].tolist() == [1, 3, 1, 2]
    assert read.domain.y.tolist() == [0, 0, 1, 1]


def test_folders_of_a_tree_may_mark_the_split(tmp_path):
    for split in ("train", "val", "test"):
        picture(tmp_path / "d" / split / "a" / "1.jpg")
    read = tree_source(tmp_path / "d", "d").read(("a",), None)
    assert sorted(read.domain.split.tolist()) == [0, 1, 2]
    for i in range(10):
        picture(tmp_path / "e" / "train" / "a" / f"{i}.jpg", (25 * i, 0, 0))
    read = tree_source(tmp_path / "e", "e").read(("a",), None)  # marks no test rows: two drawn
    assert sorted(read.domain.split.tolist()) == [0] * 8 + [2] * 2


def test_bad_files_of_a_tree_are_named_and_the_others_read(tmp_path):
    good = picture(tmp_path / "d" / "a" / "good.jpg", size=(64, 64))
    (tmp_path / "d" / "a" / "short.jpg").write_bytes(good.read_bytes()[:-200])
    (tmp_path / "d" / "a" / "text.png").write_text("no image")
    (tmp_path / "d" / "a" / "notes.txt").write_text("no image")
    (tmp_path / "d" / "loose.jpg").write_bytes(good.read_bytes())
    (tmp_path / "d" / "empty").mkdir()
    (tmp_path / "d" / "a" / "link.png").symlink_to("nowhere.png")
    read = tree_source(tmp_path / "d", "d").read(("a",), 8)
    assert read.ids == ("d/a/good.jpg",)
    text = "\n".join(read.left_out)
    assert "short.jpg: cannot be decoded" in text
    assert "link.png: cannot be decoded" in text
    assert "text.png: is not an image; replace or delete the file" in text
    assert "notes.txt: is not an image; expected .jpg, .jpeg, .png, .tif, " in text
    assert "loose.jpg: lies outside a class folder; move it into one" in text
    assert "empty: has no images; fill it or remove it" in text


def test_sizes_that_differ_need_a_size(tmp_path):
    picture(tmp_path / "d" / "a" / "1.png", size=(10, 8))
    picture(tmp_path / "d" / "a" / "2.png", size=(9, 8))
    with pytest.raises(DataError, match=r"a/1.png is 10x8, d/a/2.png is 9x8; set size"):
        tree_source(tmp_path / "d", "d").read(("a",), None)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1", "I;16"])
def test_every_mode_becomes_rgb(mode, tmp_path):
    name = "x.jpg" if mode == "CMYK" else "x.png"
    base = Image.new("L", (4, 4), 200)
    image = Image.new("I;16", (4, 4), 200) if mode == "I;16" else base.convert(mode)
    image.save(tmp_path / name, **({"transparency": 0} if mode == "P" else {}))
    assert decode(tmp_path / name, None).shape == (4, 4, 3)


def test_shrinking_averages_and_turning_by_90_is_exact():
    checks = (np.indices((8, 8)).sum(0) % 2 * 255).astype(np.uint8)
    x = np.repeat(checks[None, :, :, None], 3, axis=3)
    assert abs(int(resize_all(x, 2)[0, 1, 1, 0]) - 127) <= 2  # without antialias: 0 or 255
    rows = np.zeros((1, 5, 5, 3), np.uint8)
    rows[0, 0] = 9
    np.testing.assert_array_equal(rotate_all(rows, 90), np.rot90(rows, axes=(1, 2)))
    np.testing.assert_array_equal(rotate_all(rows, 0), rows)


def test_a_drawn_test_set_is_a_fifth_of_each_class_and_never_parts_twins():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (100, 3, 3, 3), dtype=np.uint8)
    y = np.repeat([0, 1], 50)
    x[25:50] = x[:25]
    split = draw_test(x, y, "d")
    assert (split[:25] == split[25:50]).all()
    assert (split[50:] == 2).sum() == 10
    assert (split[:50] == 2).sum() == 10
    np.testing.assert_array_equal(split, draw_test(x, y, "d"))
    x[50:] = x[:50]  # the same inputs under two labels
    split = draw_test(x, y, "d")
    assert (split[50:] == split[:50]).all()
    assert (split[:50] == 2).sum() == 10


def test_npz_labels_out_of_range_are_left_out(tmp_path):
    path = tmp_path / "d.npz"
    x = np.arange(20, dtype=np.float16).reshape(5, 4)
    split = np.array([0, 1, 0, 1, 0], np.uint8)
    np.savez(path, x=x, y=[0, 1, 7, 1, -1], classes=["a", "b"], split=split, official=x)
    read = npz_source(path, "d").read(("a", "b"), None)
    assert read.domain.y.tolist() == [0, 1, 1]
    assert read.domain.split.tolist() == [0, 2, 2]
    assert read.domain.x.dtype.itemsize == 2
    assert read.ids == ("0", "1", "3")
    assert "d.npz, row 2: label 7 is out of range; 2 classes are 0 to 1" in read.left_out[0]


def test_npz_of_csr_parts_is_the_matrix(tmp_path):
    from scipy.sparse import csr_matrix

    matrix = csr_matrix(np.array([[0, 2, 0], [1, 0, 3]], np.uint8))
    np.savez(
        tmp_path / "d.npz", data=matrix.data, indices=matrix.indices.astype(np.int16),
        indptr=matrix.indptr, shape=matrix.shape, y=[0, 1], classes=["a", "b"], split=[0, 1],
    )  # fmt: skip
    read = npz_source(tmp_path / "d.npz", "d").read(("a", "b"), None)
    np.testing.assert_array_equal(read.domain.x.numpy(), matrix.toarray())


def test_a_file_that_is_no_npz_is_named(tmp_path):
    (tmp_path / "d.npz").write_bytes(b"PK nonsense")
    with pytest.raises(DataError, match=r"d.npz cannot be read"):
        npz_source(tmp_path / "d.npz", "d")
    np.savez(tmp_path / "e.npz", x=[1])
    with pytest.raises(DataError, match="has no entry y"):
        npz_source(tmp_path / "e.npz", "d")
    np.savez(tmp_path / "p.npz", x=np.array([{}], dtype=object), y=[0])
    with pytest.raises(DataError, match="cannot be read"):
        npz_source(tmp_path / "p.npz", "d").load()


def test_ten_in_svhn_is_the_digit_zero(tmp_path):
    from scipy.io import savemat

    x = np.zeros((32, 32, 3, 3), np.uint8)
    x[..., 1] = 5
    savemat(tmp_path / "train_32x32.mat", {"X": x, "y": np.array([[10], [1], [9]])})
    savemat(tmp_path / "test_32x32.mat", {"X": x[..., :1], "y": np.array([[2]])})
    paths = sorted(tmp_path.glob("*.mat"))
    read = mat_source(paths, "svhn", CATALOGUE["digits-4"].class_names).read(
        tuple("0123456789"), None
    )
    assert read.domain.y.tolist() == [2, 0, 1, 9]
    assert read.domain.split.tolist() == [2, 0, 0, 0]
    assert read.domain.x[2].unique().tolist() == [5]


def test_features_of_office_caltech_count_from_one(tmp_path):
    from scipy.io import savemat

    savemat(tmp_path / "amazon_SURF_L10.mat", {"fts": np.eye(3), "labels": np.array([1, 2, 11])})
    names = CATALOGUE["office-caltech10"].class_names
    read = mat_source([tmp_path / "amazon_SURF_L10.mat"], "amazon", names).read(names, None)
    assert read.domain.y.tolist() == [0, 1]
    assert "amazon_SURF_L10/2: label is out of range of 10 classes" in read.left_out[0]
    savemat(tmp_path / "odd.mat", {"z": 1})
    with pytest.raises(DataError, match=r"odd.mat has z; expected X and y"):
        mat_source([tmp_path / "odd.mat"], "amazon", names)


def table(path, text):
    path.write_text(text)
    return path


def test_parquet_and_npz_of_vectors_hold_the_same(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "label": ["u", "v", "u"], "domain": list("xxy")})
    frame.to_parquet(tmp_path / "v.parquet")
    np.savez(
        tmp_path / "v.npz", x=np.array([[1.0], [2.0], [3.0]]), y=[0, 1, 0], classes=["u", "v"],
        domain=["x", "x", "y"],
    )  # fmt: skip
    found = table_sources([tmp_path / "v.parquet"], TableSchema(scale="none"))
    one = [s.read(("u", "v"), None) for s in found.sources]
    two = [s.read(("u", "v"), None) for s in npz_sources(tmp_path / "v.npz")]
    for left, right in zip(one, two, strict=True):
        assert left.domain.name == right.domain.name
        assert left.domain.x.tolist() == right.domain.x.tolist()
        assert left.domain.y.tolist() == right.domain.y.tolist()
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"bad.parquet cannot be read"):
        table_sources([tmp_path / "bad.parquet"])


def test_texts_go_through_an_encoder_of_ones_own(tmp_path):
    encoder = table(
        tmp_path / "enc.py", "def encode(texts):\n    return [[len(t), 1] for t in texts]\n"
    )
    for kind, text in {"positive": "good", "negative": "awful"}.items():
        path = tmp_path / "text" / "books" / f"{kind}.review"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<review>\n<review_text>\n{text}\n</review_text>\n</review>\n")
    names = ("negative", "positive")
    (books,) = text_sources(tmp_path / "text", str(encoder), names, str)
    domain = books.read(names, None).domain
    assert domain.x[:, 0].tolist() == [5, 4]
    assert domain.y.tolist() == [0, 1]
    with pytest.raises(DataError, match="give a Python file that defines encode"):
        text_sources(tmp_path / "text", str(tmp_path / "none.py"), names, str)


@pytest.fixture
def parquet(tmp_path, monkeypatch):
    """A folder in the layout of a hub download."""
    import pandas as pd

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "pacs"
    folder.mkdir()
    rows = [
        {"image": {"bytes": png(i), "path": None}, "domain": d, "label": i % 7}
        for d in ("photo", "art_painting", "cartoon", "sketch")
        for i in range(7)
    ]
    rows.append({"image": {"bytes": b"broken", "path": None}, "domain": "photo", "label": 0})
    pd.DataFrame(rows).to_parquet(folder / "train-00000-of-00001.parquet")
    return folder


def test_a_hub_layout_gives_one_source_per_domain(parquet):
    sources = load_hub(parquet)
    assert [s.name for s in sources] == ["art_painting", "cartoon", "photo", "sketch"]
    read = sources[2].read(tuple("0123456"), None)
    assert read.domain.x[:, 0, 0, 0].tolist() == list(range(7))
    assert read.left_out == ("train/28: is not an image; replace or delete the file",)
    with pytest.raises(DataError, match="has no column 'picture'; it has image, domain, label"):
        load_hub(parquet, image="picture")


def test_numbers_of_a_hub_layout_become_the_names_of_the_card(parquet):
    found = find(CATALOGUE["pacs"], Variant(), parquet)
    assert sorted(found.sources[0].classes) == sorted(CATALOGUE["pacs"].class_names)


def test_class_labels_of_a_hub_layout_keep_their_names(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    rows = {"image": [{"bytes": png(1), "path": None}] * 4, "label": [0, 1, None, -1]}
    made = datasets.Dataset.from_dict(rows, features=features)
    for split in ("train", "test"):
        made.to_parquet(tmp_path / f"{split}-0.parquet")
    (source,) = load_hub(tmp_path, name="all", domain=None)
    assert source.classes == ("cat", "dog")
    read = source.read(("cat", "dog"), None)
    assert sorted(read.domain.split.tolist()) == [0, 0, 2, 2]
    assert "label is out of range or missing" in read.left_out[0]


def test_a_missing_library_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'fedshift\[hub\]'"):
        load_hub("flwrlabs/pacs")


def test_sources_are_found_by_the_names_of_the_shared_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_SOURCES", str(tmp_path))
    for name in ("office_caltech10", "digits", "amazon_bow5000"):
        (tmp_path / name).mkdir()

    def names(name, form=""):
        return [p.name for p in source_folders(CATALOGUE[name], Variant(form=form))]

    assert names("office-caltech10") == ["office_caltech10"]
    assert names("digits-4")[0] == "digits"
    assert names("amazon-review", "bow5000") == ["amazon_bow5000"]
    assert names("amazon-review", "minilm384") == []
    assert names("pacs") == []


def test_cards_are_consistent():
    for card in CATALOGUE.values():
        assert not card.class_names or len(card.class_names) == card.classes, card.name
        assert len(set(card.class_names)) == len(card.class_names)
        assert card.hub or card.where, card.name
    assert CATALOGUE["office-home"].domain_of("Real World") == "real_world"
    assert CATALOGUE["office-caltech10"].class_of("back_pack") == "backpack"
    assert CATALOGUE["digits-4"].class_of("10") == "0"
    assert os.sep not in "".join(CATALOGUE)


def test_a_source_is_found_only_if_every_domain_is(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_SOURCES", str(tmp_path))
    for name in ("amazon", "webcam", "caltech"):
        (tmp_path / "office_caltech10" / name).mkdir(parents=True)
    assert not is_found(CATALOGUE["cifar100"], Variant())
    assert not is_found(CATALOGUE["office-caltech-home"], Variant())
    for name in ("Art", "Clipart", "Product", "Real World"):
        (tmp_path / "office_home" / name).mkdir(parents=True)
    assert is_found(CATALOGUE["office-caltech-home"], Variant())
    assert is_found(CATALOGUE["office-home"], Variant())


def test_two_folders_can_make_one_dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_SOURCES", str(tmp_path))
    for name in ("amazon", "webcam", "caltech"):
        picture(tmp_path / "office-caltech10" / name / "back_pack" / "1.jpg")
        picture(tmp_path / "office-caltech10" / name / "projector" / "1.jpg")
    for name in ("Art", "Clipart", "Product", "Real World"):
        picture(tmp_path / "office-home" / name / "Backpack" / "1.jpg")
    found = find(CATALOGUE["office-caltech-home"], Variant())
    assert [s.name for s in found.sources] == list(CATALOGUE["office-caltech-home"].domains)
    assert found.sources[0].classes == ("backpack", "projector")
    assert found.sources[-1].classes == ("backpack",)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"x": np.zeros((2, 4)), "y": [0.5, 1.0]}, "y is float64 of .*; expected one whole number"),
        ({"x": np.zeros((2, 4)), "y": ["a", "b"]}, "expected one whole number per row"),
        ({"x": np.zeros((2, 4)), "y": [0, 1, 1]}, "x has 2 rows, y 3 and split 3"),
        ({"x": np.zeros((2, 4, 4, 3)), "y": [0, 1]}, "x is float64 .*; expected uint8 images"),
        ({"x": np.zeros((2, 3, 8, 8), np.uint8), "y": [0, 1]}, "expected uint8 images of"),
        ({"z": [1], "y": [0, 1]}, "has y; expected x, or data, indices, indptr and shape"),
    ],
)
def test_npz_entries_of_another_kind_are_refused(entries, expected, tmp_path):
    np.savez(tmp_path / "d.npz", **entries)
    with pytest.raises(DataError, match=expected):
        npz_source(tmp_path / "d.npz", "d").load()


def test_npz_rows_that_are_not_finite_are_left_out_and_grey_becomes_rgb(tmp_path):
    np.savez(tmp_path / "d.npz", x=[[1.0, np.nan], [1.0, 2.0]], y=[0, 0])
    rows = npz_source(tmp_path / "d.npz", "d").load()
    assert rows.ids == ("1",)
    assert "d.npz, row 0: x holds nan or inf; mend or remove the row" in rows.left_out[0]
    np.savez(tmp_path / "g.npz", x=np.full((2, 4, 4), 7, np.uint8), y=[0, 0])
    assert npz_source(tmp_path / "g.npz", "g").read(("0",), 8).domain.shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (0.0, -1, r"row 0: label -1 is out of range; 2 classes are 0 to 1.*; 20 of 40 rows are"),
        (np.nan, 0, r"row 0: x holds nan or inf.*; 20 of 40 rows are like that, and more than 20%"),
    ],
)
def test_many_rows_are_not_left_out_silently(x, y, words, tmp_path):
    """Such as labels of -1 and 1."""
    inputs, labels = np.ones((40, 3)), np.ones(40, dtype=int)
    inputs[::2], labels[::2] = x, y
    np.savez(tmp_path / "d.npz", x=inputs, y=labels)
    with pytest.raises(DataError, match=words):
        npz_source(tmp_path / "d.npz", "d").load()
