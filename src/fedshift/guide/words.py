"""Plain sentences out of the numbers of a diagnosis; what is said follows from stated thresholds.

``guide.doctor`` collects the sentences. The thresholds are in docs/guide.md too, and a sentence
never says more than its numbers: what may be chance is not named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite, nan

import numpy as np

from fedshift.guide.features import LOOKS
from fedshift.guide.shift import FEWEST, Departure, LabelShift, Told

ALIKE = 60.0  # per cent of samples whose site is told right, up to which two sites look alike
DEVIATIONS = 0.5  # deviations by which a number differs at a site, before it is named
LABELS, SKEWED = 0.1, 0.3  # share of a site's labels that are not as elsewhere: somewhat, skewed
NUMBERS = 0.5  # the same of numbers to predict, in deviations
UNEVEN = 1.5  # times as many rows as the rarest class, from which classes are not balanced
LOST = 10.0  # points that a model of one site loses at another, from which the shift matters
MISSING, GAP = 0.2, 0.1  # share of missing cells that is told; difference between two sites
LEAKS = 0.01  # share of test samples with a copy elsewhere, from which scores cannot be trusted
NAMED = 6  # sites that get a sentence each
Pair = tuple[str, str]


def listed(names: Iterable[str], most: int = 8) -> str:
    """Names as people write them.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    every = list(names)
    if len(every) > most:
        return f"{', '.join(every[:most])} and {len(every) - most} more"
    return " and ".join(filter(None, [", ".join(every[:-1]), every[-1]])) if every else ""


def alike_groups(sites: Sequence[str], pairs: Mapping[Pair, Told]) -> tuple[tuple[str, ...], ...]:
    """Sites that look alike: each looks like every other of its group; the largest group first."""
    groups: list[list[str]] = []
    for site in sites:
        fits = [g for g in groups if all(_alike(pairs.get((other, site))) for other in g)]
        if fits:
            fits[0].append(site)
        elif any(site in pair for pair in pairs):
            groups.append([site])
    found = sorted((tuple(g) for g in groups if len(g) > 1), key=len, reverse=True)
    return tuple(found)


def _alike(told: Told | None) -> bool:
    return told is not None and (told.value <= ALIKE or told.value - told.error <= told.chance)


def on_looks(
    sites: Sequence[str],
    groups: Sequence[Sequence[str]],
    found: Sequence[Departure],
    told: Told | None,
    unit: str,
) -> Iterator[str]:
    """Which sites look alike, and in what the others differ."""
    if len(sites) < 2:
        return
    for group in groups:
        yield f"{listed(group)} look alike."
    if told is None:
        yield f"Whether sites look alike is not known: that takes {FEWEST} samples of each site."
    elif not groups:
        yield "No two sites look alike." if len(sites) > 2 else "The two sites do not look alike."
    if told is not None:
        yield (
            f"A linear model on {unit} names the site of a sample right in {told.value:.0f} % of "
            f"cases (± {told.error:.0f}; {told.chance:.0f} % is chance)."
        )
    usual = groups[0] if groups else sites[: len(sites) == 2]
    yield from _odd([site for site in sites if site not in usual], found, known=told is not None)


def _odd(odd: Sequence[str], found: Sequence[Departure], *, known: bool) -> Iterator[str]:
    """In what each site that is not of the largest group differs; ``known``: that it does."""
    for site in odd[:NAMED]:
        own = [one for one in found if one.site == site]
        if own:
            yield f"{site} differs in {listed(map(_difference, own[:3]))}."
        elif known:
            yield f"{site} can be told apart, but no measured quantity differs clearly."
    if len(odd) > NAMED:
        yield f"{len(odd) - NAMED} more sites differ; the tables have them."


def _difference(one: Departure) -> str:
    here, others = (f"{v:.2g}" if abs(v) < 100 else f"{v:,.0f}" for v in (one.here, one.others))
    less, more = LOOKS.get(one.what, ("lower", "higher"))
    return f"{one.what} ({more if one.deviations > 0 else less}: {here}, elsewhere {others})"


def on_labels(
    shifts: Sequence[LabelShift], counts: Mapping[str, Mapping[str, float]], objective: str
) -> Iterator[str]:
    """Whether labels are balanced, over sites and over classes."""
    limit = NUMBERS if objective == "regression" else LABELS
    odd = [one for one in shifts if one.distance > max(limit, 2 * one.by_chance)]
    what = "numbers to predict" if objective == "regression" else "labels"
    ratio = _ratio(counts) if objective == "classification" else 1.0
    if not odd and len(shifts) > 1:
        also = " and over classes" if objective == "classification" and ratio <= UNEVEN else ""
        yield f"{what.capitalize()} are balanced over sites{also}."
    elif odd:
        word = "are skewed" if max(one.distance for one in odd) > SKEWED else "differ somewhat"
        largest = sorted(odd, key=lambda one: -one.distance)[:NAMED]
        yield f"{what.capitalize()} {word}: {'; '.join(_skew(o, objective) for o in largest)}."
    if ratio > UNEVEN:
        total = _totals(counts)
        rare, common = min(total, key=total.__getitem__), max(total, key=total.__getitem__)
        yield (
            f"Classes are uneven: {common} has {total[common]:,.0f} rows, {rare} "
            f"{total[rare]:,.0f}; read balanced accuracy and macro F1 beside accuracy."
        )


