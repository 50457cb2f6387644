from __future__ import annotations

import numpy as np
import pytest

from fedshift.runs.summary import choose


def row(round_: int, val: float, test: float) -> dict:
    both = {"val": {"avg": val}, "test": {"avg": test, "at": round_}}
    return {"round": round_, "scores": {"personal": both}}


HISTORY = [row(2, 60, 50), row(4, 80, 55), row(6, 80, 90), row(8, 70, 65)]


@pytest.mark.parametrize(
    ("rule", "round_"), [("validation", 4), ("last", 8), ("oracle", 6)], ids=str
)
def test_the_selected_round_follows_the_rule(rule: str, round_: int):
    found = choose("personal", HISTORY, rule)
    assert (found["selected"]["rule"], found["selected"]["round"]) == (rule, round_)
    assert found["selected"]["metrics"]["at"] == round_


def test_last_and_oracle_are_always_there_and_say_so():
    found = choose("personal", HISTORY, "validation")
    assert (found["last"]["rule"], found["last"]["round"]) == ("last", 8)
    assert (found["oracle"]["rule"], found["oracle"]["round"]) == ("oracle", 6)


def test_ties_in_validation_go_to_the_earliest_round_whatever_the_test_says():
    assert choose("personal", HISTORY, "validation")["selected"]["round"] == 4


def scored(round_: int, a: float, b: float, **further) -> dict:
    """A round with two domains, as the record has it."""
    metrics = {"avg": (a + b) / 2, "std": 0.0, "all": (3 * a + b) / 4, "worst": min(a, b)}
    metrics |= {"loss": 1.0, "domains": {"a": a, "b": b}, "clients": {}, "auroc": a}
    return {"round": round_, "scores": {"global": {"val": metrics, "test": metrics}}} | further


def test_last5_is_the_mean_of_the_last_five_scored_rounds():
    rng = np.random.default_rng(0)
    values = rng.uniform(20, 90, (8, 2))
    history = [scored(2 * i, *map(float, row)) for i, row in enumerate(values)]
    found = choose("global", history, "last5")["selected"]
    mean = values[-5:].mean(0)
    assert (found["rule"], found["round"]) == ("last5", 14)
    metrics = found["metrics"]
    assert [metrics["domains"][d] for d in "ab"] == pytest.approx(list(mean))
    assert metrics["avg"] == pytest.approx(mean.mean())
    assert metrics["std"] == pytest.approx(mean.std(ddof=1))
    assert metrics["worst"] == pytest.approx(mean.min())
    assert metrics["all"] == pytest.approx(mean @ [0.75, 0.25])
    assert metrics["auroc"] == pytest.approx(mean[0])


def test_last5_leaves_out_rounds_in_which_a_site_was_not_scored_and_takes_what_there_is():
    history = [scored(1, 10, 20), scored(2, 90, 90, unscored=["x"]), scored(3, 30, 40)]
    found = choose("global", history, "last5")["selected"]
    assert found["metrics"]["domains"] == {"a": 20.0, "b": 30.0}
    assert found["round"] == 3
