"""Prepares datasets into the store: FEDSHIFT_HOME/<dataset>/<size or form>/<domain>.

The registered datasets call :func:`load`, and ``fedshift data prepare`` calls :func:`prepare`. A
variant is complete or absent: all its domains, ``dataset.json`` and ``report.json`` are written to
a temporary folder, which takes the final name only when the last of them is done. So a crash, a
full disk or a bad source never leaves half a dataset, an existing variant stays usable until the
moment it is replaced, and two processes may prepare the same variant at once. A source is never
changed, and a row that is left out is always reported.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from fedshift.base import seeds
from fedshift.base.errors import DataError
from fedshift.base.files import home
from fedshift.base.logs import warn_once
from fedshift.data.catalogue import DatasetCard, Variant
from fedshift.data.library.versions import old_version_kept
from fedshift.data.samples import Domain
from fedshift.data.sources.arrays import ArraySource
from fedshift.data.sources.discover import find, how_to_get, source_folders, ways_to_get
from fedshift.data.sources.images import ImageSource, rotate_all
from fedshift.data.sources.limits import Limits, refuse_above
from fedshift.data.sources.source import Read, Source, assemble
from fedshift.data.store import ARRAYS, SMALL, beside, read_domain, write_domain

Report = dict[str, list[str]]  # "left_out": rows and classes not used; "notes": other remarks


def store_of(card: DatasetCard, variant: Variant) -> Path:
    """Folder of a variant of a dataset in the store."""
    return home() / card.name / variant.key


def prepared(card: DatasetCard) -> list[str]:
    """Names of the variants of a dataset that are in the store."""
    return sorted(p.parent.name for p in (home() / card.name).glob("[!.]*/dataset.json"))


def load(card: DatasetCard, variant: Variant | None = None) -> dict[str, Domain]:
    """The domains of a dataset, memory-mapped; it is prepared first if that is not done yet."""
    variant = variant or Variant()
    folder = store_of(card, variant)
    if not (folder / "dataset.json").exists():
        have = prepared(card)
        if have and not source_folders(card, variant):
            raise DataError(
                f"dataset {card.name!r} is prepared as {', '.join(have)}, not as {variant.key}; "
                f"set its size or form to that, or: {how_to_get(card, variant)}",
                *ways_to_get(card, variant),
            )
        report = prepare(card, variant, replace=False)  # another process may finish first
        if report["left_out"]:
            count = len(report["left_out"])
            warn_once(
                f"{card.name}: {count} left out, the first: {report['left_out'][0]}; "
                f"`fedshift data inspect {card.name}` lists them"
            )
    return read_store(folder)


def read_store(folder: Path, *, verify: bool = False) -> dict[str, Domain]:
    """The domains of a prepared variant; checksums are compared if it is small or ``verify``."""
    about = read_about(folder)
    try:
        full = verify or about["bytes"] < SMALL
        return {
            name: read_domain(folder / folder_name(name), verify=full) for name in about["domains"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder} is damaged ({error}); delete it and prepare it again") from None


def read_about(folder: Path) -> dict[str, Any]:
    """The record of a prepared variant: its domains, classes, options, shape and bytes."""
    try:
        about: dict[str, Any] = dict(json.loads((folder / "dataset.json").read_text()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{folder} is damaged ({error}); delete it and prepare it again") from None
    return about


def read_preparation(folder: Path) -> dict[str, Any]:
    """How raw data became the inputs of a prepared variant, as far as it is not in its shape.

    ``table``: the content of preparation.json, see ``sources.tables``; ``spans``: by domain, the
    values that became 0 and 255 in images of more than 8 bits.
    """
    out: dict[str, Any] = {}
    if (folder / "preparation.json").exists():
        out["table"] = json.loads((folder / "preparation.json").read_text())
    if spans := read_about(folder).get("spans"):
        out["spans"] = spans
    return out


def read_report(folder: Path) -> Report:
    """The report of a preparation: what was left out and why, and notes."""
    path = folder / "report.json"
    if not path.exists():
        return {"left_out": [], "notes": []}
    try:
        found = json.loads(path.read_text())
        return {key: [str(line) for line in found[key]] for key in ("left_out", "notes")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({error}); prepare the data again") from None


def prepare(
    card: DatasetCard,
    variant: Variant | None = None,
    *,
    source: str | Path | None = None,
    replace: bool = True,
    limits: Limits | None = None,
) -> Report:
    """Read the source and write its domains to the store; an old variant is replaced at the end.

    In order: find the source of each domain, agree on the classes, then read and write one domain
    after another. Returns the report, which is also kept in report.json. What would take more than
    the ``limits`` is refused before anything is decoded. If the content differs from what was
    there, the old one is kept (``library.versions``) and a note says so.
    """
    variant = variant or Variant()
    found = find(card, variant, source)
    sources = within(_largest(found.sources, variant.sites), limits or Limits())
    classes, dropped = common_classes(card, sources, variant.only)
    require_room_for(sources, classes, variant.size)
    report: Report = {"left_out": dropped, "notes": found.notes}
    about: dict[str, Any] = {"domains": [], "bytes": 0, "recipe": asdict(variant)}
    changed: list[str] = []
    try:
        folder = store_of(card, variant)
        with old_version_kept(folder, changed), beside(folder, replace=replace) as part:
            for read in _reads(card, variant, sources, classes):
                _keep(part, read, about, report)
            (part / "dataset.json").write_text(json.dumps(about, indent=2))
            (part / "report.json").write_text(json.dumps(report, indent=2))
            for name, kept in found.files.items():
                (part / name).write_text(json.dumps(kept, indent=2))
    except OSError as error:
        raise DataError(
            f"cannot prepare {card.name!r}: {error}; check the disk, permissions and FEDSHIFT_HOME"
        ) from error
    return report | {"notes": [*changed, *report["notes"]]}


def _keep(part: Path, read: Read, about: dict[str, Any], report: Report) -> None:
    """Write one domain, and add it to ``about`` and ``report`` in place."""
    domain = read.domain
    if len(domain.y) == 0:
        reason = f"; {read.left_out[0]}" if read.left_out else ""
        raise DataError(f"domain {domain.name!r} has no row that can be used{reason}")
    shape = about.setdefault("shape", list(domain.shape))
    if list(domain.shape) != shape:
        first = about["domains"][0]
        raise DataError(
            f"domain {domain.name!r} has inputs of {tuple(domain.shape)}, {first!r} of "
            f"{tuple(shape)}; set size, or make the columns agree"
        )
    write_domain(part / folder_name(domain.name), domain, read.ids)
    about["domains"].append(domain.name)
    about["classes"] = list(domain.classes)
    about["objective"] = domain.objective
    about["bytes"] += sum(getattr(domain, name).nbytes for name in ARRAYS)
    if read.span is not None:
        about.setdefault("spans", {})[domain.name] = read.span
    report["left_out"] += read.left_out
    report["notes"] += read.notes
    counts = rows_of_classes(domain)
    if missing := [domain.classes[i] for i in np.flatnonzero(counts == 0)]:
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        report["notes"].append(
            f"domain {domain.name!r} has nothing of class {', '.join(missing[:10])}{more}; "
            "add some, or leave the class out"
        )


def rows_of_classes(domain: Domain) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many rows have each class or label, (K,)."""
    if domain.objective == "regression":
        return np.array([len(domain.y)])
    if domain.objective == "multi-label":
        return domain.y.sum(dim=0).long().numpy()
    return np.bincount(domain.y.numpy(), minlength=len(domain.classes))


