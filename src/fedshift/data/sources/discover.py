"""Finds the sources of a dataset: which file or subfolder holds which of the card's domains.

``library.prepare`` calls :func:`find`, and ``fedshift data`` asks :func:`is_found`. It lists and
opens sources, but never decodes an image, and never downloads unless the user says ``hub``.

How sources are found:

1. Where to look: at what the user names (a folder, a file, ``hub`` or ``hub:ID``); else at the path
   that own data were added from; else in FEDSHIFT_SOURCES, in the folders that are called like the
   dataset or like one of the card's ``folders``, with hyphens or underscores.
2. What to take: if the card lists domains, for each of them the first subfolder, ``.npz`` or
   ``.mat`` file whose name matches, spelling and aliases aside. If none matches, csv or parquet
   files there, whose domain column names the domains, or which list images. If the card lists
   none (own data, or one domain per site): a benchmark's layout, tables, a tree of splits or
   classes; else every entry is a domain. Nothing outside the folder is read.
3. Names of domains and classes are translated to the card's, and a missing domain is an error that
   says what was found and what is expected.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.base.errors import DataError
from fedshift.data.catalogue import DatasetCard, Hub, Variant
from fedshift.data.sources import layouts, trees, vectors
from fedshift.data.sources.arrays import ArraySource, Rows, mat_source, npz_source
from fedshift.data.sources.hub import by_card, load_hub, parquet_files
from fedshift.data.sources.images import ImageSource, tree_source
from fedshift.data.sources.listed import listed_sources, path_column
from fedshift.data.sources.pixels import SUFFIXES
from fedshift.data.sources.source import Source
from fedshift.data.sources.spelling import one_spelling
from fedshift.data.sources.tables import reading
from fedshift.data.sources.tables.federated import table_sources
from fedshift.data.sources.tables.schema import TableSchema, schema_of
from fedshift.data.sources.walk import refusal, visible

TABLES = reading.SUFFIXES


@dataclass
class Found:
    """Sources of a dataset, one per domain, and remarks for the report."""

    sources: list[Source] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: dict[str, Any] = field(default_factory=dict)  # JSON to keep beside the data, by name


def source_folders(card: DatasetCard, variant: Variant) -> list[Path]:
    """Existing folders that may hold the dataset: under FEDSHIFT_SOURCES, or its own origin."""
    if card.origin:
        return [Path(card.origin)] if Path(card.origin).exists() else []
    root = os.environ.get("FEDSHIFT_SOURCES")
    return under(Path(root), card, variant) if root else []


def under(root: Path, card: DatasetCard, variant: Variant) -> list[Path]:
    """Folders in ``root`` named after the dataset, or after another folder of its card."""
    names = [card.name, *card.folders]
    if variant.form:
        names = [f"{card.name}/{variant.form}", f"{card.name.split('-')[0]}-{variant.form}"]
    spellings = dict.fromkeys(s for name in names for s in (name, name.replace("-", "_")))
    return [path for path in (root / name for name in spellings) if path.is_dir()]


def find(card: DatasetCard, variant: Variant, source: str | Path | None = None) -> Found:
    """The sources of a dataset's domains; ``source``: a folder, a file, ``hub`` or ``hub:ID``."""
    if source is not None and str(source).split(":")[0] == "hub":
        return _checked(card, _from_hub(card, str(source).partition(":")[2]), str(source))
    folders = source_folders(card, variant)
    if source is not None:
        folders = [Path(source), *under(Path(source), card, variant)]
    if not folders:
        raise DataError(how_to_get(card, variant), *ways_to_get(card, variant))
    if not folders[0].exists():
        raise DataError(f"{folders[0]} does not exist; check the path")
    if not folders[0].is_file() and not folders[0].is_dir():  # a pipe would block for ever
        raise DataError(f"{folders[0]} is neither a file nor a folder; check the path")
    found = _in_folders(card, variant, folders)
    if source is None and not found.sources and not card.origin:
        raise DataError(how_to_get(card, variant), *ways_to_get(card, variant))
    return _checked(card, found, str(folders[0]))


def _in_folders(card: DatasetCard, variant: Variant, folders: Sequence[Path]) -> Found:
    if variant.form == "text":
        texts = vectors.text_sources(folders[0], variant.encoder, card.class_names, card.class_at)
        return Found([_renamed(card, text) for text in texts])
    if folders[0].is_file():
        return _from_file(card, folders[0])
    if card.origin or not card.needed:
        return _all_in(card, folders[0])
    return _by_name(card, folders)


def is_found(card: DatasetCard, variant: Variant) -> bool:
    """Whether every domain seems to have a source, judged by names, without opening any."""
    folders = source_folders(card, variant)
    if card.origin or not card.needed or any(_tables(f) for f in _own(card, folders)):
        return bool(folders)
    entries = [p for folder in folders for p in visible(folder)]
    return all(any(_is(card, p, name, folders) for p in entries) for name in card.needed)


def _own(card: DatasetCard, folders: Sequence[Path]) -> list[Path]:
    """Folders of this dataset alone, where a csv or parquet file must belong to it."""
    return [f for f in folders if "." not in card.folders or f.name == card.name]


