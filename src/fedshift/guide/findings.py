"""The sentences of a diagnosis, in the order in which people need them.

``guide.doctor`` calls it last. What a sentence says of sites, labels and copies is in
``guide.words``; here are those on the data as a whole, on the machine, and on what nobody can see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fedshift.base.times import duration
from fedshift.guide import words
from fedshift.guide.diagnosis import Diagnosis, SiteRows
from fedshift.guide.shift import FEWEST
from fedshift.report.tables import size

LEFT_OUT = 0.05  # share of rows that could not be used, above which it is a problem
CANNOT_SEE = (
    "whether labels are right, or mean the same at every site",
    "what only a network sees: the quick models are linear",
    "inputs that sites will have later, and sites that are not among these",
)
OF_KIND = {
    "images": (
        "shifts in shapes and fine texture; cropped or mirrored copies",
        "whether many small differences are one cause (a scanner, a season) or several",
    ),
    "a table": ("how columns go together: each is compared by its mean alone",),
    "vectors": ("how columns go together: each is compared by its mean alone",),
    "texts": ("what texts say: words are counted, or encoded, and not read",),
}


def with_sentences(found: Diagnosis, samples: int) -> Diagnosis:
    """The diagnosis with its sentences."""
    return replace(
        found,
        findings=tuple(_findings(found, samples)),
        problems=tuple(_problems(found)),
        cannot_see=(*CANNOT_SEE, *OF_KIND[found.kind]),
    )


def _findings(found: Diagnosis, samples: int) -> Iterator[str]:
    own, labels = found.shift, found.labels
    yield _head(found, samples)
    yield from words.on_looks(
        list(own.looked_at), own.alike, own.differences, own.told_apart, own.unit
    )
    yield from words.on_labels(labels.shifts, labels.counts, found.objective)
    yield from words.on_clients(labels.clients, labels.shifts)
    yield from words.on_crossing(own.crossed, found.objective)
    yield from words.on_copies(found.copies.equal, found.copies.near, found.copies.looked_at)
    yield from words.on_missing(own.missing)
    yield _machine(found)
    if found.cost is not None:
        yield _cost(found)


def _head(found: Diagnosis, samples: int) -> str:
    total = sum(rows.rows for rows in found.sites.values())
    shape = found.shape
    things = {
        "images": f"images of {shape[-1]}x{shape[-2]} pixels" if len(shape) == 3 else "images",
        "texts": "rows with texts",
        "a table": f"rows of {shape[0]} columns",
        "vectors": f"vectors of {shape[0]} numbers",
    }
    target = {
        "classification": f"{len(found.classes)} classes",
        "multi-label": f"{len(found.classes)} labels",
        "regression": f"a number to predict ({found.classes[0]})",
    }
    count, looked = len(found.sites), found.shift.looked_at
    sites = f"{count} site{'' if count == 1 else 's'}"
    some = f" of the {len(looked)} largest sites" if len(looked) < count else " of each site"
    part = f"; looked at up to {samples:,} training and {samples:,} test samples{some}"
    whole = sum(looked.values()) >= total
    return (
        f"{found.name}: {sites}, {total:,} {things[found.kind]}, {target[found.objective]}"
        f"{'; looked at all of them' if whole else part}."
    )


def _machine(found: Diagnosis) -> str:
    machine = found.machine
    memory = ""
    if machine.memory is not None:
        free = f"{size(machine.free)} free of " if machine.free is not None else ""
        memory = f", {free}{size(machine.memory)} of memory"
    graphics = ", ".join(machine.devices[1:]) or "no graphics processor"
    absent = [name for name, there in machine.extras.items() if not there]
    extras = f"extras not installed: {', '.join(absent)}" if absent else "all extras are installed"
    cores = f"{machine.cores} core{'' if machine.cores == 1 else 's'}"
    return f"This machine: {cores}{memory}, {graphics}; {extras}."


def _cost(found: Diagnosis) -> str:
    cost = found.cost
    assert cost is not None
    how = "after a warm-up" if cost.measured else "judged from one batch, so roughly"
    return (
        f"A run of {cost.method} ({cost.backbone}, {cost.rounds} rounds, {cost.clients} clients a "
        f"round) takes about {duration(cost.seconds)} with one process ({how}), "
        f"{size(cost.memory)} of memory, and moves {size(cost.up)} up and {size(cost.down)} down."
    )


def _problems(found: Diagnosis) -> Iterator[str]:
    total = sum(rows.rows for rows in found.sites.values())
    tests = sum(rows.test for rows in found.sites.values())
    copies = found.copies
    part = min(1.0, copies.looked_at / max(1, total))
    yield from words.leaks(copies.equal, copies.near, round(part * tests))
    if len(found.sites) == 1:
        yield "There is one site, so nothing can be compared; name the column that holds the site."
    for name, rows in found.sites.items():
        yield from _few_rows(name, rows)
    yield from _absent_classes(found)
    yield from words.on_spelling(found.classes)
    if len(found.left_out) > LEFT_OUT * total:
        yield f"{len(found.left_out)} rows or files were left out; the first: {found.left_out[0]}."
    yield from _refusals(found)


def _few_rows(name: str, rows: SiteRows) -> Iterator[str]:
    train = rows.train + rows.val
    if train == 0:
        yield f"{name} has no training rows; it can only be a site that is not trained on."
    elif rows.test == 0:
        yield f"{name} has no test rows; nothing can be scored there."
    elif train < FEWEST:
        yield f"{name} has {train} training rows only; its numbers say little."


def _refusals(found: Diagnosis) -> Iterator[str]:
    if found.refused:
        yield f"A run would stop before its first round: {found.refused}."
    cost, free = found.cost, found.machine.free
    if cost is not None and free is not None and cost.memory > free:
        yield f"A run takes {size(cost.memory)} of memory, and {size(free)} are free here."


def _absent_classes(found: Diagnosis) -> Iterator[str]:
    if found.objective != "classification":
        return
    for name, own in found.labels.counts.items():
        absent = [kind for kind, count in own.items() if not count]
        if absent:
            yield f"{name} has nothing of class {words.listed(absent)}."
