"""What the JSON of a run directory must look like to be read: fields, types and ranges.

``runs.record`` checks what it reads with :func:`checked`, so that a file that was cut, edited or
mixed up is one line that names it, and not an error in whatever uses the number later. Only fields
that are read are named; others may be there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedshift.base.errors import RunError

Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]
Number = Annotated[float, Field(strict=True)]  # NaN and infinities included: a deviation of one
Cell = Annotated[list[Count], Field(min_length=3, max_length=3)]  # true, predicted, count
Bytes = dict[Literal["up", "down"], Count]


class Held(BaseModel):
    """Base of the contents: strict about what is named, silent about what is not."""

    model_config = ConfigDict(extra="allow", strict=True)


class ScoresContent(Held):
    """The numbers of a protocol on one split (``evaluate.metrics.Metrics``).

    What is not named here is a measure by its name, so a number.
    """

    __pydantic_extra__: dict[str, Number] = Field(init=False)
    avg: Number
    std: Number
    all: Number
    worst: Number
    loss: Number
    domains: dict[str, Number]
    clients: dict[str, Number]
    by_domain: dict[str, dict[str, Number]] = Field(default_factory=dict)
    confusion: dict[str, list[Cell]] = Field(default_factory=dict)
    samples: dict[str, Count] = Field(default_factory=dict)


class SplitScores(Held):
    """Scores on validation and test samples."""

    val: ScoresContent
    test: ScoresContent


class MetricsRow(Held):
    """A line of ``metrics.jsonl``: one round."""

    round: Count
    losses: dict[str, Number] = Field(default_factory=dict)
    seconds: Number = 0.0
    scores: dict[str, SplitScores] = Field(default_factory=dict)
    unscored: list[str] = Field(default_factory=list)


class LedgerRow(Held):
    """A line of ``ledger.jsonl``: one message, one loss or one privacy promise."""

    round: Count
    task: str
    client: str
    direction: Literal["up", "down", "lost", "none"]
    bytes: Count
    kinds: dict[str, Count]
    reason: str = ""


class Enrolled(Held):
    """One client of ``roster.json``."""

    examples: Annotated[int, Field(ge=1, le=2**53, strict=True)]
    facts: dict[str, bool | int | float | str]


class Chosen(Held):
    """A reported round of ``summary.json``."""

    rule: str
    round: Count
    metrics: ScoresContent


class Choices(Held):
    """The selected, the last and the oracle round of a protocol."""

    selected: Chosen
    last: Chosen
    oracle: Chosen


class Traffic(Held):
    """Bytes by direction, of training and of everything."""

    train: Bytes
    total: Bytes


class SummaryContent(Held):
    """``summary.json``."""

    rounds: Count
    clients: Count
    confounders: dict[str, str]
    protocols: dict[str, Choices]
    shares: dict[str, str] = Field(default_factory=dict)
    bytes: Traffic
    seconds: Number = 0.0


class BegunScenario(Held):
    """What a view of a run needs of its scenario."""

    name: str
    rounds: Count


class BegunRun(Held):
    """What a view of a run needs of its configuration; whoever plays it checks all of it."""

    method: str
    settings: dict[str, bool | int | float | str | None] = Field(default_factory=dict)
    without: list[str] = Field(default_factory=list)
    seed: int = 0
    scenario: BegunScenario


class BegunContent(Held):
    """``config.json``."""

    run: BegunRun


BEGUN: TypeAdapter[Any] = TypeAdapter(BegunContent)
METRICS: TypeAdapter[Any] = TypeAdapter(list[MetricsRow])
LEDGER: TypeAdapter[Any] = TypeAdapter(list[LedgerRow])
ROSTER: TypeAdapter[Any] = TypeAdapter(dict[str, Enrolled])
SUMMARY: TypeAdapter[Any] = TypeAdapter(SummaryContent)
Round = Annotated[int, Field(ge=-1, le=2**53, strict=True)]
Visits = Annotated[list[Round], Field(min_length=2, max_length=2)]
VISITS: TypeAdapter[Any] = TypeAdapter(dict[str, Visits | None])


def checked(value: Any, kind: TypeAdapter[Any], path: Path) -> Any:
    """``value`` as it is, if it is of this kind; else one line with the first thing amiss."""
    try:
        kind.validate_python(value)
    except (ValidationError, RecursionError) as error:
        raise RunError(
            f"{path} is damaged: {_first(error)}; restore it, or delete the run and repeat it"
        ) from None
    return value


def _first(error: ValidationError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    item = error.errors(include_url=False)[0]
    where = ".".join(map(str, item["loc"])) or "it"
    found = repr(item["input"])
    return f"{where} is {found if len(found) < 60 else found[:60] + '...'}, {item['msg']}"
