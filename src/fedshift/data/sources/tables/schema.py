"""What a user may say about a table: columns, kinds of target, how cells become numbers.

The options of ``fedshift data add`` and a small TOML file fill it; the readers of this folder ask
it. Every default means "find out", and no field refers to the rows of any site.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fedshift.base.errors import ConfigError

Objective = Literal["auto", "classification", "regression", "multi-label"]
MISSING = frozenset(
    ("", "?", "na", "n/a", "#n/a", "nan", "<na>", "null", "none", "nil", "-", "--", ".")
)


def _names(value: Any) -> Any:
    """Column names from ``"a, b"`` or a list, without spaces around them."""
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(str(part).strip() for part in parts if str(part).strip())


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Stripped = Annotated[str, BeforeValidator(_stripped)]


class TableSchema(BaseModel):
    """Columns by name, and how they are prepared.

    >>> TableSchema(label=" outcome ", drop="notes, ward").drop
    ('notes', 'ward')
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: Names = ("label",)  # several: multi-label
    domain: Stripped = "domain"
    objective: Objective = "auto"
    rename_label: dict[str, str] = Field(default_factory=dict)  # a site's label to the common one
    drop: Names = ()
    numeric: Names = ()
    categorical: Names = ()
    date: Names = ()
    text: Names = ()
    missing: tuple[str, ...] = ()  # further cells that mean "missing", such as -9
    impute: Literal["median", "mean", "drop"] = "median"
    scale: Literal["standard", "none"] = "standard"
    statistics: Literal["federated", "site"] = "federated"
    one_hot: Annotated[int, Field(ge=0)] = 50  # a column of more categories is hashed
    hashed: Annotated[int, Field(ge=2)] = 32  # columns that a hashed column becomes
    encoder: Stripped = "words"  # of texts: words, minilm, or a folder
    words: Annotated[int, Field(ge=2)] = 1024  # columns that a text becomes under `words`
    may_drop: Annotated[float, Field(ge=0, le=1)] = 0.05  # share of a site's rows
    plain: bool = False  # published vectors: every column is a number and is taken as it is
    delimiter: Annotated[str, Field(max_length=1)] = ""  # empty: find out
    decimal: Literal["", ".", ","] = ""
    encoding: Stripped = ""

    @property
    def absent(self) -> frozenset[str]:
        """Cells that mean "missing", in lower case."""
        return MISSING | {cell.strip().lower() for cell in self.missing}


def schema_of(options: Mapping[str, Any], file: Path | None = None) -> TableSchema:
    """The schema of a TOML file, over which ``options`` take precedence."""
    told: dict[str, Any] = {}
    if file is not None:
        try:
            told = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read ({error}); write a TOML file") from None
    try:
        return TableSchema.model_validate(told | dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "schema"
        known = ", ".join(TableSchema.model_fields)
        hint = f"; known: {known}" if first["type"] == "extra_forbidden" else ""
        raise ConfigError(f"{key} of a table: {first['msg']}{hint}") from None
