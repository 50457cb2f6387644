"""A hyper-parameter against accuracy, with error bars over seeds (FDSE, Fig. 6)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.analyse.alike import NEUTRAL, caption, series_of, under_protocol
from fedshift.analyse.finding import Finding, Rows
from fedshift.analyse.pictures import draw
from fedshift.analyse.registry import register_kind
from fedshift.base.errors import ConfigError
from fedshift.core.config import RunConfig, flat
from fedshift.report.cells import Cell
from fedshift.report.results import RunResult, cell_of


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

    Options: over: settings of the method (mu, or its owner's name first: proximal.mu) or of the
    scenario (scenario.lr), joined by commas; by default all that differ; split: test or val.
    """
    keys = [word.strip() for word in over.split(",") if word.strip()] or _differing(results)
    options = [k.removeprefix("scenario.") for k in keys if k.startswith("scenario.")]
    found = series_of(results, mixed=mixed, varied=options)
    chosen, notes = under_protocol(found, protocol, mixed=mixed)
    table: Rows = []
    for key in keys:
        table += _swept(results, key, chosen[0].protocol, split)
    if not table:
        told = ", ".join(keys) or "nothing"
        raise ConfigError(f"no method has two values of what these runs differ in ({told})")
    best = max(table, key=lambda row: row["mean"])
    same = [r for r in table if (r["method"], r["setting"]) == (best["method"], best["setting"])]
    spread = best["mean"] - min(row["mean"] for row in same)
    sentence = (
        f"{best['method']} has its best {split} accuracy at {best['setting']}={best['value']}: "
        f"{best['mean']:.1f} over {best['n']} seeds; values differ by up to {spread:.1f} points."
    )
    if split == "test":
        notes.append("test accuracies: show how sensitive a method is with them, choose with val")
    figure = draw(lambda d: _figure(d, table, split, caption(chosen)))
    return Finding(table, figure, sentence, tuple(notes))


def _swept(results: Sequence[RunResult], key: str, protocol: str, split: str) -> Rows:
    """A row per method and value, of the methods that have two values; others are left out."""
    groups: dict[str, dict[Any, list[RunResult]]] = {}
    for run in results:
        known = value_of(run.config, key)
        if known is not None:
            label = _without(run.label, key)
            groups.setdefault(label, {}).setdefault(known, []).append(run)
    table: Rows = []
    for label, by_value in groups.items():
        if len(by_value) < 2:
            continue
        for value in sorted(by_value, key=_order):
            cell = _cell(by_value[value], protocol, split)
            table.append(
                {
                    "method": label,
                    "setting": key,
                    "value": value,
                    "mean": cell.mean,
                    "std": cell.std if cell.n > 1 else None,
                    "n": cell.n,
                }
            )
    return table


def value_of(config: RunConfig, key: str) -> Any:
    """A run's value of a method's setting, or of an option of its scenario; None if it has none."""
    if key.startswith("scenario."):
        return flat(config.scenario).get(key.removeprefix("scenario."))
    owner, _, name = key.rpartition(".")
    found = list(_settings(config.composition, owner, name))
    if len(found) > 1:
        raise ConfigError(f"{config.label} has {key!r} more than once; write OWNER.{name}")
    return found[0] if found else None


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


def _differing(results: Sequence[RunResult]) -> list[str]:
    """What the runs differ in: settings that labels name, and options of the scenario."""
    options = [flat(run.config.scenario) for run in results]
    apart = [k for k in options[0] if any(o.get(k) != options[0][k] for o in options)]
    words = {w for run in results for w in re.findall(r"([\w.-]+)=", run.label)}
    return [*sorted(words), *(f"scenario.{k}" for k in apart if k not in NEUTRAL)]


def _without(label: str, key: str) -> str:
    """A method's label without the swept setting.

    >>> _without("fedprox[mu=0.1]", "mu"), _without("moon[mu=1, tau=2]", "mu")
    ('fedprox', 'moon[tau=2]')
    """
    name = re.escape(key.rpartition(".")[2])
    text = re.sub(rf"(?<=[\[,\s])([\w-]+\.)?{name}=[^,\]]*,?\s*", "", label)
    return re.sub(r"[,\s]+(?=\]|$)", "", text).replace("[]", "")


def _cell(runs: Sequence[RunResult], protocol: str, split: str) -> Cell:
    """Mean and deviation over seeds at each run's selected round."""
    if split == "test":
        return cell_of(runs, protocol, "avg")
    found = [(run, o) for run in runs if (o := run.outcome(protocol)) is not None]
    return Cell.of([dict(run.curve(protocol, "avg", "val"))[o.round] for run, o in found])


def _order(value: Any) -> tuple[int, Any]:
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def _figure(d: Any, table: Rows, split: str, note: str) -> Any:
    panels: dict[str, tuple[list[Any], list[str]]] = {}
    for key in dict.fromkeys(row["setting"] for row in table):
        rows = [row for row in table if row["setting"] == key]
        values = sorted({row["value"] for row in rows}, key=_order)
        plain = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        lines = []
        for method in dict.fromkeys(row["method"] for row in rows):
            own = [row for row in rows if row["method"] == method]
            x = [row["value"] if plain else values.index(row["value"]) for row in own]
            spread = [row["std"] or 0.0 for row in own]
            lines.append(d.Line(method, x, [row["mean"] for row in own], spread))
        panels[key] = lines, [] if plain else [str(v) for v in values]
    chart = d.Chart(f"{split} accuracy over a setting", f"{note}; bars: one std over seeds",
                    y=f"{split} accuracy")  # fmt: skip
    return d.error_bars(panels, chart)
