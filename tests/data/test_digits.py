"""The embedded digits: fixed bytes, disjoint scans, even splits and a real shift."""

from functools import partial
from itertools import permutations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from fedshift.data.library import digits

SCANNED = ("scan", "photo", "outline")


@pytest.fixture(scope="module")
def domains():
    return digits.render(seed=0)


@pytest.fixture
def painted(monkeypatch):
    """Render with painters that only note which scans they are given: name -> their bytes."""
    scans = {name: [] for name in SCANNED}

    def note(name, rng, scan):
        scans[name].append(scan.tobytes())
        return np.zeros((32, 32, 3))

    for name in SCANNED:
        monkeypatch.setitem(digits.SCANNED, name, partial(note, name))
    digits.render(seed=0)
    return scans


def grey(x):
    """Images (N, 32, 32, 3) as rows of 16 x 16 grey values, (N, 256)."""
    return x.mean(axis=3).reshape(len(x), 16, 2, 16, 2).mean(axis=(2, 4)).reshape(len(x), -1) / 255


def score(source, target):
    """Test accuracy in one domain of a linear classifier trained in another."""
    x, y, split = source
    model = LogisticRegression(C=0.1, max_iter=500).fit(grey(x[split < 2]), y[split < 2])
    x, y, split = target
    return model.score(grey(x[split == 2]), y[split == 2])


def test_every_domain_has_599_small_colour_images(domains):
    assert tuple(domains) == digits.DOMAINS == ("scan", "photo", "print", "meter", "outline")
    for x, y, split in domains.values():
        assert (x.shape, x.dtype) == ((599, 32, 32, 3), np.uint8)
        assert (y.shape, y.dtype) == ((599,), np.int64)
        assert (split.shape, split.dtype) == ((599,), np.uint8)
        assert set(y) == set(range(10))


def test_no_image_is_blank_or_occurs_twice(domains):
    for x, _, _ in domains.values():
        assert x.std(axis=(1, 2, 3)).min() > 10
        assert len(np.unique(x.reshape(len(x), -1), axis=0)) == len(x)


def test_the_same_seed_gives_the_same_bytes(domains):
    for name, arrays in digits.render(seed=0).items():
        for again, first in zip(arrays, domains[name], strict=True):
            assert again.tobytes() == first.tobytes()


def test_another_seed_gives_other_images_labels_and_splits_in_every_domain(domains):
    for name, arrays in digits.render(seed=1).items():
        for other, first in zip(arrays, domains[name], strict=True):
            assert other.tobytes() != first.tobytes()


def test_a_change_to_one_domain_leaves_the_others_alone(domains, monkeypatch):
    monkeypatch.setitem(digits.DRAWN, "print", lambda rng, digit: rng.random((32, 32, 3)))
    for name, arrays in digits.render(seed=0).items():
        same = arrays[0].tobytes() == domains[name][0].tobytes()
        assert same == (name != "print")


def test_every_scan_is_used_once_and_in_one_domain_only(painted):
    assert [len(scans) for scans in painted.values()] == [599, 599, 599]
    used = set().union(*painted.values())
    every = load_digits().data.reshape(-1, 8, 8) / 16
    assert used == {scan.tobytes() for scan in every}
    assert len(used) == 3 * 599  # so no scan came twice


def test_thirds_hold_the_same_classes_and_depend_on_the_seed():
    labels = load_digits().target
    counts = [np.bincount(labels[third]) for third in digits.thirds(labels, 0)]
    assert np.ptp(counts, axis=0).max() <= 1
    assert set(digits.thirds(labels, 0)[0]) != set(digits.thirds(labels, 1)[0])


def test_splits_have_the_stated_sizes_and_the_classes_of_the_whole(domains):
    for _, y, split in domains.values():
        whole = np.bincount(y)  # (10,)
        for value, size in enumerate((150, 99, 350)):
            part = np.bincount(y[split == value], minlength=10)
            assert part.sum() == size
            assert part.min() >= 9
            assert np.abs(part - whole * size / 599).max() < 2


def test_neither_labels_nor_splits_are_in_order(domains):
    for _, y, split in domains.values():
        assert len(set(y[:50])) == 10
        assert set(split[:50]) == {0, 1, 2}


