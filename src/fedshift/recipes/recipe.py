"""One table or figure of a paper as data: rows are methods, columns are scenarios and numbers.

Recipes are TOML files in folders beside this module, one folder per paper and one file each, or a
user's own file in the same form. Metric, rule, budget and seeds are written before the runs are
made, so that none of them can be chosen by the result. Numbers under ``published`` are the paper's,
typed from its text; where the text has none they are left out and ``note`` says why.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedshift.base.errors import ConfigError
from fedshift.core.scenario import Budget, Frozen, Protocol, Scale, Scenario

Rule = Literal["validation", "last", "last5", "oracle"]
Number = float | Literal["-"]  # "-": the paper has no number here
OF_THE_RUN = ("parameters", "bytes", "seconds", "rounds")  # numbers of a run as a whole
PER_ROUND = ("bytes_per_round", "seconds_per_round")


class RecipeRow(Frozen):
    """A row: a method under the name that the paper gives it, and the paper's numbers.

    ``published`` and ``spread`` (what stands after ± in the paper) follow the order of the columns
    and may end early. ``method_in`` is another expression in some scenarios, where the paper has
    other settings. Without a ``method`` the row is shown and not run, and ``why`` says why not.
    """

    name: str
    method: str | None = None
    method_in: dict[str, str] = Field(default_factory=dict)  # by name of the scenario
    columns: tuple[str, ...] = ()  # where it is run; empty: in all
    set: dict[str, Any] = Field(default_factory=dict)  # other values of the scenario, of this row
    protocol: Protocol | None = None  # None: the column's
    published: tuple[Number, ...] = ()
    spread: tuple[Number, ...] = ()
    why: str = ""

    @model_validator(mode="after")
    def _explained(self) -> Self:
        if self.method is None and not self.why:
            raise ValueError(f"row {self.name!r} has no method; give one, or say why under why")
        return self


class RecipeColumn(Frozen):
    """A column: a number of the runs in one scenario, or the mean of other columns.

    ``metric`` is avg, std, all, worst, a domain or a measure of the scores; a number of one of the
    scenario's analyses; of the run as a whole parameters, bytes (sent up in training), seconds or
    rounds, or bytes_per_round and seconds_per_round; or rounds_to, the first scored round whose avg
    reaches ``threshold``. It is multiplied by ``factor``. A column with ``why`` is shown, not made.
    """

    name: str
    scenario: str | None = None
    set: dict[str, Any] = Field(default_factory=dict)  # other values of the scenario
    smaller: dict[str, Any] = Field(default_factory=dict)  # and further ones below paper scale
    protocol: Protocol | None = None  # None: the recipe's
    metric: str = "avg"
    threshold: float | None = None
    factor: Annotated[float, Field(gt=0)] = 1.0
    mean_of: tuple[str, ...] = ()  # names of columns
    why: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if bool(self.scenario) + bool(self.mean_of) + bool(self.why) != 1:
            raise ValueError(f"column {self.name!r} takes one of scenario, mean_of and why")
        if (self.metric == "rounds_to") != (self.threshold is not None):
            raise ValueError(f"column {self.name!r}: threshold belongs to the metric rounds_to")
        return self


class RecipeSweep(Frozen):
    """Rows that differ in settings of one method: all combinations of the values in ``over``.

    A key ``scenario.lr`` changes the scenario; every other one is the method's.
    """

    method: str
    over: dict[str, list[int | float | str | bool]]

    def rows(self) -> list[RecipeRow]:
        """One row per combination, called like the values."""
        return [self._row(dict(zip(self.over, values, strict=True))) for values in self._grid()]

    def _grid(self) -> list[tuple[Any, ...]]:
        return list(product(*self.over.values()))

    def _row(self, values: dict[str, Any]) -> RecipeRow:
        words = {key: str(v).lower() if isinstance(v, bool) else v for key, v in values.items()}
        own = ", ".join(f"{k}={v}" for k, v in words.items() if not k.startswith("scenario."))
        changes = {k.removeprefix("scenario."): v for k, v in values.items() if "scenario." in k}
        return RecipeRow(
            name=", ".join(f"{key}={value}" for key, value in words.items()),
            method=f"{self.method}[{own}]" if own else self.method,
            set=changes,
        )


class Recipe(Frozen):
    """A table or figure: every row in every column, over seeds.

    ``rule`` chooses the reported round and ``equal`` is what the methods have the same of. A
    figure's ``analysis`` is a kind of ``fedshift.analyse`` with its ``options``. ``set`` changes
    all scenarios, and ``records`` names what they measure at each scored round besides
    (``analyses`` of a scenario): those that are registered here are added.
    """

    name: str  # "fdse/table1"
    paper: str  # "FDSE (CVPR 2025), Table 1"
    caption: str
    kind: Literal["table", "figure"] = "table"
    protocol: Protocol
    rule: Rule = "last5"
    equal: Budget = "rounds"
    seeds: Annotated[int, Field(ge=1)] = 3
    spread: str = ""  # what the paper's ± is
    set: dict[str, Any] = Field(default_factory=dict)
    records: tuple[str, ...] = ()
    analysis: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    note: str = ""
    row: tuple[RecipeRow, ...] = ()
    sweep: tuple[RecipeSweep, ...] = ()
    column: Annotated[tuple[RecipeColumn, ...], Field(min_length=1)]

    @property
    def rows(self) -> list[RecipeRow]:
        """The rows as written, then those of the sweeps."""
        return [*self.row, *(row for sweep in self.sweep for row in sweep.rows())]

    @property
    def methods(self) -> list[str]:
        """Expressions of all methods, each once."""
        made = [m for r in self.rows if r.method for m in (r.method, *r.method_in.values())]
        return list(dict.fromkeys(made))

    def cells(self) -> list[tuple[RecipeRow, RecipeColumn, str]]:
        """What is run: row, column and method of each cell that has a scenario."""
        return [
            (row, column, row.method_in.get(column.scenario, row.method))
            for row in self.rows
            for column in self.column
            if row.method and column.scenario
            if not row.columns or column.name in row.columns
        ]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.rows:
            raise ValueError(f"recipe {self.name!r} has neither a row nor a sweep")
        for kind, names in (
            ("rows", [row.name for row in self.rows]),
            ("columns", [column.name for column in self.column]),
        ):
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"two {kind} are called {twice[0]!r}; give each its own name")
        self._require_numbers()
        return self

    def _require_numbers(self) -> None:
        made = {c.name for c in self.column if not c.mean_of}
        for column in self.column:
            if absent := [name for name in column.mean_of if name not in made]:
                raise ValueError(f"column {column.name!r} is a mean of {absent[0]!r}: no such one")
        for changed in (self.set, *(c.set | c.smaller for c in self.column)):
            if "rounds" in changed and self.equal != "rounds":
                raise ValueError(f"equal is {self.equal}, which sets the rounds; leave out rounds")
        self._require_rows(made)

    def _require_rows(self, made: Collection[str]) -> None:
        for row in self.rows:
            if max(len(row.published), len(row.spread)) > len(self.column):
                raise ValueError(f"row {row.name!r} has more numbers than there are columns")
            if absent := [name for name in row.columns if name not in made]:
                raise ValueError(f"row {row.name!r} is run in {absent[0]!r}: no such column")
            if absent := [s for s in row.method_in if s not in {c.scenario for c in self.column}]:
                raise ValueError(f"row {row.name!r} is made in {absent[0]!r}: no such scenario")


def changes_of(
    recipe: Recipe, row: RecipeRow, column: RecipeColumn, scale: Scale
) -> dict[str, Any]:
    """Other values of a cell's scenario: the recipe's, then the column's, then the row's.

    Options of the backbone and of the data are joined, as the scenario's own are with them. TOML
    has no value for nothing: the text "none" is it, for options that may be unset.
    """
    parts = [recipe.set, column.set, {} if scale == "paper" else column.smaller, row.set]
    out: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            held = out.get(key)
            out[key] = held | value if isinstance(held, dict) else value
    known = Scenario.model_fields
    for key in out:
        if key.partition(".")[0] not in known:
            raise ConfigError(f"{recipe.name}: a scenario has no option {key!r}")
    unset = [k for k, v in out.items() if v == "none" and k in known and known[k].default is None]
    return out | dict.fromkeys(unset)


def protocol_of(recipe: Recipe, row: RecipeRow, column: RecipeColumn) -> Protocol:
    """Who is scored on what, in a cell."""
    return row.protocol or column.protocol or recipe.protocol
