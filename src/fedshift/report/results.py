"""The results that ``run`` and ``compare`` return: numbers, and the rule that chose their round.

Users read them directly; tables, figures and pages are made from them. A number must never appear
without its selection rule: an oracle's choice, which looked at test data, is always marked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from numpy.typing import NDArray

from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.core.config import RunConfig, compared, flat, named_options
from fedshift.core.scenario import Protocol
from fedshift.evaluate.metrics import Metrics, rounds_to
from fedshift.report import bootstrap, optional
from fedshift.report.cells import Cell
from fedshift.report.intervals import mean_error, sample_error
from fedshift.runs.predictions import KeptPredictions, read_predictions
from fedshift.runs.record import Row

Choice = Literal["selected", "last", "oracle"]
PROTOCOLS: tuple[str, ...] = get_args(Protocol)


@dataclass(frozen=True)
class Outcome:
    """The numbers of one protocol at one round, and the rule that chose the round.

    ``rule`` is validation, last, last5 (the mean of the last five scored rounds), or oracle, which
    chooses the round on test data.
    """

    rule: str
    round: int
    metrics: Metrics


@dataclass(frozen=True, repr=False)
class RunResult:
    """A finished run: its configuration, its history over rounds, its summary, and its directory.

    In a notebook it is displayed as a table; :meth:`plot` draws accuracy over rounds and
    :meth:`to_frame` gives the history to pandas.
    """

    config: RunConfig
    history: list[Row]
    summary: Row
    path: Path | None

    @property
    def label(self) -> str:
        """The method's name in tables."""
        return self.config.label

    def outcome(self, protocol: str, choice: Choice = "selected") -> Outcome | None:
        """The numbers of a protocol; None if the method has no such model."""
        _require("protocol", protocol, {*PROTOCOLS, *self.summary["protocols"]})
        _require("choice of a round", choice, get_args(Choice))
        found = self.summary["protocols"].get(protocol)
        if found is None:
            return None
        if (protocol, choice) not in self._outcomes:
            row = found[choice]
            made = Outcome(row["rule"], row["round"], Metrics.from_json(row["metrics"]))
            self._outcomes[protocol, choice] = made
        return self._outcomes[protocol, choice]

    @cached_property
    def _outcomes(self) -> dict[tuple[str, str], Outcome]:
        """Outcomes that were read before: every table asks for them again."""
        return {}

    def accuracy(self, protocol: str, choice: Choice = "selected") -> float:
        """AVG over domains in per cent; NaN if the method has no such model."""
        outcome = self.outcome(protocol, choice)
        return outcome.metrics.avg if outcome else math.nan

    def curve(
        self, protocol: str, key: str = "avg", split: str = "test"
    ) -> list[tuple[int, float]]:
        """(round, value) of every scored round; none if the method has no such model."""
        _require("protocol", protocol, {*PROTOCOLS, *self.summary["protocols"]})
        rows = [r for r in self.history if protocol in r.get("scores", {})]
        if rows:
            _require("split of the scores", split, rows[0]["scores"][protocol])
            _require("number of a score", key, rows[0]["scores"][protocol][split])
        return [(r["round"], r["scores"][protocol][split][key]) for r in rows]

    def rounds_to(self, threshold: float, protocol: str) -> int | None:
        """First scored round whose AVG over domains reaches ``threshold``; None if none does."""
        return rounds_to(threshold, self.curve(protocol))

    @property
    def test_samples(self) -> dict[str, int]:
        """Number of test samples of each domain; empty where the data are at remote sites."""
        return {name: row["test"] for name, row in self.summary.get("samples", {}).items()}

    def error(self, outcome: Outcome, key: str = "avg") -> float:
        """Standard error of AVG or of a domain's accuracy that comes from the test samples.

        NaN for other numbers, for objectives that are no accuracy, and where counts are missing. In
        a deployment the sites have counted.
        """
        accuracy = self.config.scenario.objective == "classification"
        domains, samples = outcome.metrics.domains, self.test_samples or outcome.metrics.samples
        if accuracy and key in domains and samples.get(key):
            return sample_error(domains[key], samples[key])
        return mean_error(domains, samples) if accuracy and key == "avg" else math.nan

    def draws(self, protocol: str, round_: int, key: str = "avg") -> NDArray[Any] | None:
        """A number in each draw of the bootstrap over test samples; None if it is not known.

        Known are AVG, the domains and the measures at the rounds whose predictions were kept.
        """
        table = self._table(protocol, round_, areas=key == "auroc")
        main = self.config.scenario.task.main
        owner, name = (key, main) if key in table else ("", main if key == "avg" else key)
        return table.get(owner, {}).get(name)

    def _table(self, protocol: str, round_: int, *, areas: bool) -> dict[str, bootstrap.Draws]:
        """Every measure's draws by domain, and under "" the means; areas take long."""
        if (protocol, round_, areas) not in self._tables:
            own = [p for p in self._kept if (p.protocol, p.round) == (protocol, round_)]
            task = self.config.scenario.task
            table = {
                d: bootstrap.domain_draws([p for p in own if p.domain == d], task, areas=areas)
                for d in dict.fromkeys(p.domain for p in own)
            }
            means = {"": bootstrap.mean_draws([*table.values()])} if table else {}
            self._tables[protocol, round_, areas] = table | means
        return self._tables[protocol, round_, areas]

    @cached_property
    def _kept(self) -> list[KeptPredictions]:
        return read_predictions(self.path) if self.path is not None else []

    @cached_property
    def _tables(self) -> dict[tuple[str, int, bool], dict[str, bootstrap.Draws]]:
        """Draws that were made before, by protocol, round and whether with areas."""
        return {}

    def __repr__(self) -> str:
        found = [f"{name} {self.accuracy(name):.1f}" for name in self.summary["protocols"]]
        where = f"{self.config.scenario_label}, seed {self.config.seed}"
        return f"<{self.label} on {where}, {self.summary['rounds']} rounds: {', '.join(found)}>"

    def _repr_html_(self) -> str:
        """For notebooks: one line per protocol."""
        return _notebook().run_table(self)

    def to_frame(self) -> Any:
        """The history as a pandas data frame: one row per scored round, protocol and split."""
        return _notebook().history(self)

    def plot(self, protocol: str | None = None) -> Any:
        """Test accuracy over rounds as a matplotlib figure; by default of the first protocol."""
        return Comparison([self]).plot(protocol)