def test_upsampling_keeps_a_dot_where_it_was():
    scan = np.zeros((8, 8))
    scan[2, 5] = 1
    large = digits.upsample(scan, 32, margin=1)
    assert large.shape == (32, 32)
    expected = (np.array([2, 5]) + 1.5) * 3.2 - 0.5  # centres of pixels, 10 of them become 32
    assert_allclose(ndimage.center_of_mass(large), expected, atol=0.05)
    assert large.min() == 0
    assert large.max() <= 1


def test_a_scan_is_grey_and_blank_paper_stays_black():
    assert not digits.scan_image(np.random.default_rng(0), np.zeros((8, 8))).any()
    image = digits.scan_image(np.random.default_rng(0), np.ones((8, 8)))
    assert_array_equal(image, image[..., :1].repeat(3, axis=2))
    assert image.max() > 0.8


def test_full_ink_turns_a_photograph_into_its_negative():
    bare, full = (digits.photo_image(np.random.default_rng(3), np.full((8, 8), v)) for v in (0, 1))
    assert bare.std() > 0.01
    assert_allclose((bare + full)[8:24, 8:24], 1)


def test_an_outline_is_dark_at_the_rim_and_paper_within():
    scan = np.zeros((8, 8))
    scan[1:7, 1:7] = 1  # pixels 8 to 23 of 32
    images = [digits.outline_image(np.random.default_rng(seed), scan) for seed in range(20)]
    mean = np.mean(images, axis=(0, 3))  # (32, 32)
    row = mean[12:20].mean(axis=0)  # (32,), left to right through the square
    assert row[7:10].min() < row[14:18].mean() - 0.2
    assert abs(row[14:18].mean() - row[:4].mean()) < 0.1


def test_displays_light_the_segments_of_the_usual_seven_segment_code():
    code = (0x3F, 0x06, 0x5B, 0x4F, 0x66, 0x6D, 0x7D, 0x07, 0x7F, 0x6F)  # bit 0 is segment A
    ours = [sum(1 << "ABCDEFG".index(name) for name in lit) for lit in digits.LIT]
    assert ours == list(code)


def test_a_display_shows_the_whole_eight_and_half_of_the_one():
    def ink(digit):
        lit, unlit = digits._segments(np.random.default_rng(0), digit)
        return np.asarray(lit) > 0, np.asarray(unlit) > 0

    (one, rest), (eight, nothing) = ink(1), ink(8)
    assert not nothing.any()
    assert_array_equal(one | rest, eight)
    assert np.nonzero(one)[1].min() > np.nonzero(rest & ~one)[1].min() + 10  # on the right


def test_printed_labels_name_the_digit_in_the_middle():
    middles = []
    for digit in (1, 8):
        images = [digits.print_image(np.random.default_rng(seed), digit) for seed in range(20)]
        middles.append(np.mean(images, axis=(0, 3))[8:24, 10:22].mean())
    assert middles[0] > middles[1] + 0.05  # a one has less dark ink than an eight


def test_domains_differ_in_brightness_and_colour(domains):
    light = {name: x.mean() / 255 for name, (x, _, _) in domains.items()}
    colour = {name: np.ptp(x, axis=3).mean() / 255 for name, (x, _, _) in domains.items()}
    assert max(light["scan"], light["meter"]) < 0.3 < light["photo"] < 0.5
    assert min(light["print"], light["outline"]) > 0.6
    assert colour["scan"] == 0
    assert min(colour[name] for name in digits.DOMAINS if name != "scan") > 0.1


def test_a_linear_classifier_loses_fifteen_points_in_any_other_domain(domains):
    learnable = ("scan", "print", "outline")  # by a linear classifier; the others take a net
    own = {name: score(domains[name], domains[name]) for name in learnable}
    assert min(own.values()) > 0.6
    for source, target in permutations(digits.DOMAINS, 2):
        if source in learnable:
            assert score(domains[source], domains[target]) < own[source] - 0.15, (source, target)


def test_labels_belong_to_their_images_in_every_domain(domains):
    for name, arrays in domains.items():
        assert score(arrays, arrays) > 0.25, name
