"""What is said of made sites is what was made: algebra, planted differences, NumPy lines."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from guide_data import pictures, rows

import fedshift
from fedshift.data.samples import Domain
from fedshift.guide import shift, words
from fedshift.guide.features import LOOKS, LUMA, Looked, Sight, looks
from fedshift.guide.shift import Told


def look(folder, **options):
    return fedshift.doctor(folder, cost=False, **options)


def test_two_sites_of_one_distribution_look_alike_and_cannot_be_told_apart(save):
    found = look(save(a=pictures(0), b=pictures(1)))
    assert found.shift.alike == (("a", "b"),)
    assert "a and b look alike." in found.findings
    assert abs(found.shift.told_apart.value - 50) < 10
    assert found.shift.told_apart.chance == 50
    assert found.shift.differences == ()
    assert "Labels are balanced over sites and over classes." in found.findings


def test_a_site_that_was_darkened_is_named_with_its_brightness(save):
    dark, y = pictures(2)
    found = look(save(a=pictures(0), b=pictures(1), c=(dark // 2, y)))
    assert found.shift.alike == (("a", "b"),)
    first = next(one for one in found.shift.differences if one.what == "brightness")
    assert first.site == "c"
    expected = [(x / 255 @ np.array(LUMA)).mean() for x in (dark // 2, pictures(0)[0])]
    assert first.here == pytest.approx(expected[0], rel=1e-5)
    assert first.others == pytest.approx(expected[1], abs=0.01)
    assert first.deviations < -words.DEVIATIONS
    sentence = next(line for line in found.findings if line.startswith("c differs in "))
    assert f"brightness (darker: {expected[0]:.2g}, elsewhere {first.others:.2g})" in sentence
    assert found.shift.told_apart.value > 60
    assert found.shift.pairs["a", "c"].value > 95


def test_the_looks_of_an_image_are_those_of_numpy():
    x = np.random.default_rng(0).random((3, 4, 6, 3)).astype(np.float32)
    grey = x @ np.array(LUMA, dtype=np.float32)
    steps = [np.abs(np.diff(grey, axis=axis)).reshape(3, -1) for axis in (1, 2)]
    expected = {
        "brightness": grey.mean((1, 2)),
        "contrast": grey.std((1, 2)),
        "colour": (x.max(3) - x.min(3)).mean((1, 2)),
        "warmth": (x[..., 0] - x[..., 2]).mean((1, 2)),
        "sharpness": np.concatenate(steps, 1).mean(1),
    }
    found = looks(torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(grey)).numpy()
    assert list(expected) == list(LOOKS)
    np.testing.assert_allclose(found.T, list(expected.values()), rtol=1e-5, atol=1e-6)


def test_swapped_label_proportions_are_a_skew_of_labels_and_not_of_looks(save):
    """Inputs follow the labels, so only rows with matched labels tell looks from labels."""
    found = look(save(a=rows(0, share=0.9), b=rows(1, share=0.1)))
    assert [one.distance for one in found.labels.shifts] == pytest.approx([0.4, 0.4])
    line = next(line for line in found.findings if line.startswith("Labels are skewed"))
    assert "90% of a are yes, 50% on average over sites" in line
    assert found.shift.alike == (("a", "b"),)


def test_an_image_site_with_other_labels_keeps_its_looks(save):
    x, y = pictures(1)
    few = np.sort(np.concatenate([np.flatnonzero(y == 0)[:40], np.flatnonzero(y == 1)[:8]]))
    found = look(save(a=pictures(0), b=(x[few], y[few])))
    assert found.labels.shifts[1].here == pytest.approx(40 / 48)
    assert found.shift.alike == (("a", "b"),)


def test_matched_rows_have_as_many_of_each_class_at_every_site():
    y = [np.repeat([0, 1, 2], counts) for counts in ((50, 30, 9), (20, 40, 0))]
    sites = [Looked(np.zeros((len(one), 1)), np.zeros((len(one), 1)), one, one > 9) for one in y]
    found = shift.matched(sites, 400, "x")
    for one, chosen in zip(y, found, strict=True):
        assert np.bincount(one[chosen], minlength=3).tolist() == [20, 30, 0]
        assert len(set(chosen.tolist())) == 50


def test_the_distance_by_chance_is_what_draws_of_equal_labels_give():
    rng, share = np.random.default_rng(0), np.array([0.5, 0.3, 0.2])
    drawn = rng.multinomial(60, share, size=4000) / 60
    mean_distance = np.abs(drawn - share).sum(1).mean() / 2
    shares = {"a": share, "b": share}
    (one, _) = shift.share_shifts(shares, {"a": 60, "b": 60}, "xyz", several=False)
    assert one.by_chance == pytest.approx(mean_distance, rel=0.05)
    assert one.distance == 0


def test_the_matrix_of_a_planted_shift_has_the_planted_pattern(save):
    """a and b agree, c calls everything by the other name: what a learns is always wrong there."""
    (x, y), same = rows(0), ("a", "b")
    found = look(save(a=(x, y), b=rows(1), c=(rows(2)[0], 1 - rows(2)[1])))
    for (i, j), told in found.shift.crossed.items():
        agree = i == j or (i in same and j in same)
        assert told.value >= 97 if agree else told.value <= 3, (i, j)
    assert found.shift.alike == (("a", "b", "c"),)  # inputs tell nothing of it
    assert any(re.search(r"at another site: \d+ points less[.;]", line) for line in found.findings)


def test_noise_is_told_to_be_beyond_a_linear_model(save):
    rng = np.random.default_rng(0)
    noise = {
        n: (rng.normal(size=(120, 4)).astype(np.float32), np.arange(120) // 2 % 2) for n in "ab"
    }
    assert any("does not learn the task" in line for line in look(save(**noise)).findings)


def test_planted_copies_are_found_and_are_a_problem(save):
    a, b = pictures(0), pictures(1)
    b[0][3:40:4] = a[0][0:37:4]  # ten test rows of b are training rows of a
    found = look(save(a=a, b=b))
    assert found.copies.equal["across domains"] == 10
    assert found.copies.near["across train/test of two domains"] == 10
    assert any("10 test samples have a copy" in line for line in found.problems)
    assert found.copies.looked_at == 240


def test_a_chain_of_look_alikes_is_no_group():
    near, far = Told(52, 50, 3), Told(90, 50, 3)
    pairs = {("a", "b"): near, ("b", "c"): near, ("a", "c"): far}
    assert words.alike_groups("abc", pairs) == (("a", "b"),)


def test_few_samples_that_may_be_chance_do_not_set_sites_apart():
    assert words.alike_groups("ab", {("a", "b"): Told(62, 50, 13)}) == (("a", "b"),)
    assert words.alike_groups("ab", {("a", "b"): Told(62, 50, 5)}) == ()


def test_numbers_to_predict_are_compared_by_mean_and_r2(tmp_path):
    rng = np.random.default_rng(0)
    for site, add in (("a", 0.0), ("b", 0.0), ("c", 10.0)):
        x = rng.normal(size=100)
        lines = [f"{v:.6f},{2 * v + add:.6f}" for v in x]
        (tmp_path / "t").mkdir(exist_ok=True)
        (tmp_path / "t" / f"{site}.csv").write_text("\n".join(["x,label", *lines]) + "\n")
    found = look(tmp_path / "t")
    assert found.objective == "regression"
    assert found.shift.crossed["a", "b"].value > 95
    assert found.shift.crossed["a", "c"].value < 0
    assert [one.site for one in found.labels.shifts if one.distance > 2] == ["c"]
    assert any(line.startswith("Numbers to predict are skewed") for line in found.findings)


def test_r2_is_its_formula():
    y, guess = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 3.0])
    told = shift._scored(guess, y, 0.0, "regression")
    assert told.value == pytest.approx(100 * (1 - 2 / ((y - y.mean()) ** 2).sum()))


def test_several_labels_per_sample_are_compared_label_by_label():
    x = torch.zeros(10, 2)
    y = {"a": torch.tensor([[1.0, 0.0]] * 10), "b": torch.tensor([[1.0, 1.0]] * 10)}
    held = {
        n: Domain(n, x, own, torch.zeros(10, dtype=torch.uint8), ("p", "q")) for n, own in y.items()
    }
    found = shift.label_shifts(held)
    assert [(one.most, one.distance) for one in found] == [("q", 0.5), ("q", 0.5)]


def test_a_column_of_one_value_that_another_site_has_not_is_named():
    def site(value):
        return Looked(
            np.zeros((30, 1)), np.full((30, 1), value), np.zeros(30, int), np.zeros(30, bool)
        )

    sight = Sight(("c",), {"a": site(1.0), "b": site(1.0), "d": site(2.0)}, "")
    assert [one.site for one in shift.differences(sight, 0.5, ("a", "b"))] == ["d"]


def test_what_may_be_chance_is_not_named():
    """A difference of 0.6 deviations among 20 rows of each site, of 100 columns."""
    rng = np.random.default_rng(0)
    x = {n: rng.normal(size=(20, 100)) for n in "ab"}
    sites = {n: Looked(v, v, np.zeros(20, int), np.zeros(20, bool)) for n, v in x.items()}
    sight = Sight(tuple(map(str, range(100))), sites, "")
    apart = np.abs(x["a"].mean(0) - x["b"].mean(0))
    assert (apart > 0.6).any()
    assert shift.differences(sight, 0.5) == []
