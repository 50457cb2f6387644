"""Opens what somebody calls their data: a dataset, a scenario, a run file, or a path.

``guide.doctor`` looks at what this returns. A path is read as ``fedshift data add`` would read it,
but nothing is registered and nothing is written; of images in folders at most a fixed number per
site is decoded, so that a first look at a large folder takes a minute, not an hour.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.base import seeds
from fedshift.base.errors import ConfigError, DataError, UnknownNameError
from fedshift.core.registry import SCENARIOS
from fedshift.core.scenario import Scenario
from fedshift.data.catalogue import CATALOGUE, DatasetCard, Variant
from fedshift.data.library.datasets import own_cards, variant_of
from fedshift.data.library.inspection import read_columns
from fedshift.data.library.loaded import datasets
from fedshift.data.library.prepare import (
    Report,
    common_classes,
    folder_name,
    read_report,
    require_room_for,
    store_of,
    within,
)
from fedshift.data.samples import Domain
from fedshift.data.sources.discover import TABLES, Found, find
from fedshift.data.sources.images import ImageSource
from fedshift.data.sources.limits import Limits
from fedshift.data.sources.pixels import peek
from fedshift.data.sources.source import Source
from fedshift.data.store import read_ids
from fedshift.engine.federation import stored
from fedshift.experiment.run import method_of, scenario_of
from fedshift.experiment.scenario import find_scenario, usual_scenario
from fedshift.runs.run_file import NAME as RUN_FILE
from fedshift.runs.run_file import read_run_file

DECODED = 2000  # images of a site that are decoded, where a path is given
PEEKED = 50  # images of a site whose size is read from their first bytes
SIDE = 64  # pixels of a side, where images differ in size or are large, and no size is given
MOST_SIDE = 128  # pixels up to which images of one size stay as they are
LARGEST = 1.0  # gigabytes of raw tables and arrays; larger ones are prepared first


@dataclass(frozen=True)
class OpenedData:
    """Data that were opened, and what is known of how they became what they are."""

    name: str
    kind: str  # dataset, scenario, run file or path
    scenario: Scenario
    method: str
    domains: Mapping[str, Domain]  # the unseen one last
    ids: Mapping[str, Sequence[str]]
    rows: Mapping[str, int]  # of each domain in all; more than in ``domains`` if not all were read
    report: Report = field(default_factory=lambda: {"left_out": [], "notes": []})
    columns: Mapping[str, Any] = field(default_factory=dict)  # of tables: roles and objective
    preparation: Mapping[str, Any] = field(default_factory=dict)  # of tables: preparation.json


def open_data(
    data: str | Path, *, size: int | None = None, label: str = "", site: str = ""
) -> OpenedData:
    """Data by name or path; ``label`` and ``site`` are columns of a table that lies at a path."""
    name, path = str(data), Path(data)
    known = {*SCENARIOS.entries(), *datasets()}
    if isinstance(data, str) and name in known:
        _refuse_columns(name, label, site)
        changes: dict[str, Any] = {"data_options": {"size": size}} if size else {}
        return _opened(name, _kind(name), find_scenario(name, **changes), "fedavg")
    if not path.exists():
        if (
            path.suffix
            or name.startswith(("/", ".", "~"))
            or (path.parent.is_dir() and len(path.parts) > 1)
        ):
            raise DataError(f"{path} does not exist; check the path")
        raise UnknownNameError.of("dataset, scenario or path", name, known)
    if path.suffix == ".toml" or (path / RUN_FILE).is_file():
        file = read_run_file(path)
        return _opened(name, "run file", scenario_of(file), method_of(file, name))
    return _from_path(path, size, label, site)


def _kind(name: str) -> str:
    return "scenario" if name in SCENARIOS.entries() else "dataset"


def _refuse_columns(name: str, label: str, site: str) -> None:
    for option, given in (("label", label), ("site", site)):
        if given:
            raise ConfigError(
                f"{option}={given} is for a table at a path, and {name!r} is prepared already; "
                f"leave {option} out"
            )


def _opened(name: str, kind: str, scenario: Scenario, method: str) -> OpenedData:
    """A scenario's data, and what the store knows of them if they were prepared."""
    domains = stored(scenario)
    rows = {one: len(domain.y) for one, domain in domains.items()}
    plain = OpenedData(name, kind, scenario, method, domains, _numbered(rows), rows)
    card = (dict(CATALOGUE) | own_cards()).get(scenario.data)
    options = {k: v for k, v in scenario.data_options.items() if k != "encoder"}
    folder = store_of(card, variant_of(card, options)) if card else None
    if folder is None or not (folder / "dataset.json").exists():
        return plain
    table = folder / "preparation.json"
    return replace(
        plain,
        ids={one: read_ids(folder / folder_name(one)) for one in domains},
        report=read_report(folder),
        columns=read_columns(folder),
        preparation=json.loads(table.read_text()) if table.exists() else {},
    )


