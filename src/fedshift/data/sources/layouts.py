"""Folders as benchmarks publish them: WILDS, FLamby's Fed-ISIC2019 and LEAF's FEMNIST.

``discover`` asks :func:`recognised` before it reads a folder in its own way. A layout is known by
the columns of its table, never by the folder's name. Of the sites that a benchmark holds out (WILDS
calls them val and test, against id_val and id_test) one domain each is made, ``unseen-val`` and
``unseen-test``, whose rows are all test rows, so that nothing of them can be trained on.

| benchmark | known by | domain | label | split |
|---|---|---|---|---|
| Camelyon17 | patient, node, x_coord, y_coord, tumor, center | center | tumor | 0 train, 1 test |
| iWildCam | filename, y, location_remapped, split | location | y | train, id_val, id_test |
| CivilComments | comment_text, toxicity, split | identity | toxicity >= 0.5 | train, val, test |
| Amazon | reviewText, overall, reviewerID | reviewer | stars | splits/user.csv |
| Fed-ISIC2019 | image, target, center, fold | center | target | train, test |
| FEMNIST | users, user_data (JSON) | writer | y | folders train, test |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedshift.base.errors import DataError
from fedshift.data.sources.arrays import ArraySource, Rows
from fedshift.data.sources.images import SPLITS, ImageSource
from fedshift.data.sources.listed import Listing, header_of, rows_of
from fedshift.data.sources.walk import refusal, visible

TABLES = ("metadata.csv", "all_data_with_identities.csv", "reviews.csv", "train_test_split",
          "train_test_split.csv", "train_test_folds.csv")  # fmt: skip
HELD_OUT = {"val": "unseen-val", "test": "unseen-test"}
INSIDE = {"train": 0, "id_val": 1, "id_test": 2}
AMAZON = {"0": "train", "1": "val", "2": "id_val", "3": "test", "4": "id_test"}
IDENTITIES = (
    "male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white",
)  # fmt: skip
WORDS = 1024  # columns of hashed words
CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # LEAF's order
SIDE = 28


@dataclass(frozen=True)
class Text:
    """One text of a benchmark."""

    domain: str
    label: str
    split: int
    text: str
    id: str


Sources = Sequence[ImageSource | ArraySource]


def recognised(folder: Path) -> tuple[Sources, str] | None:
    """The domains of a folder in a known layout and what it was taken for, or None."""
    for name in TABLES:
        table = folder / name
        if not table.is_file() or refusal(table, folder.resolve()):
            continue
        columns = set(header_of(table))
        for title, needed, read in LAYOUTS:
            if needed <= columns:
                return read(folder, table), f"{folder} was read as {title}"
    files = _leaf_files(folder)
    return (_leaf(files), f"{folder} was read as LEAF's FEMNIST by writer") if files else None


def _camelyon(folder: Path, table: Path) -> list[ImageSource]:
    """Patches by centre; the table's 1 (validation inside the centre) is the centre's test set."""
    listing = Listing(folder)
    for where, row in rows_of(table):
        slide = f"patient_{row['patient']}_node_{row['node']}"
        path = f"patches/{slide}/patch_{slide}_x_{row['x_coord']}_y_{row['y_coord']}.png"
        split = {"0": 0, "1": 2}.get(row.get("split", "0"))
        site = f"center{row['center']}" if row["center"] else ""
        listing.add(where, path, label=_tumor(row["tumor"]), domain=site, split=split)
    return listing.sources()


def _tumor(value: str) -> str:
    return {"0": "normal", "1": "tumor"}.get(value, value)


def _iwildcam(folder: Path, table: Path) -> list[ImageSource]:
    names = _categories(folder)
    listing = Listing(folder)
    for where, row in rows_of(table):
        site, split = inside_or_held_out(f"location{row['location_remapped']}", row["split"])
        label = names.get(row["y"], row["y"])
        listing.add(where, f"train/{row['filename']}", label=label, domain=site, split=split)
    return listing.sources()


def _categories(folder: Path) -> dict[str, str]:
    """Names of the classes, if the benchmark's categories.csv is there."""
    file = folder / "categories.csv"
    if not file.is_file() or refusal(file, folder.resolve()):
        return {}
    return {row["y"]: row["name"] for _, row in rows_of(file) if {"y", "name"} <= set(row)}


def inside_or_held_out(site: str, split: str) -> tuple[str, int | None]:
    """Domain and split code of a row of WILDS.

    >>> inside_or_held_out("a", "id_val"), inside_or_held_out("b", "test")
    (('a', 1), ('unseen-test', 2))
    """
    if split in HELD_OUT:
        return HELD_OUT[split], 2
    return site, INSIDE.get(split)


def _isic(folder: Path, table: Path) -> list[ImageSource]:
    """Images by centre; they lie in the folder itself or in one below it, as jpg."""
    at = {p.stem: p for p in sorted([*folder.glob("*.jpg"), *folder.glob("*/*.jpg")])}
    listing = Listing(folder)
    for where, row in rows_of(table):
        found = at.get(row["image"])
        path = str(found.relative_to(folder)) if found else f"{row['image']}.jpg"
        site = f"center{row['center']}" if row["center"] else ""
        split = SPLITS.get(row["fold"])
        listing.add(where, path, label=row["target"], domain=site, split=split)
    return listing.sources()


def _civilcomments(_folder: Path, table: Path) -> list[ArraySource]:
    return text_sources(_comments(table))


