"""Turns the label columns of all sites into classes, numbers or several yes-or-no labels.

``federated`` calls it. Labels that only differ in spelling are one label; labels that a site writes
in its own way are never guessed, beyond yes, true and positive for 1: they are an error that shows
who says what.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedshift.base.errors import DataError
from fedshift.data.sources.spelling import one_spelling, taken_as_the_same
from fedshift.data.sources.tables.reading import Array, as_texts
from fedshift.data.sources.tables.schema import TableSchema

TRUTH = {
    "0": "0", "no": "0", "n": "0", "false": "0", "f": "0", "negative": "0", "neg": "0",
    "1": "1", "yes": "1", "y": "1", "true": "1", "t": "1", "positive": "1", "pos": "1",
}  # fmt: skip
FEW = 10  # values that are classes even if they have fractions
SEVERAL = 20  # whole numbers that are classes wherever they start
Columns = Mapping[str, Array]


@dataclass(frozen=True)
class Targets:
    """What is learnt, by site."""

    objective: str
    classes: tuple[str, ...]  # names of classes, of the number, or of the labels
    y: Mapping[str, Array]  # (N,) names of classes, (N,) float32, or (N, K) float32
    notes: tuple[str, ...] = ()


def find_targets(sites: Mapping[str, Columns], schema: TableSchema) -> Targets:
    """The targets of rows that all have their labels."""
    columns = label_columns(schema, next(iter(sites.values())))
    objective = schema.objective
    if len(columns) > 1:
        if objective not in ("auto", "multi-label"):
            raise DataError(f"{objective} takes one label column, not {', '.join(columns)}")
        return _several(sites, columns)
    if objective == "multi-label":
        return _several(sites, columns)
    label = columns[0]
    found = {name: site[label] for name, site in sites.items()}
    notes: tuple[str, ...] = ()
    if objective == "auto" and _is_regression(found):
        objective = "regression"
        notes = (
            f"column {label!r} holds many different numbers: regression; "
            "objective=classification makes them classes",
        )
    if objective == "regression":
        return _number(label, found, notes)
    return _classes({name: as_texts(column) for name, column in found.items()}, schema)


def label_columns(schema: TableSchema, columns: Columns) -> tuple[str, ...]:
    """The label columns; a name that contains commas is one column if the table has it."""
    joined = ",".join(schema.label)
    return (joined,) if joined in columns else schema.label


def _is_regression(sites: Mapping[str, Array]) -> bool:
    """Whether a label is a number to predict, judged by how many values it has and which."""
    if any(column.dtype == object for column in sites.values()):
        return False
    values = np.unique(np.concatenate(list(sites.values())))
    whole = bool((values == np.round(values)).all())
    counted = whole and values[0] in (0, 1) and values[-1] - values[0] + 1 == len(values)
    return len(values) > FEW and not (whole and (len(values) <= SEVERAL or counted))


def _number(label: str, sites: Mapping[str, Array], notes: tuple[str, ...]) -> Targets:
    for name, column in sites.items():
        if column.dtype == object:
            text = next(v for v in column if not _is_number(v))
            raise DataError(
                f"site {name!r}: column {label!r} holds {text!r}; regression needs numbers; mend "
                "it, or choose another objective", "objective=classification",
            )  # fmt: skip
    y = {name: column.astype(np.float32) for name, column in sites.items()}
    return Targets("regression", (label,), y, notes)


def _is_number(value: str) -> bool:
    return re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", value.lower()) is not None


def _classes(sites: Mapping[str, Array], schema: TableSchema) -> Targets:
    renamed = {name: _renamed(labels, schema.rename_label) for name, labels in sites.items()}
    merged, notes = _agreed(renamed)
    classes = in_order({v for labels in merged.values() for v in labels.tolist()})
    if len(classes) < 2:
        raise DataError(
            f"the label is always {classes[0]!r}; two classes are needed; name another column",
            "label=COLUMN",
        )
    return Targets("classification", classes, merged, notes)


def agreed_classes(sites: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """The classes of all sites, from the labels that occur at each, in one spelling."""
    merged, _ = _agreed({n: np.array(sorted(v), dtype=np.str_) for n, v in sites.items()})
    classes = in_order({v for labels in merged.values() for v in labels.tolist()})
    if len(classes) < 2:
        raise DataError(
            f"the label is always {classes[0]!r}; two classes are needed; name another column",
            "label=COLUMN",
        )
    return classes


def _renamed(labels: Array, names: Mapping[str, str]) -> Array:
    return np.array([names.get(str(v), str(v)) for v in labels.tolist()], dtype=np.str_)


def _agreed(sites: Mapping[str, Array]) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The sites' labels in one spelling; raise if some sites share none with the others."""
    sets = {name: set(map(str, labels.tolist())) for name, labels in sites.items()}
    labels = set().union(*sets.values())
    alike, notes = one_spelling(sets.values())
    if _connected({alike.get(v, v) for v in found} for found in sets.values()):
        return {n: _renamed(v, alike) for n, v in sites.items()}, notes
    for names in (_folded(labels), _truth(labels)):
        if _connected({names.get(v, v) for v in found} for found in sets.values()):
            return {n: _renamed(v, names) for n, v in sites.items()}, (taken_as_the_same(names),)
    if all(re.fullmatch(r"-?\d+", label) for label in labels):
        return dict(sites), ()  # numbered classes: a site may well have one that no other has
    each = "; ".join(f"{n} has {', '.join(sorted(found)[:5])}" for n, found in sets.items())
    raise DataError(f"sites share no label: {each}; say which are the same", "rename_label=OLD=NEW")


