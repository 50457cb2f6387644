"""The schedule of a short comparison: what it plays is what algebra says."""

from __future__ import annotations

import pytest

from fedshift.base.errors import ConfigError
from fedshift.core.registry import build
from fedshift.experiment.expectation import Estimate
from fedshift.guide.advise_contest import candidates, others
from fedshift.guide.halving import Schedule, affordable, often_enough
from fedshift.guide.shortlist import PRIVACY, QUESTIONS, SMALLER


def test_rungs_are_an_eighth_a_quarter_and_a_half_at_scored_rounds():
    assert Schedule.of(32, 4, lanes=1, seeds=3).rungs == (4, 8, 16)
    assert Schedule.of(30, often_enough(30, 3), lanes=1, seeds=3).rungs == (3, 9, 15)
    assert Schedule.of(16, often_enough(16, 4), lanes=1, seeds=3).rungs == (2, 4, 8)
    assert Schedule.of(3, often_enough(3, 3), lanes=1, seeds=3).rungs == (1, 1, 2)


def test_rounds_add_up():
    schedule = Schedule.of(32, 4, lanes=1, seeds=3)
    # 10 methods and 6 settings to round 4; 4 and FedAvg from 4 to 8; 2 and FedAvg from 8 to 16
    assert schedule.searched(10, 6, 1) == 16 * 4 + 5 * 4 + 3 * 8
    assert schedule.confirmed(2) == 2 * 3 * 32
    assert Schedule.of(32, 4, lanes=2, seeds=3).searched(10, 6, 1) == 2 * 108
    assert schedule.searched(2, 0, 1) == 2 * 4 + 2 * 4 + 2 * 8  # one challenger, all the way


def an_estimate(seconds: float) -> Estimate:
    return Estimate("", "", "", 32, 1, 1, seconds, 0.0, 0.0, 0.0, 0.0)


def test_fewer_rounds_are_played_if_the_time_is_short():
    schedule = Schedule.of(32, 4, lanes=1, seeds=3)
    each = [an_estimate(32.0)] * 10  # a second per round
    needed = schedule.searched(10, 6, 1) + schedule.confirmed(2)
    assert affordable(schedule, each, 6, needed, 1) == 32
    assert affordable(schedule, each, 6, needed / 2, 1) == 16
    assert affordable(schedule, each, 6, needed / 2, 2) == 32  # two processes
    with pytest.raises(ConfigError, match="allow more time") as refused:
        affordable(schedule, each, 6, needed / 8, 1)
    assert refused.value.options[0].startswith("minutes=")


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_shortlist_has_six_to_ten_methods_each_with_a_reason_and_settings_that_exist(question):
    assert 6 <= len(question.entries) <= 10
    assert question.entries[0].method == "fedavg"
    for one in (*candidates(question.entries, "none"), *candidates(SMALLER, "none")):
        assert one.entry.reason
        assert len(one.entry.values) <= 2
        settings = [build(one.method), *(build(o.method) for o in others(one, "none"))]
        assert len({repr(made) for made in settings}) == len(one.entry.values) + 1


def test_privacy_is_added_to_every_method_but_local_training():
    for kind in PRIVACY[1:]:
        typed = [one.method for one in candidates(QUESTIONS["per-site"].entries, kind)]
        assert typed[:3] == [f"fedavg + {kind}", "local", f"fedbn + {kind}"]
    prox = candidates(QUESTIONS["single"].entries, "local-dp")[1]
    assert [o.method for o in others(prox, "local-dp")] == [
        "fedprox[mu=0.1] + local-dp",
        "fedprox[mu=1] + local-dp",
    ]