def how_to_get(card: DatasetCard, variant: Variant) -> str:
    """One line for the user whose dataset is neither prepared nor found: what to do."""
    root = os.environ.get("FEDSHIFT_SOURCES")
    looked = f"nothing in FEDSHIFT_SOURCES={root}" if root else "FEDSHIFT_SOURCES is not set"
    sized = f" at size {variant.size}" if variant.size else ""
    ways = []
    if card.hub:
        ids = ", ".join(hub.id for hub in card.hub)
        ways.append(f"from the hub ({ids}; pip install 'fedshift[hub]')")
    names = ", ".join(card.needed) or "one per site"
    layout = "DIR/<domain>.npz" if card.form == "vectors" else "DIR/<domain>/<class>/*.jpg"
    ways.append(f"from a folder DIR with {layout} of the domains {names}")
    text = (
        f"dataset {card.name!r} is not prepared and has no source: {looked}; prepare it with "
        f"`fedshift data prepare {card.name}`{sized}, " + ", or ".join(ways)
    )
    return text + (f"; {card.where}" if card.where else "")


def ways_to_get(card: DatasetCard, variant: Variant) -> tuple[str, ...]:
    """The options of `fedshift data prepare` that :func:`how_to_get` recommends."""
    size = (f"size={variant.size}",) if variant.size else ()
    return (*size, "from=hub or DIR" if card.hub else "from=DIR")


def _from_hub(card: DatasetCard, id_: str) -> Found:
    hubs = card.hub or (Hub(""),)
    if id_:
        hubs = (replace(hubs[0], id=id_),)
    elif not card.hub:
        raise DataError(
            f"no hub id is known for {card.name!r}; name one, or a folder", "from=hub:ID or DIR"
        )
    return Found([_renamed(card, s) for s in by_card((hub.id, hub) for hub in hubs)])


def _by_name(card: DatasetCard, folders: Sequence[Path]) -> Found:
    """The card's domains, each from the first folder that has it, else all from tables."""
    found = Found()
    for name in card.needed:
        entries = [p for f in folders for p in visible(f) if _is(card, p, name, folders)]
        if not entries:
            continue
        found.sources.append(read_entry(entries[0], name, card))
        if "regen" in entries[0].stem:
            found.notes.append(
                f"{name} is {entries[0].name}: regenerated from fonts, not the {name.upper()} of "
                "the papers"
            )
    tables = [] if found.sources else [f for f in _own(card, folders) if _tables(f)]
    return _from_tables(card, tables[0], _tables(tables[0])) if tables else found


def _is(card: DatasetCard, path: Path, name: str, folders: Sequence[Path]) -> bool:
    known = path.is_dir() or path.suffix.lower() in (".npz", ".mat")
    return known and path not in folders and card.domain_of(_stem(path)) == name


def _stem(path: Path) -> str:
    stem = path.name if path.is_dir() else path.stem
    return stem.split("_SURF")[0] if path.suffix == ".mat" else stem


def _all_in(card: DatasetCard, path: Path) -> Found:
    """Every domain of a folder or file, where the card does not list the domains."""
    if path.is_file():
        return _from_file(card, path)
    if layout := layouts.recognised(path):
        return Found([_renamed(card, source) for source in layout[0]], [layout[1]])
    if files := _tables(path):
        return _from_tables(card, path, files)
    return _from_tree(card, path) or _every_entry(card, path)


def _from_tree(card: DatasetCard, path: Path) -> Found | None:
    """The domains of a tree whose first level is not the domains; None for any other."""
    if only := trees.one_domain(path, card.class_of):
        kinds = ", ".join(only.classes[:10])
        return Found([only], [f"{path} was read as one domain with the classes {kinds}"])
    if not trees.split_first(path):
        return None
    found = trees.domains_below_splits(path, card.class_of)
    names = ", ".join(source.name for source in found[:10])
    return Found(list(found), [f"{path} was read as splits, then the domains {names}"])


def _every_entry(card: DatasetCard, path: Path) -> Found:
    """Every folder, npz and .mat file as a domain; what leads out of the folder is left out."""
    found, root = Found(), path.resolve()
    for entry in visible(path):
        if reason := refusal(entry, root):
            found.notes.append(f"{entry}: {reason}")
        elif entry.is_dir() or entry.suffix.lower() in (".npz", ".mat"):
            source = read_entry(entry, _stem(entry), card, root=root)
            if isinstance(source, ImageSource) and not source.items:
                found.notes.append(f"{entry}: has no class folders with images; left out")
                continue
            found.sources.append(source)
        else:
            found.notes.append(f"{entry}: is neither a domain's folder nor its npz; left out")
    return found


def _from_file(card: DatasetCard, path: Path) -> Found:
    if path.suffix.lower() in TABLES:
        return _from_tables(card, path, [path])
    if path.suffix.lower() == ".npz":
        return Found([_renamed(card, s) for s in vectors.npz_sources(path)])
    raise DataError(
        f"{path} is a {path.suffix or 'file'}; expected a folder, csv, parquet, xlsx or npz"
    )