def _skew(one: LabelShift, objective: str) -> str:
    if objective == "regression":
        return (
            f"{one.most} is {one.here:.3g} on average at {one.site}, {one.all_sites:.3g} over sites"
        )
    return f"{one.here:.0%} of {one.site} are {one.most}, {one.all_sites:.0%} on average over sites"


def _totals(counts: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    classes = next(iter(counts.values()))
    return {name: sum(own[name] for own in counts.values()) for name in classes}


def _ratio(counts: Mapping[str, Mapping[str, float]]) -> float:
    total = [v for v in _totals(counts).values() if v]
    return max(total) / min(total) if total else 1.0


def on_clients(shifts: Sequence[LabelShift], sites: Sequence[LabelShift]) -> Iterator[str]:
    """Whether the clients of a scenario are further apart in their labels than its sites."""
    if not shifts:
        return
    far = max(shifts, key=lambda one: one.distance)
    if far.distance > max(LABELS, 2 * far.by_chance, *(one.distance + 0.05 for one in sites)):
        yield (
            f"The {len(shifts)} clients' labels are further apart than the sites': {far.here:.0%} "
            f"of {far.site} are {far.most}, {far.all_sites:.0%} on average."
        )


def on_crossing(crossed: Mapping[Pair, Told], objective: str) -> Iterator[str]:
    """What a model of one site is worth at another."""
    home = {a: told for (a, b), told in crossed.items() if a == b}
    away = {pair: told for pair, told in crossed.items() if pair[0] != pair[1] and pair[1] in home}
    if not home or not away:
        return
    unit = "% of the variance" if objective == "regression" else "%"
    here, there = (float(np.mean([t.value for t in some.values()])) for some in (home, away))
    if all(t.value - (t.error if isfinite(t.error) else 0) <= t.chance + 1 for t in home.values()):
        yield (
            f"A linear model does not learn the task at any site ({here:.0f} {unit} at home), so "
            "what it loses elsewhere says nothing."
        )
        return
    error = max((t.error for t in crossed.values() if isfinite(t.error)), default=nan)
    sure = f"; each number ± {error:.0f} at most" if isfinite(error) else ""
    little = "" if here - there >= LOST else ", which is little"
    yield (
        f"A linear model of one site reaches {here:.0f} {unit} at home and {there:.0f} {unit} at "
        f"another site: {here - there:.0f} points less{little}{sure}."
    )
    worst = min(away, key=lambda pair: away[pair].value - home[pair[1]].value)
    if here - there >= LOST:
        yield (
            f"Most is lost from {worst[0]} to {worst[1]}: {away[worst].value:.0f} {unit}, where "
            f"{worst[1]}'s own reaches {home[worst[1]].value:.0f}."
        )


def on_copies(duplicates: Mapping[str, int], near: Mapping[str, int], looked: int) -> Iterator[str]:
    """Copies across splits and sites."""
    across = {k: v for k, v in duplicates.items() if k.startswith("across")}
    for word, found in (("equal", across), ("almost equal", near)):
        for where, count in found.items():
            yield f"{count} sample{'' if count == 1 else 's'} with {word} inputs {where}."
    if not across and not near:
        yield f"No copies across splits or sites were found among {looked:,} samples."


def leaks(duplicates: Mapping[str, int], near: Mapping[str, int], tests: int) -> Iterator[str]:
    """What makes scores look better than they are: copies of test samples elsewhere."""
    places = sorted({w for w in (*duplicates, *near) if w.startswith("across") and "/test" in w})
    total = sum(duplicates.get(place, 0) + near.get(place, 0) for place in places)
    if total > LEAKS * tests:
        yield (
            f"{total} test samples have a copy among training or validation samples "
            f"({listed(places, 3)}): scores will look better than they are."
        )


def on_missing(missing: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Columns that lack many cells, or lack them at some sites only."""
    columns = dict.fromkeys(name for own in missing.values() for name in own)
    for name in list(columns):
        shares = {site: own[name] for site, own in missing.items() if name in own}
        most, least = max(shares, key=shares.__getitem__), min(shares.values())
        if shares[most] >= MISSING or shares[most] - least >= GAP:
            elsewhere = f", {least:.0%} where it is least" if len(shares) > 1 else ""
            yield f"Column {name} lacks {shares[most]:.0%} of its cells at {most}{elsewhere}."


def on_spelling(classes: Sequence[str]) -> Iterator[str]:
    """Classes that are the same but for capitals, spaces and signs."""
    groups: dict[str, list[str]] = {}
    for name in classes:
        groups.setdefault("".join(filter(str.isalnum, name.casefold())), []).append(name)
    for plain, names in groups.items():
        if plain and len(names) > 1:
            yield f"Classes {listed(names)} may be one; if they are, write them alike."
