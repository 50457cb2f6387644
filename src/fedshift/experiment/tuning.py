"""Tune every method of a comparison with the same number of trials, and compare what was chosen.

``compare`` calls :func:`tuned` when it is asked to. A comparison in which one method was tuned and
another was not compares efforts. Here each gets as many settings as every other one: its defaults,
and draws around them. They are played with the first seed, the best on validation data is chosen,
and only that one is played with all seeds and compared. Test data are not looked at before that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.base import seeds as random_seeds
from fedshift.base.errors import ConfigError, RunError
from fedshift.core.component import settings_of
from fedshift.core.method import Method
from fedshift.core.registry import build
from fedshift.core.scenario import Scenario
from fedshift.experiment.compare import Job, compare, played
from fedshift.experiment.points import Axis, Point, drawn, point
from fedshift.experiment.progress import Watch
from fedshift.experiment.sweep import Outcome, Search, trial_of
from fedshift.report.results import Comparison
from fedshift.report.sweeps import Sweep

AROUND = 10.0  # a setting is drawn from a tenth of its default to ten times its default
SERVER_RATE = ("add", "lr")  # of every plain mean; tuned where a method has nothing else


def main_axes(method: Method) -> list[Axis]:
    """The numbers that a method is tuned by: its parts' and rules' fractional settings.

    Each is drawn log-uniformly around its default, within its declared limits. Whole numbers,
    words and switches say what the method is and are left alone, and so is what is 0, which means
    that something is off.
    """
    found: list[tuple[tuple[str, str], Axis]] = []
    for owner in method.declared:
        for field in settings_of(owner):
            value, limits = getattr(owner, field.name), field.metadata
            limited = limits["low"] is not None or limits["high"] is not None
            if isinstance(value, float) and value > 0 and limited:
                low = max(value / AROUND, limits["low"] or 0.0)
                high = min(
                    value * AROUND, float("inf") if limits["high"] is None else limits["high"]
                )
                axis = Axis(f"{owner.name}.{field.name}", (), low, high, log=True)
                found.append(((owner.name, field.name), axis))
    own = [axis for key, axis in found if key != SERVER_RATE]
    return own or [axis for _, axis in found]


def candidates(method: str, scenario: Scenario, trials: int) -> list[Point]:
    """A method's defaults and further settings, ``trials`` in all; the same ones every time."""
    axes = main_axes(build(method))
    if not axes and trials > 1:
        raise ConfigError(
            f"{method} has no number to tune, so it cannot have {trials} trials; compare it untuned"
        )
    seed = random_seeds.derive("tune", method)
    more = drawn(axes, trials - 1, seed) if trials > 1 else ()
    return [Point((), method, scenario), *(point(method, scenario, values) for values in more)]


def tuned(
    methods: Sequence[str | Method],
    scenarios: Sequence[Scenario],
    trials: int,
    *,
    watch: Watch,
    workers: int,
    executor: Mapping[str, Any],
    **options: Any,
) -> Comparison:
    """Tune every method in every scenario, then compare the chosen settings."""
    require_tunable(methods, scenarios, trials, options.get("against"))
    found: list[Comparison] = []
    for scenario in scenarios:
        chosen = choose(
            [str(method) for method in methods],
            scenario,
            trials,
            options,
            lambda jobs: played(jobs, watch, workers, **executor),
        )
        against: str | None = options.get("against")
        more = options | {"against": chosen.get(against, against) if against else None}
        found.append(
            compare(
                list(chosen.values()),
                scenario,
                watch=watch,
                workers=workers,
                executor=executor.get("executor", "local"),
                executor_options=executor.get("options"),
                **more,
            )
        )
    return Comparison(
        [result for one in found for result in one.results],
        [failure for one in found for failure in one.failures],
        found[0].path,
        [note for one in found for note in one.notes],
        found[0].against,
        tuned=(
            f"every method had {trials} trials (its defaults and {trials - 1} draws from a tenth "
            f"to ten times its defaults, seed {options['seeds'][0]}), the best on validation data "
            "is compared"
        ),
    )


def require_tunable(
    methods: Sequence[str | Method],
    scenarios: Sequence[Scenario],
    trials: int,
    against: str | None,
) -> None:
    """Raise, before anything is played, if a comparison cannot be tuned."""
    if trials < 1:
        raise ConfigError(f"tune is {trials}; it takes a number of trials from 1 on")
    if not all(isinstance(method, str) for method in methods):
        raise ConfigError("tune writes settings into expressions; give methods as text")
    if against is not None and len(scenarios) > 1:
        raise ConfigError("tuned settings differ by scenario; compare against one in one scenario")
    if any(scenario.selection == "oracle" for scenario in scenarios):
        raise ConfigError(
            "selection is oracle, which looks at test data, and tuning chooses on validation data",
            "scenario.selection=validation",
        )


def choose(
    methods: Sequence[str],
    scenario: Scenario,
    trials: int,
    options: Mapping[str, Any],
    play: Any,
) -> dict[str, str]:
    """By method, the expression of its best setting on validation data; all are played together."""
    first, out = options["seeds"][:1], options.get("out")
    points = {method: candidates(method, scenario, trials) for method in dict.fromkeys(methods)}
    every = [one for own in points.values() for one in own]
    search = Search.of(methods[0], scenario, {"all": ["methods"]}, seeds=first, out=out)
    jobs: list[Job] = [job for (job,) in search.plan(every)]
    outcomes: dict[str, Outcome] = {}
    for job, outcome in play(list({job.config.name: job for job in jobs}.values())):
        outcomes[job.config.name] = outcome
    found = dict(zip(map(id, every), (outcomes[job.config.name] for job in jobs), strict=True))
    return {
        method: _best(method, scenario, [(one, found[id(one)]) for one in own])
        for method, own in points.items()
    }


def _best(method: str, scenario: Scenario, own: Sequence[tuple[Point, Outcome]]) -> str:
    """The expression of the best point, under the first protocol that there is a model for."""
    trials = [trial_of(one, [outcome]) for one, outcome in own]
    for protocol in scenario.protocols:
        try:
            return Sweep(method, scenario.name, protocol, "tuning", trials).best.method
        except RunError:
            continue
    return method  # none was played to the end: compare says why
