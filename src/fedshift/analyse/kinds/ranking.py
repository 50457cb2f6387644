"""Mean ranks of methods over domains and seeds, with the critical difference (Demsar, 2006)."""

from __future__ import annotations

from collections.abc import Sequence

from fedshift.analyse.alike import Series, caption, series_of, under_protocol
from fedshift.analyse.finding import Finding
from fedshift.analyse.pictures import draw
from fedshift.analyse.registry import register_kind
from fedshift.base.errors import ConfigError
from fedshift.report.ranking import Ranking, rank
from fedshift.report.results import RunResult


@register_kind("ranking", paper="Demsar, JMLR 2006", group="numbers of rounds")
def ranking(
    results: Sequence[RunResult],
    *,
    protocol: str | None = None,
    mixed: bool = False,
) -> Finding:
    """Mean rank of each method over domains x seeds, and which differences can be trusted.

    Friedman's test says whether the methods differ at all; two of them are told apart if their mean
    ranks differ by more than Nemenyi's critical difference at 5 %.
    """
    found, notes = under_protocol(series_of(results, mixed=mixed), protocol, mixed=mixed)
    if len(found) < 3:
        raise ConfigError(f"{len(found)} methods cannot be ranked; give runs of three or more")
    common = set.intersection(*({r.config.seed for r in one.runs} for one in found))
    if not common:
        raise ConfigError("these methods have no seed in common; give the same seeds of each")
    if any({r.config.seed for r in one.runs} != common for one in found):
        notes.append(f"seeds that not all methods have are left out; kept: {sorted(common)}")
    scores = {one.label: _scores(one, sorted(common)) for one in found}
    got = rank(scores)
    best = next(iter(got.ranks))
    alike = got.level_with(best)
    told = f"not told from {', '.join(alike)}" if alike else "told apart from all others"
    sentence = (
        f"{best} ranks best (mean rank {got.ranks[best]:.2f} of {len(found)} over {got.blocks} "
        f"domains x seeds) and is {told} at 5 %; Friedman's p = {got.p:.3g}."
    )
    table = [
        {
            "method": name,
            "mean_rank": value,
            "told_from_best": name != best and got.apart(name, best),
            "critical_difference": got.critical,
            "blocks": got.blocks,
        }
        for name, value in got.ranks.items()
    ]
    figure = draw(lambda d: d.critical_difference(got.ranks, got.critical, groups(got),
                  d.Chart("mean ranks", caption(found), "mean rank (1 is best)")))  # fmt: skip
    return Finding(table, figure, sentence, tuple(notes))


def _scores(one: Series, seeds: Sequence[int]) -> list[float]:
    """One number per seed and domain, in an order that is the same for every method."""
    out: list[float] = []
    for run in (r for r in one.runs if r.config.seed in seeds):
        outcome = run.outcome(one.protocol)
        assert outcome is not None
        out += [outcome.metrics.domains[name] for name in sorted(outcome.metrics.domains)]
    return out


def groups(found: Ranking) -> list[tuple[str, str]]:
    """First and last method of every largest group of neighbours that are not told apart.

    >>> groups(Ranking({"a": 1.0, "b": 1.8, "c": 2.6}, 5, 0.1, 1.0))
    [('a', 'b'), ('b', 'c')]
    """
    names = list(found.ranks)
    out: list[tuple[str, str]] = []
    furthest = -1
    for i, name in enumerate(names):
        last = max(j for j in range(i, len(names)) if not found.apart(name, names[j]))
        if last > max(furthest, i):
            out.append((name, names[last]))
        furthest = max(furthest, last)
    return out
