"""The demo's sentences say what the runs say, and every question can be asked."""

from __future__ import annotations

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
    ours = [result("ours", "global", np.full(9, v), seed=i) for i, v in enumerate((70.0, 80.0))]
    theirs = [result("theirs", "personal", np.full(9, 60.0), seed=1, kept=False)]
    assert remark(ASKED, ours) == ""
    assert "+20.0" in remark(ASKED, [*ours, *theirs])  # draws of one side only


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
