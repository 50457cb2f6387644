from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from fedshift.base.errors import DataError
from fedshift.data.dealing.splits import (
    AllTest,
    EveryTenth,
    Given,
    PerClass,
    Random,
    Split,
    apply_split,
)
from fedshift.data.samples import Domain

RULES = [Given(), Random(), EveryTenth(), PerClass(), AllTest()]


def domain(labels, split=None, name: str = "d") -> Domain:
    y = torch.as_tensor(labels, dtype=torch.int64)
    codes = torch.zeros(len(y), dtype=torch.uint8) if split is None else split
    return Domain(name, torch.zeros(len(y), 1), y, codes, ("a", "b", "c"))


def sizes(codes) -> list[int]:
    return np.bincount(codes.numpy(), minlength=3).tolist()


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.kind)
def test_a_split_is_a_function_of_rule_domain_and_seed(rule):
    made = domain(np.arange(60) % 3)
    first, again = apply_split(rule, made, 4), apply_split(rule, made, 4)
    assert torch.equal(first, again)
    assert (first.dtype, first.shape) == (torch.uint8, (60,))
    if rule.kind != "all-test":
        assert not torch.equal(first, apply_split(rule, made, 5))
        assert not torch.equal(first, apply_split(rule, domain(np.arange(60) % 3, name="e"), 4))


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.kind)
def test_a_rule_survives_json_and_refuses_unknown_keys(rule):
    adapter = TypeAdapter(Split)
    assert adapter.validate_json(rule.model_dump_json()) == rule
    with pytest.raises(ValidationError):
        adapter.validate_python({"kind": rule.kind, "fraction": 0.5})


def test_a_store_with_validation_rows_is_left_as_it_is():
    stored = torch.tensor([0, 1, 2, 0, 0, 1], dtype=torch.uint8)
    made = domain([0, 1, 2, 0, 1, 2], stored)
    codes = apply_split(Given(), made, 0)
    assert torch.equal(codes, stored)
    codes[:] = 2
    assert made.split.tolist() == [0, 1, 2, 0, 0, 1]


def test_a_store_without_validation_rows_gives_a_tenth_of_each_class():
    labels = np.repeat([0, 1, 2], [100, 50, 30])
    stored = torch.zeros(200, dtype=torch.uint8)
    stored[180:] = 2
    made = domain(np.concatenate([labels, np.zeros(20, int)]), stored)
    codes = apply_split(Given(), made, 0).numpy()
    assert (codes[180:] == 2).all()
    assert np.bincount(labels[codes[:180] == 1]).tolist() == [10, 5, 3]


@given(st.lists(st.integers(0, 2), min_size=2, max_size=80), st.integers(0, 5))
def test_carving_takes_the_rounded_total_and_each_class_within_one(labels, seed):
    labels = np.array(labels)
    codes = apply_split(Given(val=0.25), domain(labels), seed).numpy()
    assert sizes(torch.from_numpy(codes)) == [
        len(labels) - max(1, round(len(labels) / 4)),
        max(1, round(len(labels) / 4)),
        0,
    ]
    for label in np.unique(labels):
        n = (labels == label).sum()
        assert abs((codes[labels == label] == 1).sum() - n / 4) <= 1


def test_a_class_of_one_stays_in_training():
    labels = [0] * 10 + [1, 2]  # shares of 3, .3 and .3; the fourth row is the first class's
    for seed in range(5):
        codes = apply_split(Given(val=0.3), domain(labels), seed)
        assert sizes(codes) == [8, 4, 0]
        assert codes[-2:].tolist() == [0, 0]


def test_no_validation_fraction_leaves_training_alone():
    assert sizes(apply_split(Given(val=0), domain(np.arange(9) % 3), 0)) == [9, 0, 0]


@given(st.integers(10, 300), st.integers(0, 5))
def test_a_random_split_is_80_10_10(n, seed):
    made = sizes(apply_split(Random(), domain(np.arange(n) % 3), seed))
    np.testing.assert_allclose(made, [0.8 * n, 0.1 * n, 0.1 * n], atol=1)
    assert sum(made) == n


def test_a_random_split_ignores_the_store_and_says_when_a_part_is_empty():
    stored = torch.full((40,), 2, dtype=torch.uint8)
    assert sizes(apply_split(Random(), domain(np.arange(40) % 3, stored), 0)) == [32, 4, 4]
    with pytest.raises(DataError, match=r"'d' has 3 samples.*none for test"):
        apply_split(Random(), domain([0, 1, 2]), 0)


def test_f2dc_trains_on_the_first_eight_of_ten():
    codes = apply_split(EveryTenth(val=0), domain(np.arange(25) % 3), 0)
    assert codes.tolist() == [0 if i % 10 <= 7 else 2 for i in range(25)]
    carved = apply_split(EveryTenth(), domain(np.arange(100) % 2), 0)
    assert sizes(carved) == [72, 8, 20]
    assert ((carved == 2) == (torch.arange(100) % 10 > 7)).all()


@given(st.lists(st.integers(0, 2), min_size=1, max_size=90), st.integers(0, 5))
def test_csac_holds_out_a_part_of_every_class_and_never_all_of_it(labels, seed):
    labels = np.array(labels)
    codes = apply_split(PerClass(val=0.3, test=0.4), domain(labels), seed).numpy()
    for label in np.unique(labels):
        mine = codes[labels == label]
        held = min(round(len(mine) * 0.7), len(mine) - 1)
        assert (mine > 0).sum() == held
        assert (mine == 2).sum() == min(held, round(len(mine) * 0.4))


def test_csac_holds_out_a_tenth_and_scores_none_of_a_source():
    codes = apply_split(PerClass(), domain(np.repeat([0, 1, 2], [100, 50, 30])), 0)
    assert [(part == 1).sum().item() for part in codes.split([100, 50, 30])] == [10, 5, 3]
    assert 2 not in codes


def test_a_target_domain_is_scored_as_a_whole():
    assert sizes(apply_split(AllTest(), domain(np.arange(7) % 3), 0)) == [0, 0, 7]


def test_fractions_must_add_up():
    with pytest.raises(ValidationError, match=r"add up to 1\.1"):
        Random(train=0.9)
    with pytest.raises(ValidationError, match="leave some to train"):
        PerClass(val=0.5, test=0.5)


def test_validation_rows_of_a_regression_are_spread_over_its_values():
    y = torch.arange(200, dtype=torch.float32)
    domain = Domain("d", torch.zeros(200, 2), y, torch.zeros(200, dtype=torch.uint8), ("price",))
    assert domain.objective == "regression"
    codes = apply_split(Given(val=0.1), domain, seed=0)
    chosen = y[codes == 1]
    assert len(chosen) == 20
    assert 60 < chosen.mean() < 140
    labels = Domain("d", domain.x, torch.ones(200, 3), domain.split, ("p", "q", "r"))
    assert labels.objective == "multi-label"
    assert (apply_split(Given(val=0.1), labels, seed=0) == 1).sum() == 20