def cell_of(
    runs: Sequence[RunResult], protocol: str, key: str, choice: Choice = "selected"
) -> Cell:
    """One number over the seeds of some runs: avg, std, all, worst, a domain or a measure."""
    found = [(r, o) for r in runs if (o := r.outcome(protocol, choice)) is not None]
    values = [o.metrics.value(key) for _, o in found]
    if len(found) != 1:
        return Cell.of(values)
    run, outcome = found[0]
    return Cell.of(values, run.error(outcome, key), run.draws(protocol, outcome.round, key))


@dataclass(frozen=True)
class Failure:
    """A run that did not finish, and the reason."""

    config: RunConfig
    reason: str


@dataclass(frozen=True, repr=False)
class Comparison:
    """Several runs side by side.

    In a notebook it is one table per scenario; :meth:`plot` and :meth:`to_frame` are for more.
    """

    results: list[RunResult]
    failures: list[Failure] = field(default_factory=list)
    path: Path | None = None
    notes: list[str] = field(default_factory=list)  # runs in the folder that are of older data
    against: str | None = None  # the method that tables compare the others with, if any
    remarks: dict[str, str] = field(default_factory=dict)  # what to conclude, by scenario's name
    tuned: str = ""  # how the settings of the methods were chosen, if they were

    @property
    def methods(self) -> list[str]:
        """Labels of the methods, in the order in which they were requested."""
        return list(dict.fromkeys(r.label for r in self.results))

    @property
    def scenarios(self) -> list[str]:
        """Labels of the scenarios in order, each with its changes to the registered one."""
        return list(dict.fromkeys(map(self.scenario_of, self.results)))

    def scenario_of(self, result: RunResult) -> str:
        """The label of a run's scenario among these runs.

        Runs of other options or of other data are other scenarios, even if they are called alike:
        their numbers must never be averaged. What differs is then in the label.
        """
        if (known := self._names.get(id(result))) is not None:
            return known
        return self._labels[result.config.scenario_label][_content(result.config)]

    @cached_property
    def _names(self) -> dict[int, str]:
        """The scenario's label of each result, by its identity: making one takes a while."""
        return {
            id(r): self._labels[r.config.scenario_label][_content(r.config)] for r in self.results
        }

    @cached_property
    def _groups(self) -> dict[tuple[str, str], list[RunResult]]:
        """The runs by method and scenario."""
        out: dict[tuple[str, str], list[RunResult]] = {}
        for result in self.results:
            out.setdefault((result.label, self.scenario_of(result)), []).append(result)
        return out

    @cached_property
    def _labels(self) -> dict[str, dict[str, str]]:
        """By name of the scenario and by its content, how it is called among these runs."""
        kinds: dict[str, dict[str, RunConfig]] = {}
        for result in self.results:
            config = result.config
            kinds.setdefault(config.scenario_label, {})[_content(config)] = config
        return {
            name: dict(zip(found, _told_apart(name, [*found.values()]), strict=True))
            for name, found in kinds.items()
        }

    def of(self, method: str, scenario: str) -> list[RunResult]:
        """The runs of one method in one scenario, one per seed."""
        return list(self._groups.get((method, scenario), ()))

    def protocols(self, scenario: str) -> list[str]:
        """The protocols of a scenario for which at least one method has a model."""
        runs = (r for r in self.results if self.scenario_of(r) == scenario)
        return list(dict.fromkeys(p for r in runs for p in r.summary["protocols"]))

    def cell(
        self,
        method: str,
        scenario: str,
        protocol: str,
        key: str = "avg",
        choice: Choice = "selected",
    ) -> Cell:
        """One number over seeds: ``key`` is avg, std, all, worst, a domain or a measure."""
        return cell_of(self.of(method, scenario), protocol, key, choice)

    def difference(
        self,
        method: str,
        reference: str,
        scenario: str,
        protocol: str,
        choice: Choice = "selected",
        *,
        key: str = "avg",
    ) -> Cell:
        """A number of a method minus that of a reference, seed by seed; ``interval``: how sure.

        ``key`` is as in :meth:`cell`. Seeds that only one of them has are left out.
        """
        seeds = [{r.config.seed for r in self.of(m, scenario)} for m in (method, reference)]
        common = seeds[0] & seeds[1]
        own, other = (
            [r for r in self.of(name, scenario) if r.config.seed in common]
            for name in (method, reference)
        )
        return cell_of(own, protocol, key, choice).minus(cell_of(other, protocol, key, choice))

    def __repr__(self) -> str:
        seeds = len({r.config.seed for r in self.results})
        counts = f"{len(self.methods)} methods, {len(self.scenarios)} scenarios, {seeds} seeds"
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"<{len(self.results)} runs: {counts}{failed}>"

    def _repr_html_(self) -> str:
        """For notebooks: one table per scenario, means over seeds."""
        return _notebook().comparison_tables(self)

    def to_frame(self) -> Any:
        """The selected rounds as a pandas data frame: one row per run and protocol."""
        return _notebook().selected(self)

    def plot(self, protocol: str | None = None, scenario: str | None = None) -> Any:
        """Accuracy over rounds of every method, as a matplotlib figure.

        By default for the first scenario, and the first protocol for which some method has a model.
        """
        if not self.results:
            raise ConfigError("there is no finished run to draw; finish one first")
        scenario = _one_of("scenario", scenario, self.scenarios)
        protocol = _one_of("protocol", protocol, self.protocols(scenario))
        return optional.figures().curves(self, scenario, protocol)


