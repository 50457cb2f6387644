"""A csv that lists images: a column of paths, beside label, site and split.

``discover`` calls it for csv files whose path column names images, ``layouts`` for the published
tables of benchmarks. Paths start from the csv's folder, or from a folder that the user names, and
must stay in it: a csv from somebody else cannot make us open other files.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from fedshift.base.errors import DataError
from fedshift.data.sources.images import SPLITS, ImageSource, Item
from fedshift.data.sources.pixels import SUFFIXES
from fedshift.data.sources.tables.reading import encoding_of

PATHS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path", "img")
SITES = ("site", "center", "centre", "hospital")  # other names of a domain column
MARKS = SPLITS | {"0": 0, "1": 2, "2": 1}  # numbers as in an npz: 1 test, 2 validation
DELIMITERS = ",;\t|"
Row = Mapping[str, str]


def rows_of(path: Path) -> Iterator[tuple[str, Row]]:
    """Place and cells of each line of a csv, by column; spaces around names and cells are cut."""
    csv.field_size_limit(2**27)
    try:
        with path.open(newline="", encoding=encoding_of(path)) as file:
            head = file.readline()
            mark = max(DELIMITERS, key=head.count)
            file.seek(0)
            lines = csv.reader(file, delimiter=mark)
            header = [name.strip() for name in next(lines, [])]
            for n, cells in enumerate(lines, start=2):
                if cells:
                    cut = zip(header, (cell.strip() for cell in cells), strict=False)
                    yield f"{path}:{n}", dict.fromkeys(header, "") | dict(cut)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}); save it as UTF-8 csv") from None


def header_of(path: Path) -> tuple[str, ...]:
    """Columns of a csv that has at least one line; none if it has not."""
    return tuple(next((row for _, row in rows_of(path)), {}))


def path_column(path: Path) -> str | None:
    """The column of a csv that names images, judged by the first lines; None if there is none."""
    if path.suffix.lower() != ".csv":
        return None
    first = [row for _, row in islice(rows_of(path), 5)]
    for name in first[0] if first else ():
        cells = [row.get(name, "") for row in first]
        if name.lower() in PATHS and any(Path(c).suffix.lower() in SUFFIXES for c in cells):
            return name
    return None


@dataclass
class Listing:
    """Images of a table by domain, and a line for each row that cannot be used."""

    root: Path  # where paths start, and which they must not leave
    found: dict[str, list[Item]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, where: str, path: str, *, label: str, domain: str, split: int | None) -> None:
        """Take one row; ``split`` is None if the row's mark is unknown."""
        whole = Path(path) if Path(path).is_absolute() else self.root / path
        if not path or not label or not domain:
            empty = "path" if not path else "label" if not label else "site"
            self.left_out.append(f"{where}: the {empty} is empty; fill it in")
        elif "\0" in path:
            self.left_out.append(f"{where}: {path!r} is no path; mend it")
        elif split is None:
            self.left_out.append(f"{where}: the split is unknown; write train, val or test")
        elif not whole.resolve().is_relative_to(self.root.resolve()):
            reason = "leads out of the folder; name the images' folder as images"
            self.left_out.append(f"{where}: {path} {reason}")
        else:
            self.found.setdefault(domain, []).append(Item(path, label, split, whole))

    def sources(self) -> list[ImageSource]:
        """One source per domain."""
        if not self.found:
            reason = self.left_out[0] if self.left_out else f"{self.root} lists no images"
            raise DataError(f"no row can be used; {reason}", "images=DIR")
        return [
            ImageSource(name, tuple(items), tuple(self.left_out) if not n else ())
            for n, (name, items) in enumerate(sorted(self.found.items()))
        ]


def listed_sources(
    files: Sequence[Path], *, label: str, domain: str, images: Path | None
) -> list[ImageSource]:
    """The domains of csv files that list images; without a domain column a file is a domain."""
    listing = Listing(images or files[0].parent)
    for file in files:
        header, column = header_of(file), path_column(file)
        if column is None:
            raise DataError(f"{file} has no column of image paths; {files[0].name} has; remove it")
        if label not in header:
            raise DataError(
                f"{file} has no column {label!r}; it has {', '.join(header)}; name the label "
                "column",
                "label=COLUMN",
            )
        site = next((name for name in (domain, *SITES) if name in header), None)
        for where, row in rows_of(file):
            split = MARKS.get(row.get("split", "").lower()) if "split" in header else -1
            name = row.get(site, "") if site else file.stem
            listing.add(where, row.get(column, ""), label=row.get(label, ""), domain=name,
                        split=split)  # fmt: skip
    return listing.sources()
