"""Tuning: every method has the same number of trials, and test data choose nothing."""

from __future__ import annotations

import math

import pytest
from planted import planted

from fedshift.base.errors import ConfigError
from fedshift.core.registry import build
from fedshift.experiment.compare import compare
from fedshift.experiment.tuning import candidates, main_axes
from fedshift.report import formats
from fedshift.testing import tiny_scenario


def setting(config) -> float:
    """mu of FedProx, else the server's rate."""
    parts = config.composition["parts"]
    if parts and "mu" in parts[0]:
        return parts[0]["mu"]
    return config.composition["aggregate"]["optimiser"]["lr"]


def numbers(config, round_: int) -> tuple[float, float]:
    """Validation likes large values, test small ones."""
    value = setting(config)
    return 50 + 10 * math.log10(value), 50 - 10 * math.log10(value)


@pytest.fixture
def played(monkeypatch) -> list:
    names: list = []
    monkeypatch.setattr("fedshift.experiment.compare.execute", planted(numbers, names))
    return names


def test_the_axes_are_a_methods_fractional_settings_within_their_limits():
    (mu,) = main_axes(build("fedprox"))
    assert (mu.key, mu.low, mu.high, mu.log) == ("proximal.mu", 0.001, 0.1, True)
    assert [axis.key for axis in main_axes(build("fedavg"))] == ["add.lr"]
    axes = {axis.key: axis for axis in main_axes(build("fedadam"))}
    assert (axes["adam.b1"].low, axes["adam.b1"].high) == (pytest.approx(0.09), 1.0)
    keys = [axis.key for axis in main_axes(build("f2dc"))]
    assert "decouple-and-correct.tau" in keys
    assert not [key for key in keys if key.endswith((".width", ".noise_at_test", ".modules"))]


def test_trials_are_the_defaults_and_the_same_draws_every_time():
    first, again = (candidates("fedprox", tiny_scenario(), 5) for _ in range(2))
    assert [p.method for p in first] == [p.method for p in again]
    assert first[0].method == "fedprox"
    assert len({p.method for p in first}) == 5
    assert [p.method for p in candidates("fedprox", tiny_scenario(), 3)] == [
        p.method for p in first[:3]
    ]


def test_every_method_has_as_many_trials_and_the_best_on_validation_is_compared(played, tmp_path):
    scenario = tiny_scenario(rounds=1)
    found = compare(
        ["fedavg", "fedprox"], scenario, seeds=[0, 1], out=tmp_path, workers=1, quiet=True, tune=4
    )
    first = [name for name in played if "-s0-" in name]
    assert len([n for n in first if n.startswith("fedavg")]) == 4
    assert len([n for n in first if n.startswith("fedprox")]) == 4
    assert len(played) == 8 + 2  # and the chosen ones with the second seed
    for method in ("fedavg", "fedprox"):
        tried = [setting_of(p.method) for p in candidates(method, scenario, 4)]
        (label,) = [one for one in found.methods if one.startswith(method)]
        assert setting_of(label) == max(tried)  # the largest, which is the worst on test data
        assert len(found.of(label, "tiny")) == 2
    for text in (formats.markdown(found), formats.latex(found)):
        assert "every method had 4 trials" in text
    assert "trials" not in formats.markdown(compare("fedavg", scenario, workers=1, quiet=True))


def setting_of(expression: str) -> float:
    whole = build(expression)
    return whole.parts[0].mu if whole.parts else whole.aggregate.optimiser.lr


def test_what_cannot_be_tuned_alike_is_said_before_anything_is_played(played):
    scenario = tiny_scenario(rounds=1)
    for given, told in (
        ({"methods": [build("fedavg")]}, "as text"),
        ({"tune": 0}, "from 1 on"),
        ({"scenarios": scenario.change(selection="oracle")}, "looks at test data"),
        ({"scenarios": [scenario, scenario.change(lr=0.1)], "against": "fedavg"}, "one scenario"),
    ):
        more = {"methods": ["fedavg"], "scenarios": scenario, "tune": 2} | given
        with pytest.raises(ConfigError, match=told):
            compare(more.pop("methods"), more.pop("scenarios"), workers=1, quiet=True, **more)
    assert not played


def test_differences_are_to_the_chosen_setting_of_the_reference(played):
    found = compare(
        ["fedavg", "fedprox"],
        tiny_scenario(rounds=1),
        against="fedavg",
        workers=1,
        quiet=True,
        tune=2,
    )
    assert found.against in found.methods
    assert found.against.startswith("fedavg")
