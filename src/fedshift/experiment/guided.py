"""A search that Optuna guides: it proposes settings, and gives up those that fall behind.

``experiment.sweep`` imports it when it is asked for, since Optuna is an extra. What Optuna is told
is validation scores and nothing else. It starts from a seed and is told the same numbers again when
a search is repeated, so it proposes the same settings, whose runs are then read: a search that was
interrupted continues, and a longer one begins with a shorter one.
"""

from __future__ import annotations

import importlib
from typing import Any

from fedshift.base import extras, seeds
from fedshift.core.config import RunConfig
from fedshift.experiment.compare import Job, played
from fedshift.experiment.listener import Listener, Through
from fedshift.experiment.points import Axis, point, short
from fedshift.experiment.progress import Watch
from fedshift.experiment.sweep import Outcome, Search, trial_of
from fedshift.report.sweeps import Trial
from fedshift.runs.record import Row, read_lines

STARTS = 4  # settings that are played to the end before any is given up


class GivenUp(Exception):  # noqa: N818  no error: the search has seen enough of a setting
    """Ends a run whose setting falls behind; its finished rounds stay on disk."""


class Pruner(Through):
    """Tells the search every validation score of a run, and ends the run if the search says so.

    The rounds that are on disk already are told first, so a repeated search decides alike.
    """

    def __init__(self, trial: Any, protocol: str, inner: Listener) -> None:
        super().__init__(inner)
        self.trial, self.protocol, self.last = trial, protocol, 0

    def tell(self, row: Row, last: int) -> None:
        """Pass one scored round on; after the ``last`` one there is nothing to give up."""
        if self.protocol in row.get("scores", {}):
            self.trial.report(row["scores"][self.protocol]["val"]["avg"], row["round"])
            if row["round"] < last and self.trial.should_prune():
                raise GivenUp(str(row["round"]))

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:
        """Pass it on."""
        self.last = config.scenario.rounds
        super().started(config, clients, first_round)

    def round_done(self, row: Row) -> None:
        """Pass it on, and tell the search."""
        super().round_done(row)
        self.tell(row, self.last)


def guided(search: Search, count: int, watch: Watch, workers: int) -> list[Trial]:
    """Play so many settings, one after another, each as Optuna proposes it."""
    extras.require("optuna", "a guided search needs Optuna", '"fedshift[sweep]"')
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seeds.derive(search.seed, "optuna") % 2**32),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTS, n_warmup_steps=1),
    )
    states = optuna.trial.TrialState
    found: dict[tuple[tuple[str, str], ...], Trial] = {}
    for _ in range(count):
        asked = study.ask()
        values = {axis.key: suggested(asked, axis) for axis in search.axes}
        trial = found.get(tuple(values.items())) or _play(search, values, asked, watch, workers)
        found[trial.values] = trial
        if trial.complete:
            study.tell(asked, trial.validation(search.protocol).mean)
        else:
            study.tell(asked, state=states.PRUNED if trial.pruned is not None else states.FAIL)
    return list(found.values())


def suggested(asked: Any, axis: Axis) -> str:
    """What Optuna proposes for an axis, as text."""
    if axis.values:
        return str(asked.suggest_categorical(axis.key, list(axis.values)))
    if axis.whole:
        return str(asked.suggest_int(axis.key, int(axis.low), int(axis.high)))
    return short(asked.suggest_float(axis.key, axis.low, axis.high, log=axis.log))


def _play(search: Search, values: dict[str, str], asked: Any, watch: Watch, workers: int) -> Trial:
    """The runs of one setting; the first seed's may be given up, and then there are no others."""
    one = point(search.method, search.scenario, values)
    (jobs,) = search.plan([one])
    outcomes: list[Outcome] = []
    first = Pruner(asked, search.protocol, Listener())
    try:
        for row in read_lines(jobs[0].path / "metrics.jsonl") if jobs[0].path else ():
            first.tell(row, 0 if jobs[0].done else jobs[0].config.scenario.rounds)

        def listening(config: RunConfig) -> Listener:
            first.inner = watch(config)
            return first

        outcomes += _outcomes(jobs[:1], listening, workers)
        if len(jobs) > 1:
            outcomes += _outcomes(jobs[1:], watch, workers)
    except GivenUp as given_up:
        return trial_of(one, outcomes, pruned=int(str(given_up)))
    return trial_of(one, outcomes)


def _outcomes(jobs: list[Job], watch: Watch, workers: int) -> list[Outcome]:
    found = {job.config.name: outcome for job, outcome in played(jobs, watch, workers)}
    return [found[job.config.name] for job in jobs]
