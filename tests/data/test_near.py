"""Near-duplicates: copies that were saved again are found across splits and sites, others not."""

from __future__ import annotations

import io
import itertools
import json

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from scipy import ndimage

from fedshift.data.catalogue import DatasetCard, Variant
from fedshift.data.library import near
from fedshift.data.library.inspection import inspect, page
from fedshift.data.library.near import correlation, find_near, hashes, near_pairs, shrink
from fedshift.data.library.prepare import prepare, store_of
from fedshift.data.samples import Domain


def pictures(count, seed=0, side=64):
    """Smooth random pictures (N, 64, 64, 3), each unlike the others."""
    rng = np.random.default_rng(seed)
    rough = rng.normal(size=(count, side, side, 3))
    smooth = ndimage.gaussian_filter(rough, (0, 6, 6, 0))
    low, high = smooth.min(axis=(1, 2, 3), keepdims=True), smooth.max(axis=(1, 2, 3), keepdims=True)
    return np.rint(255 * (smooth - low) / (high - low)).astype(np.uint8)


def saved_again(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((40, 40)).save(buffer, "JPEG", quality=70)
    return np.asarray(Image.open(buffer).resize((64, 64)))


def brighter(pixels):
    return np.asarray(ImageEnhance.Brightness(Image.fromarray(pixels)).enhance(1.15))


def domain(x, split, name="d"):
    y = torch.zeros(len(x), dtype=torch.int64)
    return Domain(name, torch.as_tensor(x), y, torch.as_tensor(split, dtype=torch.uint8), ("a",))


def look(**domains):
    ids = {name: [f"{name}{i}" for i in range(len(d.y))] for name, d in domains.items()}
    return find_near(domains, ids)


def test_a_copy_of_a_training_image_among_test_images_is_found():
    x = pictures(40)
    x[20], x[21], x[22] = saved_again(x[3]), brighter(x[4]), saved_again(x[25])
    found = look(d=domain(x, [0] * 20 + [2] * 20))
    assert found.counts == {"across train/test of d": 2}  # 22 and 25 are both test images
    assert found.pairs == [("d: d3", "d: d20"), ("d: d4", "d: d21")]


def test_copies_across_sites_are_counted_and_leaks_between_them_named():
    day, night = pictures(20), pictures(20, seed=1)
    night[0], night[1] = saved_again(day[0]), saved_again(day[15])
    found = look(day=domain(day, [0] * 10 + [2] * 10), night=domain(night, [2] * 20))
    assert found.counts == {"across domains": 2, "across train/test of two domains": 1}


def test_unlike_pictures_pictures_of_one_colour_and_vectors_are_no_copies():
    x = pictures(80)
    x[10], x[70] = 7, 7  # equal, but there is nothing to be recognised in them
    assert look(d=domain(x, [0] * 40 + [2] * 40)).counts == {}
    assert look(d=domain(np.zeros((4, 3), np.float32), [0, 0, 2, 2])).counts == {}


def test_pairs_are_those_of_comparing_all_with_all():
    rng = np.random.default_rng(0)
    marks = rng.integers(0, 2**63, 60, dtype=np.uint64)
    for i in range(30):  # neighbours with 0 to 9 bits flipped
        marks[i + 30] = marks[i]
        for bit in rng.choice(64, i % 10, replace=False):
            marks[i + 30] ^= np.uint64(1) << np.uint64(bit)
    expected = [
        [a, b]
        for a, b in itertools.combinations(range(60), 2)
        if (int(marks[a]) ^ int(marks[b])).bit_count() <= near.NEAR
    ]
    found, skipped = near_pairs(marks)
    assert found.tolist() == expected
    assert len(expected) == 21
    assert skipped == 0


@pytest.mark.parametrize("intact", range(7))
def test_six_flipped_bits_leave_one_of_seven_pieces_intact(intact):
    flips = [bit for piece, bit in enumerate((4, 13, 22, 31, 40, 49, 58)) if piece != intact]
    one = 0x0123456789ABCDEF
    other = one
    for bit in flips:
        other ^= 1 << bit
    assert near_pairs(np.array([one, other], dtype=np.uint64))[0].tolist() == [[0, 1]]


def test_crowds_of_equal_hashes_are_told_not_compared(monkeypatch):
    monkeypatch.setattr(near, "CROWD", 5)
    found, skipped = near_pairs(np.zeros(8, dtype=np.uint64))
    assert len(found) == 10
    assert skipped == 3


def test_the_hash_does_not_see_brightness_and_correlation_is_pearsons():
    x = pictures(6)
    dark = (x * 0.5).astype(np.uint8)
    assert np.bitwise_count(hashes(shrink(x)) ^ hashes(shrink(dark))).max() <= 2
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 255, (2, 3, 32, 32)).astype(np.uint8)
    halved = [a.reshape(3, 16, 2, 16, 2).mean((2, 4)).reshape(3, -1) for a in (one, other)]
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(*halved, strict=True)]
    np.testing.assert_allclose(correlation(one, other), expected, atol=1e-5)


@pytest.mark.parametrize("copied", [True, False])
def test_an_inspection_names_the_files_of_a_leak(copied, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    x = pictures(8)
    if copied:
        x[7] = saved_again(x[0])
    for i, pixels in enumerate(x):
        folder = tmp_path / "raw" / ("train" if i < 4 else "test") / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    card = DatasetCard("mine", "mine", (), 0)
    prepare(card, Variant(), source=tmp_path / "raw")
    found = inspect("mine", store_of(card, Variant()))
    summary = json.loads(json.dumps(found.summary()))
    assert summary["near_duplicates"] == ({"across train/test of raw": 1} if copied else {})
    pairs = [["raw: raw/train/a/0.png", "raw: raw/test/b/7.png"]]
    assert summary["near_pairs"] == (pairs if copied else [])
    assert ("raw: raw/test/b/7.png" in page(found, "")) == copied