def folder_name(domain: str) -> str:
    """A domain's name, escaped so that it can name a folder."""
    name = quote(domain, safe=" ")
    return name.replace(".", "%2E") if name.startswith(".") else name


def within(sources: Sequence[Source], limits: Limits) -> list[Source]:
    """The sources, each with the limits that its reader must keep."""
    return [
        dataclasses.replace(s, limits=limits) if isinstance(s, ImageSource | ArraySource) else s
        for s in sources
    ]


def require_room_for(sources: Sequence[Source], classes: Sequence[str], size: int | None) -> None:
    """Raise if the encoded images of all domains together would take more than the limit."""
    images = [s for s in sources if isinstance(s, ImageSource)]
    if images:
        count = sum(len(s.items) for s in images)
        sides = f" at size {size}" if size else ""
        total = sum(s.gigabytes(classes, size) for s in images)
        refuse_above(total, f"{count} images{sides}", images[0].limits)


def _largest(sources: list[Source], count: int | None) -> list[Source]:
    if count is None:
        return sources
    sizes = {s.name: len(s.items) if isinstance(s, ImageSource) else 0 for s in sources}
    chosen = sorted(sources, key=lambda s: (-sizes[s.name], s.name))[:count]
    return sorted(chosen, key=lambda s: s.name)


