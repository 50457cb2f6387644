"""Registers a dataset for every card of the catalogue, and for the data that you added yourself.

A scenario names a dataset by ``data`` and sets its options by ``data_options``; which options there
are is read from the signatures of the inner ``variant`` functions below, so these signatures are
the documentation of the options. Importing this module registers names and must never read data.
"""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, wraps
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter

from fedshift.base.errors import ConfigError, DataError, UnknownNameError
from fedshift.base.files import home, write_bytes, write_json
from fedshift.base.logs import warn_once
from fedshift.base.settings import convert
from fedshift.data.catalogue import CATALOGUE, DatasetCard, Variant
from fedshift.data.library.prepare import (
    Report,
    load,
    prepare,
    prepared,
    read_about,
    read_preparation,
    store_of,
)
from fedshift.data.registry import DATASETS, register_dataset
from fedshift.data.samples import Domain
from fedshift.data.sources.limits import Limits
from fedshift.data.sources.tables.schema import schema_of

Domains = Mapping[str, Domain]
Variants = Callable[..., Variant]
NAME = r"[A-Za-z0-9][\w-]*"  # what a dataset may be called
FORMS = ("minilm384", "bow5000", "text")


def images(card: DatasetCard) -> Variants:
    """Options of a dataset of images: their size."""

    def variant(size: int | None = card.size) -> Variant:
        return Variant(whole("size", size))

    return variant


def chosen_classes(card: DatasetCard) -> Variants:
    """Options of a dataset of images: their size, and the classes to keep, separated by commas."""

    def variant(size: int | None = None, only: str = ",".join(card.class_names)) -> Variant:
        return Variant(whole("size", size), only=comma_separated(only))

    return variant


def rotated(card: DatasetCard) -> Variants:
    """Options of one domain rotated to several angles, in degrees, separated by commas.

    ``disjoint`` shows each training image at one angle only; otherwise all angles show all of them.
    """
    csac = card.name == "rotated-mnist"

    def variant(
        size: int | None = None,
        angles: str = ",".join(map(str, card.angles)),
        per_class: int | None = 100 if csac else None,
        disjoint: bool = not csac,
    ) -> Variant:
        try:
            degrees = tuple(int(angle) for angle in comma_separated(angles))
        except ValueError:
            raise ConfigError(f"angles is {angles!r}; write degrees such as 0,15,30") from None
        if len(set(degrees)) < len(degrees) or not degrees:
            raise ConfigError(f"angles is {angles!r}; name at least one, each once")
        count = whole("per_class", per_class)
        return Variant(
            whole("size", size), angles=degrees, per_class=count, disjoint=bool(disjoint)
        )

    return variant


def reviews(_card: DatasetCard) -> Variants:
    """Options of the reviews: published vectors by their form, or texts and your own encoder."""

    def variant(form: str = FORMS[0], encoder: str = "") -> Variant:
        if form not in FORMS:
            raise UnknownNameError.of("form of amazon-review", form, FORMS)
        if (form == "text") != bool(encoder):
            raise ConfigError(
                f"form is {form!r} and encoder is {encoder!r}; an encoder, a Python file that "
                "defines encode(texts), belongs to the form text"
            )
        if encoder and not Path(encoder).is_file():
            raise ConfigError(f"encoder {encoder} does not exist; give a Python file")
        return Variant(form=form, encoder=encoder)

    return variant


def by_site(_card: DatasetCard) -> Variants:
    """Options of a dataset with one domain per site; ``sites`` keeps only the largest."""

    def variant(size: int | None = None, sites: int | None = None) -> Variant:
        return Variant(whole("size", size), sites=whole("sites", sites))

    return variant


def whole(name: str, value: float | str | None) -> int | None:
    """A whole number from a value that a file or a command line gives, possibly as text."""
    if value is None:
        return None
    try:
        if float(value) == int(float(value)):
            return int(float(value))
    except (TypeError, ValueError):
        pass
    raise ConfigError(f"{name} is {value!r}; it takes a whole number")


def comma_separated(value: str | Sequence[Any]) -> tuple[str, ...]:
    """``"a,b"``, or a sequence, as a tuple of texts without spaces around them."""
    parts = value.split(",") if isinstance(value, str) else [str(v) for v in value]
    return tuple(part.strip() for part in parts if part.strip())


def variants(card: DatasetCard) -> Variants:
    """The function whose parameters are a dataset's options."""
    if card.base:
        return rotated(card)
    if card.name == "amazon-review":
        return reviews(card)
    if card.name == "domainnet-10":
        return chosen_classes(card)
    return images(card) if card.domains else by_site(card)


def variant_of(card: DatasetCard, options: Mapping[str, Any]) -> Variant:
    """The variant for these options; values may be text, as on a command line."""
    known = inspect.signature(variants(card)).parameters
    for key in options:
        if key not in known:
            raise UnknownNameError.of(f"option of dataset {card.name!r}", key, known)
    return variants(card)(**{k: convert(k, v, known[k].default) for k, v in options.items()})


def register(card: DatasetCard) -> None:
    """Register a card as a dataset, with the options of its variants."""

    @wraps(variants(card))  # for the signature, which lists the options
    def build(**options: Any) -> Domains:
        return load(card, variant_of(card, options))

    build.__doc__ = f"{card.summary[:1].upper()}{card.summary[1:]}."
    register_dataset(card.name)(build)


@cache
def _cards() -> TypeAdapter[DatasetCard]:
    return TypeAdapter(DatasetCard)