def _connected(sets: Iterable[set[str]]) -> bool:
    """Whether one can go from any site to any other over labels that both have."""
    reached, *lonely = sets
    while near := [found for found in lonely if found & reached]:
        reached = reached.union(*near)
        lonely = [found for found in lonely if found not in near]
    return not lonely


def _folded(labels: set[str]) -> dict[str, str]:
    return {label: label.casefold() for label in labels}


def _truth(labels: set[str]) -> dict[str, str]:
    """Yes and no as 1 and 0; empty if any label is neither."""
    known = {label: TRUTH.get(label.casefold(), "") for label in labels}
    return known if all(known.values()) else {}


def _several(sites: Mapping[str, Columns], columns: Sequence[str]) -> Targets:
    y = {}
    for name, site in sites.items():
        parts = [_truths(name, column, as_texts(site[column])) for column in columns]
        y[name] = np.stack(parts, axis=1)
    return Targets("multi-label", tuple(columns), y)


def known_labels(labels: Array, classes: Sequence[str], names: Mapping[str, str]) -> Array:
    """The number of each row's class, (N,) int64; a label may be spelt differently.

    >>> known_labels(np.array(["Yes", "no"], dtype=object), ("0", "1"), {}).tolist()
    [1, 0]
    """
    order = {name: i for i, name in enumerate(classes)}
    at = {}
    for label in set(labels):
        name = names.get(str(label), str(label))
        ways = (name, name.casefold(), TRUTH.get(name.casefold(), ""))
        at[label] = next((order[way] for way in ways if way in order), -1)
        if at[label] < 0:
            raise DataError(
                f"the label {label!r} is not one of {', '.join(classes)}; mend it, or add it to "
                "rename_label in the preparation's schema"
            )
    return np.array([at[label] for label in labels], dtype=np.int64)


def _truths(site: str, name: str, labels: Array) -> Array:
    known = [TRUTH.get(str(v).casefold()) for v in labels]
    if None in known:
        odd = labels[known.index(None)]
        raise DataError(
            f"site {site!r}: label column {name!r} holds {odd!r}; several labels need 0 or 1 each"
        )
    return np.array([float(v or 0) for v in known], dtype=np.float32)


def in_order(labels: set[str]) -> tuple[str, ...]:
    """Distinct class names, sorted; by value if all of them are whole numbers.

    >>> in_order({"10", "9"})
    ('9', '10')
    """
    number = all(re.fullmatch(r"-?\d+", name) for name in labels)
    return tuple(sorted(labels, key=int if number else str))
