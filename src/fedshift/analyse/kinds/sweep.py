"""A hyper-parameter against accuracy, with error bars over seeds (FDSE, Fig. 6)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.analyse.alike import caption, series_of, under_protocol
from fedshift.analyse.finding import Finding, Rows
from fedshift.analyse.pictures import draw
from fedshift.analyse.registry import register_kind
from fedshift.base.errors import ConfigError
from fedshift.core.config import RunConfig, flat
from fedshift.report.results import Cell, RunResult, cell_of


@register_kind("sweep", paper="FDSE Fig. 6, F2DC Fig. 6", group="numbers of rounds")
def sweep(
    results: Sequence[RunResult],
    *,
    over: str = "",
    protocol: str | None = None,
    split: str = "test",
    mixed: bool = False,
) -> Finding:
    """Accuracy at the reported round over a hyper-parameter, with one std over seeds.

    Values must be chosen on validation data (``split=val``); the test curve is for showing how
    sensitive a method is, never for choosing.

    Options: over: a setting of the method (mu, or its owner's name first: proximal.mu), or of the
    scenario (scenario.lr); by default what differs; split: test or val.
    """
    key = over or _differing(results)
    option = key.removeprefix("scenario.") if key.startswith("scenario.") else ""
    values = [(value_of(run.config, key), run) for run in results]
    runs: dict[tuple[str, Any], list[RunResult]] = {}
    for value, run in values:
        runs.setdefault((_without(run.label, key), value), []).append(run)
    found = series_of(results, mixed=mixed, varied=(option,) if option else ())
    chosen, notes = under_protocol(found, protocol, mixed=mixed)
    kept = chosen[0].protocol
    table: Rows = []
    for (label, value), own in runs.items():
        cell = cell_of(own, kept, "avg") if split == "test" else None
        mean, std, n = (cell.mean, cell.std, cell.n) if cell else _validation(own, kept)
        table.append(
            {"method": label, key: value, "mean": mean, "std": std if n > 1 else None, "n": n}
        )
    table.sort(key=lambda row: (row["method"], _order(row[key])))
    best = max(table, key=lambda row: row["mean"])
    spread = best["mean"] - min(r["mean"] for r in table if r["method"] == best["method"])
    sentence = (
        f"{best['method']} has its best {split} accuracy at {key}={best[key]}: {best['mean']:.1f} "
        f"over {best['n']} seeds; the values differ by up to {spread:.1f} points."
    )
    if split == "test":
        notes.append("test accuracies: show how sensitive a method is with them, choose with val")
    figure = draw(lambda d: _figure(d, table, key, (split, caption(chosen))))
    return Finding(table, figure, sentence, tuple(notes))


def value_of(config: RunConfig, key: str) -> Any:
    """A run's value of a method's setting, or of an option of its scenario."""
    if key.startswith("scenario."):
        options = flat(config.scenario)
        name = key.removeprefix("scenario.")
        if name not in options:
            raise ConfigError(f"the scenario has no option {name!r}; check its name")
        return options[name]
    owner, _, name = key.rpartition(".")
    found = list(_settings(config.composition, owner, name))
    if not found:
        raise ConfigError(f"{config.label} has no setting {key!r}; check the name")
    if len(found) > 1:
        raise ConfigError(f"{config.label} has {key!r} more than once; write OWNER.{name}")
    return found[0]


def _settings(node: Any, owner: str, name: str) -> Any:
    """Values of a setting in a method's description; ``owner`` may be empty."""
    if isinstance(node, Mapping):
        if name in node and owner in ("", str(node.get("name"))):
            yield node[name]
        for inner in node.values():
            yield from _settings(inner, owner, name)
    elif isinstance(node, list | tuple):
        for inner in node:
            yield from _settings(inner, owner, name)


def _differing(results: Sequence[RunResult]) -> str:
    """The one setting of the scenario or of the label in which runs differ."""
    options = [flat(run.config.scenario) for run in results]
    apart = [k for k in options[0] if any(o.get(k) != options[0][k] for o in options)]
    words = {w for run in results for w in re.findall(r"([\w.-]+)=", run.label)}
    names = [*sorted(words), *(f"scenario.{k}" for k in apart)]
    if len(names) != 1:
        told = ", ".join(names) or "nothing"
        raise ConfigError(f"these runs differ in {told}; say which is swept over", "over=KEY")
    return names[0]


def _without(label: str, key: str) -> str:
    """A method's label without the swept setting.

    >>> _without("fedprox[mu=0.1]", "mu"), _without("moon[mu=1, tau=2]", "mu")
    ('fedprox', 'moon[tau=2]')
    """
    name = re.escape(key.rpartition(".")[2])
    text = re.sub(rf"(?<=[\[,\s])([\w-]+\.)?{name}=[^,\]]*,?\s*", "", label)
    return re.sub(r"[,\s]+(?=\]|$)", "", text).replace("[]", "")


def _validation(runs: Sequence[RunResult], protocol: str) -> tuple[float, float, int]:
    """Mean and deviation over seeds of the validation accuracy at each run's selected round."""
    values = []
    for run in runs:
        outcome = run.outcome(protocol)
        assert outcome is not None
        values.append(dict(run.curve(protocol, "avg", "val"))[outcome.round])
    cell = Cell.of(values)
    return cell.mean, cell.std, cell.n


def _order(value: Any) -> tuple[int, Any]:
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def _figure(d: Any, table: Rows, key: str, words: tuple[str, str]) -> Any:
    split, note = words
    plain = all(isinstance(row[key], int | float) for row in table)
    values = [v for v, _ in sorted({(row[key], 0) for row in table}, key=lambda p: _order(p[0]))]
    wide = plain and min(values) > 0 and max(values) / min(values) >= 20
    lines = []
    for method in dict.fromkeys(row["method"] for row in table):
        own = [row for row in table if row["method"] == method]
        x = [row[key] if plain else values.index(row[key]) for row in own]
        spread = [row["std"] or 0.0 for row in own]
        lines.append(d.Line(method, x, [row["mean"] for row in own], spread))
    ticks = [] if plain else [str(v) for v in values]
    across = "log" if wide else "linear"
    note = f"{note}; bars: one std over seeds"
    chart = d.Chart(f"{split} accuracy over {key}", note, key, f"{split} accuracy", across=across,
                    ticks=ticks)  # fmt: skip
    return d.error_bars(lines, chart)
