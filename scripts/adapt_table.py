"""Measure what adapting without labels does at unseen sites, and whether it warns where it hurts.

    python scripts/adapt_table.py run [--seeds 5] [--first 5]     results/adapt.jsonl, resumable
    python scripts/adapt_table.py page [--check]                  docs/tables/adapt.md

The sites are the embedded digits: each look held out of the scenario digits, and digits/unseen. A
model is trained once per site, seed and method, and adapted offline in every way. The inputs are
the 150 training images of the unseen look, without labels; accuracy is on its 350 test images. The
thresholds of the warnings (adapting/verdict.py) were chosen with the seeds 0 to 4 and 100 to 102
(--first, and a file of their own by --results); the table has the seeds 5 to 9.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedshift
from fedshift.adapting.adapt import adapt_net, parts_of
from fedshift.adapting.opening import outputs
from fedshift.adapting.verdict import Judgement, Signals, judge
from fedshift.base import tree
from fedshift.base.process import tune_process
from fedshift.claims.store import Results
from fedshift.core.net import load
from fedshift.core.scenario import Scenario
from fedshift.engine.federation import federate_for
from fedshift.report.intervals import seed_interval

ROOT = Path(__file__).parents[1]
STORE, RUNS = ROOT / "results" / "adapt.jsonl", ROOT / "runs" / "adapt"
PAGE = ROOT / "docs" / "tables" / "adapt.md"
LOOKS = ("scan", "photo", "print", "meter", "outline")
WAYS = {"fedavg": ("adapt-bn", "tent", "t3a", "shot"), "fdse": ("own",)}
HURT = -2.0  # points; what is lost beyond this needs a warning
Row = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """A method's model at one unseen site."""

    method: str
    scenario: str
    look: str
    seed: int

    @property
    def name(self) -> str:
        """Of the run's folder."""
        return f"{self.method}-{self.scenario.replace('/', '_')}-{self.look}-{self.seed}"

    def asked(self) -> Scenario:
        """16 rounds, of which the last is taken; only the unseen site is scored."""
        others = tuple(look for look in LOOKS if look != self.look)
        return fedshift.find_scenario(self.scenario).change(
            unseen=self.look, domains=others, protocols=("unseen",), rounds=16, evaluate_every=16,
            selection="last", equal="rounds",
        )  # fmt: skip


def places(seeds: Sequence[int], methods: Sequence[str]) -> Iterator[Place]:
    """First seeds first."""
    for seed in seeds:
        for method in methods:
            for look in LOOKS:
                yield Place(method, "digits", look, seed)
            yield Place(method, "digits/unseen", "outline", seed)


def make(seeds: Sequence[int], methods: Sequence[str], store: Results) -> None:
    """Train and adapt what is not in the store."""
    tune_process()
    for place in places(seeds, methods):
        missing = [way for way in WAYS[place.method] if f"{place.name} {way}" not in store.rows]
        if not missing:
            continue
        path = RUNS / place.name
        if not (path / "summary.json").exists():
            fedshift.run(place.method, place.asked(), seed=place.seed, out=path, quiet=True,
                         resume=path.exists())  # fmt: skip
        for row in measured(place, path, missing):
            store.add(row)
            print(time.strftime("%H:%M"), row["run"], f"{row['change']:+.1f}", flush=True)


def measured(place: Place, path: Path, ways: Sequence[str]) -> Iterator[Row]:
    """Accuracy before and after each way of adapting, and what was said without labels."""
    model = fedshift.load_model(path)
    site = federate_for(model.method, model.config.scenario, model.config.seed).unseen
    assert site is not None
    start, y = tree.clone(model.net.state_dict()), site.test.labels

    def accuracy() -> float:
        return 100 * float((outputs(model, site.test).argmax(1) == y).double().mean())

    before = accuracy()
    for way in ways:
        load(model.net, start)
        signals = adapt_net(model, parts_of(model, way)[1], site.inputs)
        after = accuracy()
        yield {
            "run": f"{place.name} {way}", "method": place.method, "scenario": place.scenario,
            "look": place.look, "seed": place.seed, "way": way, "before": before, "after": after,
            "change": after - before, "signals": signals.to_json(),
        }  # fmt: skip


def verdict(row: Row) -> Judgement:
    """What the rule says of an adaptation, from what was seen without labels."""
    return judge(Signals(**row["signals"]))


def warned(row: Row) -> bool:
    """Whether anything was said against the adapted model."""
    return verdict(row).warned


def page(rows: Sequence[Row]) -> str:
    """The table, and how often a warning was right."""
    first, numbers = (
        ("unseen site", "model", "adapted with"),
        ("before", "after", "difference, 95 %"),
    )
    heads = (*first, *numbers, "worst seed", "warned")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    keys = dict.fromkeys((r["scenario"], r["look"], r["method"], r["way"]) for r in rows)
    for key in sorted(keys, key=lambda k: (k[0], LOOKS.index(k[1]), k[2] != "fedavg")):
        own = [r for r in rows if (r["scenario"], r["look"], r["method"], r["way"]) == key]
        lines.append(line(key, own))
    return "\n".join([*lines, "", *summary(rows), ""])


def line(key: tuple[str, str, str, str], own: Sequence[Row]) -> str:
    """One row of the table: means over seeds."""
    scenario, look, method, way = key
    changes = [r["change"] for r in own]
    before, after = (statistics.fmean(r[k] for r in own) for k in ("before", "after"))
    change = f"{statistics.fmean(changes):+.1f}"
    if len(changes) > 1:
        change += f" ± {seed_interval(changes):.1f}"
    site = look if scenario == "digits" else f"{look} (`{scenario}`)"
    count = f"{sum(map(warned, own))} of {len(own)}"
    return (
        f"| {site} | `{method}` | `{way}` | {before:.1f} | {after:.1f} | {change} | "
        f"{min(changes):+.1f} | {count} |"
    )


def summary(rows: Sequence[Row]) -> list[str]:
    """How often adapting hurt, how often that was seen, how often a warning was needless."""
    hurt, told = [r for r in rows if r["change"] < HURT], [r for r in rows if warned(r)]
    seen, refused = sum(map(warned, hurt)), sum(bool(verdict(r).collapse) for r in rows)
    gained = sum(r["change"] > 0 for r in told)
    silent = [r["change"] for r in rows if not warned(r)]
    seeds = len({r["seed"] for r in rows})
    return [
        f"{len(rows)} adaptations over {seeds} seeds. {len(hurt)} lost more than 2 points, of "
        f"which {seen} came with a warning. Of {len(told)} warnings ({refused} of them refusals), "
        f"{gained} were of models that had gained. Of the {len(silent)} without a warning the "
        f"worst change is {min(silent):+.1f} points and the mean {statistics.fmean(silent):+.1f}."
    ]


def main(args: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("--seeds", type=int, default=5)
    run.add_argument("--first", type=int, default=5)
    run.add_argument("--method", action="append", choices=[*WAYS])
    shown = verbs.add_parser("page")
    shown.add_argument("--check", action="store_true")
    for one in (run, shown):
        one.add_argument("--results", type=Path, default=STORE)
    told = parser.parse_args(args)
    store = Results.open(told.results)
    if told.verb == "run":
        make(range(told.first, told.first + told.seeds), told.method or [*WAYS], store)
        return 0
    text = page([*store.rows.values()])
    if told.check:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
