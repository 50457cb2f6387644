"""What an analysis returns, and how it is written: a table as text, a figure as a picture.

Kinds make a :class:`Finding`, the command line and recipes write it. Nothing here computes.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedshift.base.errors import ConfigError
from fedshift.base.files import write_bytes
from fedshift.report import optional

Rows = list[dict[str, Any]]
PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Finding:
    """The result of an analysis.

    ``table`` has one mapping per row, all with the same keys; None is a value that there is not.
    ``figure`` is a matplotlib figure, None where matplotlib is missing or a kind draws nothing.
    ``sentence`` is the answer in plain words; ``notes`` say what the reader has to know besides.
    """

    table: Rows
    figure: Any = field(repr=False)
    sentence: str
    notes: tuple[str, ...] = ()

    def write(self, path: Path) -> Path:
        """Write the figure (png, svg, pdf) or the table (csv, json, md), by the file's suffix."""
        kind = path.suffix.lower()
        if kind in PICTURES:
            figures = optional.figures()
            if self.figure is None:
                raise ConfigError(f"this analysis has no figure for {path}; write its table")
            figures.save(self.figure, path)
        elif kind in TABLES:
            write_bytes(path, TABLES[kind](self).encode())
        else:
            known = ", ".join((*PICTURES, *TABLES))
            raise ConfigError(f"{path} ends in {path.suffix!r}; an analysis is one of {known}")
        return path


def as_csv(finding: Finding) -> str:
    """The table as comma-separated values, one line per row, in full precision."""
    out = io.StringIO()
    sheet = csv.DictWriter(out, columns(finding.table), lineterminator="\n")
    sheet.writeheader()
    sheet.writerows(finding.table)
    return out.getvalue()


def as_json(finding: Finding) -> str:
    """Sentence, notes and table as JSON; what is no number (NaN) becomes null."""
    rows = [{k: _plain(v) for k, v in row.items()} for row in finding.table]
    told = {"sentence": finding.sentence, "notes": list(finding.notes), "table": rows}
    return json.dumps(told, indent=1, allow_nan=False) + "\n"


def as_markdown(finding: Finding) -> str:
    """The table as Markdown, numbers rounded, with the sentence above and the notes below."""
    names = columns(finding.table)
    lines = [names, ["---"] * len(names)]
    lines += [[shown(row[name]).replace("|", "\\|") for name in names] for row in finding.table]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return "\n".join([finding.sentence + "\n", table, *(f"{note}\n" for note in finding.notes)])


TABLES: Mapping[str, Callable[[Finding], str]] = {
    ".csv": as_csv,
    ".json": as_json,
    ".md": as_markdown,
}


def columns(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the columns, in the order of the first row that has each."""
    return list(dict.fromkeys(name for row in table for name in row))


def shown(value: Any) -> str:
    """A value for people: four significant digits, a dash where there is none.

    >>> shown(0.123456), shown(1234567), shown(None), shown(1234.56)
    ('0.1235', '1234567', '–', '1235')
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"  # noqa: RUF001
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
