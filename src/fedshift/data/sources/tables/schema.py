"""What a user may say about a table: columns, kinds of target, how cells become numbers.

The options of ``fedshift data add`` and a small TOML file fill it; the readers of this folder ask
it. Every default means "find out", and no field refers to the rows of any site.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from fedshift.base.errors import ConfigError, DataError
from fedshift.base.files import from_toml

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


def _by_column(value: Any) -> Any:
    """``"a=1:2, b=x:y"``, or several such texts, as lists by column; anything else as it is."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        return value
    out = {}
    for pair in filter(None, (part.strip() for text in texts for part in str(text).split(","))):
        name, equals, told = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r} is not COLUMN=A:B")
        out[name.strip()] = [part.strip() for part in told.split(":")]
    return out


def _end(value: Any) -> Any:
    """An end of bounds: a number, or a date as its day since 1970."""
    try:
        found = date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return (found - date(1970, 1, 1)).days if type(found) is date else found


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Stripped = Annotated[str, BeforeValidator(_stripped)]
End = Annotated[float, BeforeValidator(_end), Field(ge=-1e100, le=1e100)]
Bounds = Annotated[dict[str, tuple[End, End]], BeforeValidator(_by_column)]
Category = Annotated[str, BeforeValidator(str)]  # TOML may say 1
Categories = Annotated[dict[str, tuple[Category, ...]], BeforeValidator(_by_column)]


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
    epsilon: Annotated[float, Field(gt=0, le=1e9)] | None = None  # None: no noise, see `release`
    bounds: Bounds = Field(default_factory=dict)  # of columns of numbers and dates, under epsilon
    categories: Categories = Field(default_factory=dict)  # of columns, under epsilon
    one_hot: Annotated[int, Field(ge=0)] = 50  # a column of more categories is hashed
    hashed: Annotated[int, Field(ge=2)] = 32  # columns that a hashed column becomes
    encoder: Stripped = "words"  # of texts: words, minilm, or a folder
    words: Annotated[int, Field(ge=2)] = 1024  # columns that a text becomes under `words`
    may_drop: Annotated[float, Field(ge=0, le=1)] = 0.05  # share of a site's rows
    plain: bool = False  # published vectors: every column is a number and is taken as it is
    delimiter: Annotated[str, Field(max_length=1)] = ""  # empty: find out
    decimal: Literal["", ".", ","] = ""
    encoding: Stripped = ""

    @model_validator(mode="before")
    @classmethod
    def _mean_under_epsilon(cls, told: Any) -> Any:
        """A median has no noisy answer here: missing numbers get the mean."""
        noisy = isinstance(told, Mapping) and told.get("epsilon") is not None
        return {"impute": "mean"} | dict(told) if noisy else told

    @model_validator(mode="after")
    def _fits_epsilon(self) -> Self:
        if self.epsilon is None:
            if self.bounds or self.categories:
                raise ValueError("bounds and categories belong to epsilon; set it, or drop them")
            return self
        if (self.impute, self.statistics, self.plain) != ("mean", "federated", False):
            raise ValueError(
                "epsilon is for statistics=federated and impute=mean: medians and each site's own "
                "statistics have no noise; leave both out, or leave out epsilon"
            )
        for name, (low, high) in self.bounds.items():
            if not low < high:
                raise ValueError(f"bounds of {name} are {low:g} and {high:g}; the first is lower")
        if twice := sorted(self.bounds.keys() & self.categories.keys()):
            raise ValueError(f"column {twice[0]} has bounds and categories; leave one out")
        return self

    def bounds_of(self, name: str) -> tuple[float, float]:
        """The bounds of a column of numbers; without them one row could move a sum by anything."""
        if name not in self.bounds:
            raise DataError(
                f"column {name!r} has no bounds, and under epsilon a sum needs them; say between "
                "which numbers its values lie, whatever the rows hold, or leave the column out",
                f"bounds={name}=LOW:HIGH", f"drop={name}",
            )  # fmt: skip
        return self.bounds[name]

    def by_cell(self, name: str) -> bool:
        """Whether a column's cells are read one by one, so that none changes how others are read.

        Under epsilon all are but labels, whose kind is known to everybody.
        """
        return self.epsilon is not None and name not in (*self.label, ",".join(self.label))

    @property
    def absent(self) -> frozenset[str]:
        """Cells that mean "missing", in lower case."""
        return MISSING | {cell.strip().lower() for cell in self.missing}


def schema_of(options: Mapping[str, Any], file: Path | None = None) -> TableSchema:
    """The schema of a TOML file, over which ``options`` take precedence."""
    told: dict[str, Any] = {}
    if file is not None:
        try:
            told = from_toml(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read ({error}); write a TOML file") from None
    try:
        return TableSchema.model_validate(told | dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "schema"
        known = ", ".join(TableSchema.model_fields)
        hint = f"; known: {known}" if first["type"] == "extra_forbidden" else ""
        what = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{key} of a table: {what}{hint}") from None