def _numbered(rows: Mapping[str, int]) -> dict[str, list[str]]:
    return {name: [str(i) for i in range(count)] for name, count in rows.items()}


@dataclass(frozen=True)
class AtPath:
    """What lies at a path, before any of it is decoded."""

    found: Found
    sources: Sequence[Source]
    side: int | None  # pixels that images have to be brought to; None: they may stay as they are
    note: str  # why


def list_path(path: Path, label: str = "", site: str = "") -> AtPath:
    """The sources at a path, as ``data add`` finds them."""
    _refuse_large_files(path)
    card = DatasetCard(
        path.stem or "data",
        "",
        (),
        0,
        origin=str(path.resolve()),
        columns=(label or "label", site or "domain"),
        table={k: v for k, v in (("label", label), ("domain", site)) if v},
    )
    found = find(card, Variant())
    sources = within(found.sources, Limits())
    return AtPath(found, sources, *_common_side(sources))


def _from_path(path: Path, size: int | None, label: str, site: str) -> OpenedData:
    """What ``data add`` would read at a path, or the first part of it."""
    listing = list_path(path, label, site)
    found, side = listing.found, size or listing.side
    classes, left_out = common_classes(DatasetCard(path.stem, "", (), 0), listing.sources, ())
    few = [_fewer(source) for source in listing.sources]
    require_room_for(few, classes, side)
    reads = {source.name: source.read(classes, side) for source in few}
    domains = {name: read.domain for name, read in reads.items()}
    _require_rows(domains, path)
    table = dict(found.files.get("preparation.json", {}))
    columns = dict(found.files.get("table.json", {}))
    if columns:
        columns |= {key: table[key] for key in ("statistics", "leaves", "numbers")}
    notes = [*([listing.note] if side == listing.side and listing.note else []), *found.notes]
    return OpenedData(
        str(path),
        "path",
        usual_scenario(str(path), domains),
        "fedavg",
        domains,
        {name: read.ids for name, read in reads.items()},
        {s.name: _rows(s, f, domains) for s, f in zip(listing.sources, few, strict=True)},
        {
            "left_out": [*left_out, *(line for read in reads.values() for line in read.left_out)],
            "notes": [*notes, *(line for read in reads.values() for line in read.notes)],
        },
        columns,
        table,
    )


def _refuse_large_files(path: Path) -> None:
    files = [path] if path.is_file() else list(path.glob("*"))
    whole = (*TABLES, ".npz", ".mat")  # formats that are read as a whole
    total = sum(f.stat().st_size for f in files if f.suffix.lower() in whole and f.is_file())
    if total > LARGEST * 1e9:
        raise DataError(
            f"{path} has {total / 1e9:.1f} GB of tables or arrays, more than the {LARGEST:g} GB "
            f"that are read for a look; prepare them with `fedshift data add NAME {path}` and "
            "give NAME"
        )


def _common_side(sources: Sequence[Source]) -> tuple[int | None, str]:
    """Pixels of a side to bring images to, and why; none if all have one size and are small."""
    sides: set[tuple[int, int]] = set()
    for source in sources:
        if isinstance(source, ImageSource):
            items = _drawn(source, PEEKED)
            sides |= {s for s in (peek(item.data) for item in items) if s is not None}
    if not sides or (len(sides) == 1 and max(max(sides)) <= MOST_SIDE):
        return None, ""
    low, high = min(sides), max(sides)
    which = f"{low[1]}x{low[0]} to {high[1]}x{high[0]}" if low != high else f"{low[1]}x{low[0]}"
    why = "differ in size" if low != high else "are large"
    return SIDE, f"images {why} ({which} pixels, width x height); {SIDE}x{SIDE} is taken instead"


def _drawn(source: ImageSource, most: int) -> Sequence[Any]:
    """At most so many items of a source, drawn at random and always the same."""
    if len(source.items) <= most:
        return source.items
    order = seeds.numpy("doctor", "items", source.name).permutation(len(source.items))[:most]
    return [source.items[i] for i in np.sort(order)]


def _fewer(source: Source) -> Source:
    if isinstance(source, ImageSource):
        return replace(source, items=tuple(_drawn(source, DECODED)))
    return source


def _rows(whole: Source, read: Source, domains: Mapping[str, Domain]) -> int:
    """Rows that a domain has in all, judged by its list of files where not all were decoded."""
    known = len(domains[whole.name].y)
    if isinstance(whole, ImageSource) and isinstance(read, ImageSource):
        return known + len(whole.items) - len(read.items)
    return known


def _require_rows(domains: Mapping[str, Domain], path: Path) -> None:
    for name, domain in domains.items():
        if len(domain.y) == 0:
            raise DataError(f"site {name!r} of {path} has no row that can be used; give it some")
    shapes = {domain.shape: name for name, domain in domains.items()}
    if len(shapes) > 1:
        (one, a), (other, b) = list(shapes.items())[:2]
        raise DataError(
            f"site {a!r} has inputs of {one}, {b!r} of {other}; set size, or make the columns agree"
        )
