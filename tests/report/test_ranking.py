"""Ranks, Friedman's test and Nemenyi's critical difference: published values and algebra."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedshift.base.errors import ConfigError
from fedshift.report.ranking import rank


def test_the_best_of_every_block_has_rank_one_and_ties_share_their_ranks():
    found = rank({"low": [1, 1], "high": [3, 2], "mid": [2, 2]})
    assert found.ranks == {"high": 1.25, "mid": 1.75, "low": 3.0}
    assert list(found.ranks) == ["high", "mid", "low"]
    assert found.blocks == 2


@pytest.mark.parametrize(("k", "q"), [(3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_is_that_of_demsars_table_5(k, q):
    """CD = q sqrt(k (k + 1) / (6 N)), with the q of his table for 5 %."""
    rng = np.random.default_rng(k)
    found = rank({str(i): rng.normal(size=14) for i in range(k)})
    assert found.critical == pytest.approx(q * math.sqrt(k * (k + 1) / (6 * 14)), abs=2e-3)


def test_friedmans_statistic_is_its_formula():
    """chi2 = 12 N / (k (k + 1)) (sum R^2 - k (k + 1)^2 / 4); p = exp(-chi2 / 2)."""
    scores = {"a": [4, 4, 4, 1, 4], "b": [3, 3, 1, 4, 3], "c": [1, 1, 3, 3, 1]}
    found = rank(scores)
    means = {"a": 7 / 5, "b": 10 / 5, "c": 13 / 5}
    assert found.ranks == pytest.approx(means)
    chi2 = 12 * 5 / 12 * (sum(r * r for r in means.values()) - 3 * 16 / 4)
    assert found.p == pytest.approx(math.exp(-chi2 / 2))


def test_methods_are_told_apart_by_more_than_the_critical_difference():
    blocks = 30
    found = rank({"a": [2.0] * blocks, "b": [1.0] * blocks, "c": [0.0] * blocks})
    assert found.critical < 1
    assert found.apart("a", "b")
    assert found.level_with("a") == []
    few = rank({"a": [2.0], "b": [1.0], "c": [0.0]})
    assert few.critical > 2
    assert few.level_with("a") == ["b", "c"]


def test_equal_scores_are_one_rank_and_no_difference():
    found = rank({"a": [1, 1], "b": [1, 1], "c": [1, 1]})
    assert set(found.ranks.values()) == {2.0}
    assert found.p == 1.0


@pytest.mark.parametrize(
    "scores",
    [
        {"a": [1], "b": [2]},
        {"a": [1], "b": [2], "c": []},
        {"a": [1], "b": [2], "c": [math.nan]},
    ],
)
def test_what_cannot_be_ranked_is_one_line(scores):
    with pytest.raises(ConfigError):
        rank(scores)