def _content(config: RunConfig) -> str:
    """What a scenario is, as text: all its options, and the fingerprint of the data."""
    options = compared(config.scenario, named_options(config.scenario))
    return json.dumps([options, config.data], sort_keys=True)


def _told_apart(name: str, configs: Sequence[RunConfig]) -> list[str]:
    """Labels of scenarios that have one name, each with the values in which they differ."""
    own = [compared(c.scenario, flat(c.scenario)) for c in configs]
    tables = [o | {"data version": c.data or "unknown"} for o, c in zip(own, configs, strict=True)]
    keys = dict.fromkeys(key for table in tables for key in table)
    varied = [k for k in keys if any(t.get(k) != tables[0].get(k) for t in tables)]
    if not varied:
        return [name] * len(configs)
    return [f"{name} ({', '.join(f'{k}={t.get(k)}' for k in varied)})" for t in tables]


def _require(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise if a name is none of the known ones."""
    if name not in (names := list(known)):
        raise UnknownNameError.of(kind, name, names)


def _one_of(kind: str, wanted: str | None, known: Sequence[str]) -> str:
    """``wanted`` if it is known, or the first known one if it is None."""
    if wanted is not None and wanted not in known:
        raise UnknownNameError.of(f"{kind} of these runs", wanted, known)
    return known[0] if wanted is None else wanted


def _notebook() -> Any:
    """``report.notebook``, which imports this module and so can only be imported when needed."""
    return import_module("fedshift.report.notebook")
