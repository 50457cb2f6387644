"""The demo's sentences say what the runs say, and every question can be asked."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

from fedshift import build
from fedshift.engine.preflight import check_needs
from fedshift.experiment.demo import QUESTIONS, Question, demonstrate, remark
from fedshift.experiment.listener import Listener
from fedshift.experiment.scenario import find_scenario

ASKED = Question("s", "ours", "theirs", "global", "personal")


def result(label, protocol, draws, *, seed=0, kept=True):
    """As much of a run as a sentence looks at."""
    outcome = SimpleNamespace(round=3, metrics=SimpleNamespace(avg=float(np.mean(draws))))
    return SimpleNamespace(
        label=label,
        config=SimpleNamespace(seed=seed, scenario=SimpleNamespace(name="s")),
        outcome=lambda wanted: outcome if wanted == protocol else None,
        draws=lambda wanted, round_: np.asarray(draws) if kept else None,
        error=lambda found: 2.0,
    )


@pytest.mark.parametrize(
    ("shift", "said"),
    [(5.0, "is 5.0 points better than"), (-5.0, "is 5.0 points worse than"), (0.0, "not differ")],
)
def test_a_difference_is_told_with_its_interval(shift, said):
    rng = np.random.default_rng(0)
    base, noise = 60 + rng.normal(size=2000), rng.normal(size=2000)
    noise = (noise - noise.mean()) / noise.std()
    ours = result("ours", "global", base + shift + noise)
    told = remark(ASKED, [ours, result("theirs", "personal", base)])
    assert said in told
    assert f"{shift:+.1f}, 95 % from" in told.replace("-0.0", "+0.0")
    low, high = np.quantile(noise + shift, (0.025, 0.975))
    assert f"from {low:+.1f} to {high:+.1f}" in told


def test_seeds_are_paired_and_a_missing_run_is_no_sentence():
    flat = np.full(1000, 1.0)
    ours = [result("ours", "global", v * flat, seed=i) for i, v in enumerate((70.0, 80.0))]
    assert remark(ASKED, ours) == ""
    assert "+20.0" in remark(ASKED, [*ours, result("theirs", "personal", 60 * flat, seed=1)])


def test_a_run_without_kept_predictions_counts_with_its_standard_error():
    """80 exactly against 60 with an error of 2: the interval is 20 -+ 1.96 times 2."""
    flat = np.full(1000, 1.0)
    ours, theirs = (
        result("ours", "global", 80 * flat),
        result("theirs", "personal", 60 * flat, kept=False),
    )
    told = remark(ASKED, [ours, theirs])
    low, high = (float(word) for word in re.findall(r"[+-][0-9.]+[0-9]", told)[1:])
    assert (low, high) == pytest.approx((20 - 3.92, 20 + 3.92), abs=0.6)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: f"{q.method}-{q.control}")
def test_every_question_has_a_scenario_that_its_methods_can_be_trained_in(question):
    scenario = find_scenario(question.scenario)
    for method in (question.method, question.control):
        check_needs(build(method), scenario, 4)
    assert {question.protocol, question.control_protocol or question.protocol} <= {
        *scenario.protocols
    }


@pytest.mark.exhaustive  # twelve runs
def test_the_demo_has_a_sentence_under_each_table(tmp_path):
    found = demonstrate(tmp_path, lambda _config: Listener(), 2, rounds=1)
    assert not found.failures
    assert found.remarks.keys() == {q.scenario for q in QUESTIONS}
    assert all(found.remarks.values())