def _comments(table: Path) -> Iterator[Text]:
    for where, row in rows_of(table):
        scores = {name: _number(row.get(name, "")) for name in IDENTITIES}
        most = max(IDENTITIES, key=lambda name: scores[name])
        site = most if scores[most] >= 0.5 else "none"
        label = "toxic" if _number(row["toxicity"]) >= 0.5 else "civil"
        label = label if row["toxicity"] else ""
        yield Text(site, label, SPLITS.get(row["split"], -1), row["comment_text"], where)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _amazon(folder: Path, table: Path) -> list[ArraySource]:
    return text_sources(_reviews(folder, table))


def _reviews(folder: Path, table: Path) -> Iterator[Text]:
    marks = folder / "splits" / "user.csv"
    known = marks.is_file() and not refusal(marks, folder.resolve())
    splits = (row["split"] for _, row in rows_of(marks)) if known else None
    for where, row in rows_of(table):
        mark = next(splits, "-1") if splits else row.get("split", "")
        site, split = inside_or_held_out(row["reviewerID"], AMAZON.get(mark, mark))
        if mark == "-1":  # not part of the benchmark
            continue
        stars = f"{_number(row['overall']):g}" if row["overall"] else ""
        yield Text(site, stars, -1 if split is None else split, row["reviewText"], where)


def text_sources(rows: Iterable[Text]) -> list[ArraySource]:
    """One source per domain, of hashed words."""
    found: dict[str, list[Text]] = {}
    left_out = []
    for row in rows:
        if row.text and row.label:
            found.setdefault(row.domain, []).append(row)
        else:
            left_out.append(f"{row.id}: has no text or no label; fill it in")
    if not found:
        raise DataError(f"no row can be used; {left_out[0] if left_out else 'the table is empty'}")
    out = []
    for n, (name, texts) in enumerate(sorted(found.items())):
        classes = tuple(sorted({t.label for t in texts}))
        load = partial(_hashed_rows, texts, tuple(left_out) if not n else ())
        out.append(ArraySource(name, classes, load))
    return out


def _hashed_rows(texts: Sequence[Text], left_out: tuple[str, ...]) -> Rows:
    from sklearn.feature_extraction.text import HashingVectorizer  # noqa: PLC0415  slow to import

    words = HashingVectorizer(n_features=WORDS, dtype=np.float32)
    x = words.transform([t.text for t in texts]).toarray()  # (N, WORDS)
    split = np.array([t.split for t in texts], dtype=np.int8)
    given = split.astype(np.uint8) if (split >= 0).all() else None
    labels = np.array([t.label for t in texts])
    return Rows(x, labels, given, tuple(t.id for t in texts), left_out)


def _leaf_files(folder: Path) -> list[tuple[Path, int]]:
    """LEAF's JSON files with their splits: below train and test, perhaps in a folder ``data``."""
    root = folder.resolve()
    out = []
    for top in (folder, folder / "data"):
        for part in ("train", "test"):
            inner = top / part
            if inner.is_dir() and not refusal(inner, root):
                files = [p for p in visible(inner) if p.suffix == ".json" and p.is_file()]
                out += [(p, SPLITS[part]) for p in files if not refusal(p, root)]
    return out


def _leaf(files: Sequence[tuple[Path, int]]) -> list[ArraySource]:
    """Characters by writer, 28 x 28, as RGB like all images."""
    x: dict[str, list[np.ndarray]] = {}
    y: dict[str, list[int]] = {}
    marks: dict[str, list[int]] = {}
    for path, split in files:
        for writer, inputs, labels in _writers(path):
            x.setdefault(writer, []).append(inputs)
            y.setdefault(writer, []).extend(labels)
            marks.setdefault(writer, []).extend([split] * len(labels))
    out = []
    for writer in sorted(x):
        grey = np.concatenate(x[writer])  # (N, 28, 28)
        names = np.array([CHARACTERS[k] for k in y[writer]])
        rgb = np.repeat(grey[..., None], 3, axis=3)
        rows = Rows(rgb, names, np.array(marks[writer], dtype=np.uint8))
        out.append(ArraySource(writer, tuple(sorted(set(names.tolist()))), partial(_same, rows)))
    return out


def _writers(path: Path) -> Iterator[tuple[str, np.ndarray, list[int]]]:
    try:
        data = json.loads(path.read_text())["user_data"]
        for writer, held in data.items():
            x = np.asarray(held["x"], dtype=np.float32).reshape(-1, SIDE, SIDE)
            y = [int(k) for k in held["y"]]
            if len(x) != len(y) or not all(0 <= k < len(CHARACTERS) for k in y):
                raise ValueError(f"writer {writer} has {len(x)} images and {len(y)} labels")
            yield str(writer), np.rint(255 * np.clip(x, 0, 1)).astype(np.uint8), y
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not a file of LEAF's FEMNIST ({error}); expected user_data with 784 "
            "numbers per image and labels 0 to 61"
        ) from None


def _same(rows: Rows) -> Rows:
    return rows


Reader = Callable[[Path, Path], Sources]
LAYOUTS: tuple[tuple[str, set[str], Reader], ...] = (
    ("WILDS Camelyon17", {"patient", "node", "x_coord", "y_coord", "tumor", "center"}, _camelyon),
    ("WILDS iWildCam", {"filename", "y", "location_remapped", "split"}, _iwildcam),
    ("WILDS CivilComments", {"comment_text", "toxicity", "split"}, _civilcomments),
    ("WILDS Amazon", {"reviewText", "overall", "reviewerID"}, _amazon),
    ("FLamby Fed-ISIC2019", {"image", "target", "center", "fold"}, _isic),
)
