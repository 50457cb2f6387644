"""``fedshift doctor``: what is in the data of several sites, how they differ, what a run takes.

The command line calls :func:`doctor`, which Python users have as ``fedshift.doctor``. It looks at a
part of the samples, in bounded time and memory, says how many, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from fedshift.base import seeds
from fedshift.base.errors import ConfigError, FedshiftError
from fedshift.data.library.inspection import find_duplicates
from fedshift.data.library.loaded import adopted
from fedshift.data.library.near import find_near
from fedshift.data.library.prepare import rows_of_classes
from fedshift.data.samples import Domain
from fedshift.engine.federation import holdings
from fedshift.guide import shift
from fedshift.guide.diagnosis import Copies, Diagnosis, Labels, Shift, SiteRows
from fedshift.guide.features import Sight, holds_texts, look_at
from fedshift.guide.findings import with_sentences
from fedshift.guide.machine import Cost, cost_of, this_machine
from fedshift.guide.opening import OpenedData, open_data
from fedshift.guide.words import DEVIATIONS, alike_groups

SITES = 12  # that are compared with each other, the largest ones
COPIES = 10_000  # samples in all among which copies are looked for
BYTES = 512e6  # of their inputs, at most


def doctor(
    data: str | Path,
    *,
    samples: int = 1000,
    size: int | None = None,
    label: str = "",
    site: str = "",
    cost: bool = True,
) -> Diagnosis:
    """Look at data: what is there, how sites differ, copies, and what a run takes here.

    Args:
        data: a dataset's or a scenario's name, a run file, or a path to a folder of images, a csv,
            parquet, xlsx or npz file, as ``fedshift data add`` takes it.
        samples: training samples, and test samples, of each site that are looked at, at most.
        size: pixels of a side of the images; by default as stored.
        label: the column of the label, of a table at a path.
        site: the column of the site, of a table at a path.
        cost: whether to time what a run takes here.

    Examples:
        >>> import fedshift
        >>> found = fedshift.doctor("digits", samples=50, cost=False)
        >>> found.objective, len(found.sites), found.shift.alike
        ('classification', 5, ())
    """
    if samples < shift.FEWEST:
        raise ConfigError(f"samples is {samples}; it takes at least {shift.FEWEST}")
    opened = open_data(data, size=size, label=label, site=site)
    first = next(iter(opened.domains.values()))
    price, refused = _cost(opened) if cost else (None, "")
    return with_sentences(
        Diagnosis(
            opened.name,
            kind_of(opened),
            opened.kind,
            first.objective,
            first.shape,
            first.classes,
            {name: _rows(opened, name) for name in opened.domains},
            _labels(opened),
            _shift(opened, samples),
            _copies(opened),
            tuple(opened.report["left_out"]),
            tuple(opened.report["notes"]),
            this_machine(),
            price,
            refused,
        ),
        samples,
    )


def kind_of(opened: OpenedData) -> str:
    """What the inputs are, in a word."""
    if next(iter(opened.domains.values())).x.dim() == 4:
        return "images"
    if holds_texts(opened.preparation):
        return "texts"
    return "a table" if opened.preparation else "vectors"


def _rows(opened: OpenedData, name: str) -> SiteRows:
    splits = [int((opened.domains[name].split == i).sum()) for i in range(3)]
    return SiteRows(opened.rows[name], *splits)


def _shift(opened: OpenedData, samples: int) -> Shift:
    some = largest(opened.domains, SITES)
    sight = look_at(some, samples, opened.preparation)
    first, pairs = next(iter(some.values())), shift.pairs_apart(sight)
    alike = alike_groups(list(some), pairs)
    return Shift(
        {name: len(own.y) for name, own in sight.domains.items()},
        sight.unit,
        shift.statistics(sight),
        tuple(shift.differences(sight, DEVIATIONS, alike[0] if alike else ())),
        shift.told_apart(sight),
        pairs,
        alike,
        shift.crossed(sight, first.objective, len(first.classes)),
        missing_shares(sight),
    )


def largest(domains: Mapping[str, Domain], most: int) -> dict[str, Domain]:
    """The domains with most rows, in their order."""
    chosen = sorted(domains, key=lambda name: -len(domains[name].y))[:most]
    return {name: domain for name, domain in domains.items() if name in chosen}


def missing_shares(sight: Sight) -> dict[str, dict[str, float]]:
    """Share of missing cells by site and column, where a column marks them."""
    marks = [(i, n.removesuffix(" missing")) for i, n in enumerate(sight.names) if " missing" in n]
    return {
        site: {name: float(own.named[:, i].mean()) for i, name in marks}
        for site, own in sight.domains.items()
        if marks
    }


def _labels(opened: OpenedData) -> Labels:
    counts = {
        name: dict(zip(domain.classes, map(float, rows_of_classes(domain)), strict=True))
        for name, domain in opened.domains.items()
    }
    return Labels(counts, tuple(shift.label_shifts(opened.domains)), tuple(_clients(opened)))


def _clients(opened: OpenedData) -> list[shift.LabelShift]:
    """How far the clients' labels are apart, where a scenario deals a domain to several."""
    if opened.kind == "path" or opened.scenario.objective != "classification":
        return []
    held = holdings(opened.scenario, 0)
    counts = {c: own.sum(axis=0) for c, own in zip(held.clients, held.counts, strict=True)}
    if len(counts) <= len(opened.scenario.domains):
        return []
    sizes = {client: max(1, int(own.sum())) for client, own in counts.items()}
    shares = {client: own / sizes[client] for client, own in counts.items()}
    return shift.share_shifts(shares, sizes, held.classes, several=False)


def _copies(opened: OpenedData) -> Copies:
    """Copies among all samples, or among as many of each site if they are too many."""
    first, total = (
        next(iter(opened.domains.values())),
        sum(len(d.y) for d in opened.domains.values()),
    )
    weight = first.x[0].numel() * first.x.element_size()
    part = min(1.0, COPIES / total, BYTES / (weight * total))
    rows = {name: _some(domain, part) for name, domain in opened.domains.items()}
    held = {name: _only(domain, rows[name]) for name, domain in opened.domains.items()}
    ids = {name: [opened.ids[name][i] for i in own.tolist()] for name, own in rows.items()}
    near = find_near(held, ids)
    looked = sum(map(len, rows.values()))
    pairs = tuple((a, b) for a, b in near.pairs)
    return Copies(looked, find_duplicates(held), near.counts, pairs, near.skipped)


def _some(domain: Domain, part: float) -> torch.Tensor:
    count = len(domain.y)
    if part >= 1:
        return torch.arange(count)
    chosen = seeds.numpy("doctor", "copies", domain.name).permutation(count)[: int(part * count)]
    return torch.from_numpy(chosen).sort().values


def _only(domain: Domain, rows: torch.Tensor) -> Domain:
    """A domain with some of its rows; all of them are not copied."""
    if len(rows) == len(domain.y):
        return domain
    return replace(domain, x=domain.x[rows], y=domain.y[rows], split=domain.split[rows])


def _cost(opened: OpenedData) -> tuple[Cost | None, str]:
    """What a run takes here, or why it would stop before its first round."""
    scale = sum(opened.rows.values()) / max(1, sum(len(d.y) for d in opened.domains.values()))
    try:
        if opened.kind != "path":
            return cost_of(opened.method, opened.scenario), ""
        with adopted(opened.scenario.data, opened.domains):
            return cost_of(opened.method, opened.scenario, scale), ""
    except FedshiftError as error:
        return None, str(error)