def own_cards() -> dict[str, DatasetCard]:
    """Cards of the data that you added, from FEDSHIFT_HOME/own."""
    cards = {}
    for path in sorted((home() / "own").glob("*.json")):
        try:
            card = _cards().validate_json(path.read_bytes())
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            warn_once(f"{path} is not a card ({reason}); add the data again")
            continue
        cards[card.name] = card
    return cards


def own_datasets() -> list[str]:
    """Register the data that you added; call it before each lookup, since some may be new."""
    for card in own_cards().values():
        register(card)
    return list(own_cards())


def card_of(name: str) -> DatasetCard:
    """The card of a dataset, ours or one that you added."""
    cards = dict(CATALOGUE) | own_cards()
    if name not in cards:
        raise UnknownNameError.of("dataset", name, cards)
    return cards[name]


def preparation_of(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """How the raw data of a dataset became inputs; empty where their shape says it all.

    The option ``encoder`` is of no variant: it makes features of what is stored.
    """
    card = (dict(CATALOGUE) | own_cards()).get(name)
    own = {key: value for key, value in options.items() if key != "encoder"}
    folder = store_of(card, variant_of(card, own)) if card else None
    return read_preparation(folder) if folder and (folder / "dataset.json").exists() else {}


def add(  # noqa: PLR0913  one keyword per choice
    name: str,
    data: Path | Any,
    *,
    size: int | None = None,
    columns: tuple[str, str] = ("label", "domain"),
    table: Mapping[str, Any] | None = None,
    images: Path | None = None,
    limits: Limits | None = None,
) -> tuple[DatasetCard, Report]:
    """Prepare your own images or tables and register them as the dataset ``name`` for good.

    ``data`` is a folder or file, a DataFrame of pandas, or one DataFrame per site by its name, of
    which a copy is kept. ``table`` holds the fields of :class:`TableSchema` that you set;
    ``images`` is the folder that the paths in a csv start from, if it is not the csv's own.
    """
    if not re.fullmatch(NAME, name) or name == "own":
        raise ConfigError(f"{name!r} cannot be a dataset's name; use letters, digits and hyphens")
    taken = DATASETS.entries().get(name)
    if name in CATALOGUE or (taken and taken.build.__module__ != __name__):
        raise ConfigError(f"a dataset is called {name!r} already; choose another name")
    path = data if isinstance(data, Path) else keep_frames(name, data)
    if not path.exists():
        raise DataError(f"{path} does not exist; give a folder of images, or a csv, parquet or npz")
    told = schema_of(dict(table or {})).model_dump(mode="json", exclude_unset=True)
    card = DatasetCard(
        name,
        f"your own, from {path}",
        (),
        0,
        origin=str(path.resolve()),
        columns=columns,
        table=told,
        images=str(images.resolve()) if images else "",
    )
    report = prepare(card, Variant(size), limits=limits)
    about = read_about(store_of(card, Variant(size)))
    shape = "x".join(map(str, about["shape"]))
    full = asdict(card) | {
        "classes": len(about["classes"]),
        "class_names": about["classes"],
        "size": size,
        "form": f"{shape} {'images' if len(about['shape']) == 3 else 'vectors'}",
        "domains": about["domains"],
        "licence": "yours",
    }
    write_json(home() / "own" / f"{name}.json", full)
    own_datasets()
    return card_of(name), report


def remove(name: str, size: int | None = None) -> list[Path]:
    """Delete what is prepared of a dataset, and what makes it one if you added it yourself.

    With ``size`` only that variant goes. The source that it was made from is never touched. Returns
    what was deleted.
    """
    card = card_of(name)
    if not re.fullmatch(NAME, name):  # a card that was edited by hand must not name other folders
        raise ConfigError(f"{name!r} cannot be a dataset's name; delete its card in FEDSHIFT_HOME")
    folder = home() / name
    if size is not None:
        gone = [store_of(card, Variant(size))]
        if not gone[0].exists():
            have = ", ".join(prepared(card)) or "nothing"
            raise DataError(f"dataset {name!r} is not prepared at size {size}; there is {have}")
    else:
        gone = [path for path in (folder, home() / "own" / f"{name}.json") if path.exists()]
        if not gone:
            raise DataError(f"dataset {name!r} is not prepared; there is nothing to remove")
    for path in gone:
        delete(path)
    if size is None and name not in CATALOGUE:
        DATASETS.forget(name)
    return gone


def delete(path: Path) -> None:
    """Delete a file, a folder, or a link without what it points to."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"cannot delete {path}: {error}; check the permissions") from error


def keep_frames(name: str, frames: Any) -> Path:
    """Write DataFrames as csv files under FEDSHIFT_HOME/own; returns the file or folder."""
    root = home() / "own" / f"{name}.tables"
    if hasattr(frames, "to_csv"):
        frames = {"": frames}
    if not isinstance(frames, Mapping) or not all(hasattr(f, "to_csv") for f in frames.values()):
        raise DataError(
            f"{type(frames).__name__} is no data; give a path, a DataFrame, or DataFrames by site"
        )
    if root.exists():
        shutil.rmtree(root)
    for site, frame in frames.items():
        text = (frame.assign(domain=site) if site else frame).to_csv(index=False)
        write_bytes(root / f"{quote(site, safe=' ') or name}.csv", text.encode())
    return root / f"{name}.csv" if "" in frames else root


for _card in CATALOGUE.values():
    register(_card)