def common_classes(
    card: DatasetCard, sources: Sequence[Source], only: Sequence[str]
) -> tuple[tuple[str, ...], list[str]]:
    """The classes that label all domains, and a line for each class of the source not among them.

    They are ``only`` if given, else the card's; a card without names takes the classes that occur
    in more than one domain.
    """
    seen: dict[str, list[str]] = {}
    for source in sources:
        for name in source.classes:
            seen.setdefault(name, []).append(source.name)
    shared = tuple(n for n in _ordered(seen) if len(seen[n]) > 1 or len(sources) == 1)
    classes = tuple(card.class_of(n) for n in only) or card.class_names or shared
    unknown = [name for name in classes if name not in seen]
    if unknown and (only or len(unknown) == len(classes)):
        raise DataError(
            f"no domain has the class {', '.join(unknown)}; there are {', '.join(sorted(seen))}"
        )
    if not classes:
        each = "; ".join(f"{s.name} has {', '.join(s.classes)}" for s in sources)
        raise DataError(f"no class occurs in two domains: {each}; name class folders alike")
    if card.part or only:
        return classes, []  # chosen on purpose: nothing to report
    if len(classes) == 1 and all(isinstance(s, ImageSource) for s in sources):
        each = "; ".join(f"{s.name} has {', '.join(s.classes)}" for s in sources)
        raise DataError(
            f"{classes[0]!r} is the only class in common, and two are needed: {each}; name class "
            "folders alike"
        )
    reason = "no other domain has this class" if classes == shared else f"not of {card.name}"
    return classes, [
        f"{', '.join(seen[name])}/{name}: {reason}; rename the folder, or add it to the others"
        for name in _ordered(seen)
        if name not in classes
    ]


def _ordered(names: dict[str, list[str]]) -> list[str]:
    number = all(name.isdecimal() for name in names)
    return sorted(names, key=int if number else str)


def _reads(
    card: DatasetCard, variant: Variant, sources: Sequence[Source], classes: Sequence[str]
) -> Iterator[Read]:
    """Read one domain at a time, so that no more than one is in memory."""
    for source in sources:
        if card.base:
            yield from turned(card, variant, source.read(classes, variant.size))
        else:
            yield source.read(classes, variant.size)


def turned(card: DatasetCard, variant: Variant, read: Read) -> Iterator[Read]:
    """The base domain at each angle, each with its own part of the training rows if ``disjoint``.

    Validation and test rows are the same at every angle.
    """
    base = read.domain
    rows = np.arange(len(base.y))
    x, y, split = base.x.numpy(), base.y.numpy(), base.split.numpy()
    if variant.per_class:
        rows = _some(base, variant.per_class)
        split = split.copy()
        split[rows] = assemble(base.name, x[rows], y[rows], None, base.classes).split.numpy()
    train = rows[split[rows] == 0]
    train = seeds.numpy("rotated", card.name).permutation(train)
    sign = -1 if card.name == "rotated-mnist" else 1  # CSAC rotates clockwise
    for k, angle in enumerate(variant.angles):
        mine = rows
        if variant.disjoint:
            share = train[k :: len(variant.angles)]
            mine = np.sort(np.concatenate([share, rows[split[rows] != 0]]))
        pixels = rotate_all(x[mine], sign * angle)
        domain = assemble(f"deg{angle}", pixels, y[mine], split[mine], base.classes)
        left_out = read.left_out if k == 0 else ()
        yield Read(domain, tuple(read.ids[i] for i in mine), left_out)


def _some(base: Domain, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows of ``count`` random images per class, always the same for the same data."""
    chosen = []
    for label, name in enumerate(base.classes):
        rows = np.flatnonzero(base.y.numpy() == label)
        if len(rows) < count:
            raise DataError(
                f"class {name!r} of {base.name!r} has {len(rows)} images; per_class={count} needs "
                "more; lower it"
            )
        chosen.append(seeds.numpy("per class", base.name, label).permutation(rows)[:count])
    return np.sort(np.concatenate(chosen))
