"""One claim of a paper as data: what is compared with what, where, by which number and rule.

Entries are TOML files beside this module (one per paper), or a user's own file in the same form:
a table ``[[claim]]`` each. An entry is written before its runs are made; metric, rule, budget and
number of seeds are part of it, so that none of them can be chosen by the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.base.files import from_toml
from fedshift.core.scenario import Budget, Frozen, Protocol, Scale, one_line

FOLDER = Path(__file__).parent


class Claim(Frozen):
    """A claim: ``method`` is better than ``control``, by the number ``metric`` under ``protocol``.

    ``least`` is the difference that it must exceed; with ``within`` the claim is that both are as
    good as each other instead, and with ``share`` that the method has at most this share of the
    control's number. The control may be scored under a protocol of its own. ``metric`` is avg,
    worst, std, a domain or a measure of the scores; a number of one of the scenario's analyses
    (the mean of its last five rounds); or, of the run as a whole, ``parameters`` or ``bytes`` (sent
    up in training). ``lower`` means that less is better. ``equal`` is what method and control have
    the same of. ``published`` has the paper's own numbers, by method.
    """

    name: str  # "fdse/own-domain"
    paper: str  # where it says so: "FDSE, Table 1"
    says: str
    method: str
    control: str
    scenario: str
    scale: Scale = "bench"
    set: dict[str, Any] = Field(default_factory=dict)  # other values of the scenario
    control_set: dict[str, Any] = Field(default_factory=dict)  # and of the control's only
    protocol: Protocol
    control_protocol: Protocol | None = None  # None: the same
    metric: str = "avg"
    rule: Literal["validation", "last", "last5", "oracle"] = "last5"
    lower: bool = False
    least: float = 0.0
    within: Annotated[float, Field(gt=0)] | None = None
    share: Annotated[float, Field(gt=0)] | None = None
    equal: Budget = "rounds"
    seeds: Annotated[int, Field(ge=1)] = 3
    main: bool = False  # the paper's main claim
    published: dict[str, float] = Field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether its number is the same for every seed."""
        return self.metric in ("parameters", "bytes")


def read_claims(path: Path | None = None) -> list[Claim]:
    """All claims that come with the project, or those of one file; main claims first."""
    files = [path] if path is not None else sorted(FOLDER.glob("*.toml"))
    found = [claim for file in files for claim in _read(file)]
    names = [claim.name for claim in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two claims are called {name!r}; give each a name of its own")
    return sorted(found, key=lambda claim: not claim.main)


def chosen(claims: Sequence[Claim], names: Sequence[str]) -> list[Claim]:
    """The claims of these names; a name may be a paper's, such as ``fdse``. All without a name."""
    if not names:
        return list(claims)
    out: dict[str, Claim] = {}
    for name in names:
        found = [c for c in claims if c.name == name or c.name.startswith(f"{name}/")]
        if not found:
            raise UnknownNameError.of("claim", name, [c.name for c in claims])
        out |= {c.name: c for c in found}
    return list(out.values())


def _read(file: Path) -> list[Claim]:
    try:
        rows = from_toml(file.read_text())["claim"]
        return [Claim.model_validate(row) for row in rows]
    except ValidationError as error:
        raise ConfigError(f"{file}: {one_line(error)}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file} holds no claims ({error}); it takes tables [[claim]] with name, paper, says, "
            "method, control, scenario and protocol"
        ) from None
