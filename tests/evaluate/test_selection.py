from __future__ import annotations

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