def _tables(folder: Path) -> list[Path]:
    root = folder.resolve()
    files = [p for p in visible(folder) if p.suffix.lower() in TABLES and p.is_file()]
    files = [p for p in files if refusal(p, root) is None]
    inner = folder / "data"  # where a download from the hub has its parquet files
    return files or (parquet_files(inner) if inner.is_dir() else [])


def holds_images(card: DatasetCard, file: Path) -> bool:
    """Whether a table lists image files, or holds images itself."""
    parquet = file.suffix.lower() == ".parquet"
    return path_column(file) is not None or (parquet and _has_images(file, card))


def _from_tables(card: DatasetCard, folder: Path, files: Sequence[Path]) -> Found:
    """Domains from tables: images if a file lists or holds them, else vectors."""
    if any(path_column(p) for p in files):
        label, domain = card.columns
        root = Path(card.images) if card.images else None
        listed = listed_sources(files, label=label, domain=domain, images=root)
        return Found([_renamed(card, source) for source in listed])
    images = [p for p in files if p.suffix.lower() == ".parquet" and _has_images(p, card)]
    if not images:
        tables = table_sources(files, schema_for(card))
        sources = [_renamed(card, s) if isinstance(s, ArraySource) else s for s in tables.sources]
        return Found(list(sources), tables.notes, tables.files)
    hub = card.hub[0] if card.hub else Hub("", label=card.columns[0], domain=card.columns[1])
    return Found([_renamed(card, s) for s in by_card([(folder, hub)])])


def schema_for(card: DatasetCard) -> TableSchema:
    """What is known of a card's tables; published vectors are taken as they are."""
    label, domain = card.columns
    told = {"label": label, "domain": domain} | dict(card.table)
    return schema_of(told if card.origin else told | {"plain": True})


def _has_images(path: Path, card: DatasetCard) -> bool:
    names = reading.arrow("parquet").read_schema(path).names
    return "image" in names or any(hub.image in names for hub in card.hub)


def _renamed(card: DatasetCard, source: ImageSource | ArraySource) -> ImageSource | ArraySource:
    """A source with its domain and classes renamed to the card's names."""
    names = {old: card.class_at(old) for old in source.classes}
    return _with_classes(replace(source, name=card.domain_of(source.name)), names)


def _with_classes(
    source: ImageSource | ArraySource, names: Mapping[str, str]
) -> ImageSource | ArraySource:
    """A source whose classes have other names."""
    if isinstance(source, ImageSource):
        items = tuple(replace(i, label=names.get(i.label, i.label)) for i in source.items)
        return replace(source, items=items)
    classes = dict.fromkeys(names.get(old, old) for old in source.classes)
    return replace(source, classes=tuple(classes), load=partial(_relabelled, source, names))


def _relabelled(source: ArraySource, names: Mapping[str, str]) -> Rows:
    rows = source.load()
    labels = [names.get(str(label), str(label)) for label in rows.labels.tolist()]
    return replace(rows, labels=np.array(labels))


def read_entry(
    path: Path, name: str, card: DatasetCard, root: Path | None = None
) -> ArraySource | ImageSource:
    """One domain from an npz, a .mat, a folder of .mat or parquet files, or an image tree."""
    if path.suffix.lower() == ".npz" and path.is_file():
        return npz_source(path, name, card.class_at)
    mats = [path] if path.is_file() else sorted(p for p in path.glob("*.mat") if p.is_file())
    if mats := [p for p in mats if "extra" not in p.stem]:  # SVHN's half million easy ones
        return mat_source(mats, name, card.class_names, card.class_of)
    if parquet_files(path):
        hub = next((h for h in card.hub if h.name == name), Hub("", name))
        (only,) = load_hub(path, image=hub.image, label=hub.label, domain=None, name=name)
        return _renamed(card, only)
    return tree_source(path, name, card.class_of, root=root)


def _checked(card: DatasetCard, found: Found, where: str) -> Found:
    """Raise if no domain was found or one is missing; drop domains that the card does not list."""
    have = [source.name for source in found.sources]
    missing = [name for name in card.needed if name not in have]
    if not have:
        hint = f"{found.notes[0]}; " if found.notes else ""
        wanted = f" (domains {', '.join(missing)})" if missing else ""
        raise DataError(
            f"{where} has no domain{wanted}; {hint}expected <domain>/<class>/*"
            f"({', '.join(SUFFIXES)}), <domain>.npz, or csv or parquet files"
        )
    if missing:
        raise DataError(
            f"the source of {card.name!r} has no domain {', '.join(missing)}; it has "
            f"{', '.join(have)}; add it as <domain>/<class>/*.jpg, <domain>.npz or <domain>/*.mat"
        )
    found.sources = [s for s in found.sources if not card.needed or s.name in card.needed]
    if not card.class_names:  # somebody's own
        names, notes = one_spelling(source.classes for source in found.sources)
        found.sources = [
            _with_classes(s, names) if isinstance(s, ImageSource | ArraySource) and names else s
            for s in found.sources
        ]
        found.notes += notes
    return found
