"""The table of claims: verdict, difference, the paper's own numbers, cost and command of each.

``fedshift claims table`` prints it, and docs/claims.md holds it. Every claim has a row, also those
that were not run or did not show; the number of seeds is beside every number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedshift.claims.claim import Claim
from fedshift.claims.run import Sides
from fedshift.claims.store import Row, value
from fedshift.claims.verdict import Difference, Verdict, better, close

HEADS = (
    "claim",
    "verdict",
    "method",
    "control",
    "difference",
    "could show",
    "seeds",
    "paper",
    "minutes",
    "command",
)


@dataclass(frozen=True)
class Judged:
    """A claim with what its runs say."""

    claim: Claim
    method: tuple[float, ...]  # seed by seed, of the seeds that both have
    control: tuple[float, ...]
    seconds: float  # of a run of the method, on average

    @property
    def difference(self) -> Difference:
        """Method minus control, the other way round where less is better."""
        sign, share = (-1.0 if self.claim.lower else 1.0), self.claim.share or 1.0
        pairs = zip(self.method, self.control, strict=True)
        return Difference(tuple(sign * (a - share * b) for a, b in pairs), self.claim.exact)

    @property
    def verdict(self) -> Verdict:
        """Holds, does not hold, or undecided."""
        if self.claim.within is not None:
            return close(self.difference, self.claim.within)
        return better(self.difference, self.claim.least)


def judge(
    claims: Sequence[Claim], sides: Mapping[str, Sides], rows: Mapping[str, Row]
) -> list[Judged]:
    """Every claim with its finished runs; one without any is undecided."""
    out = []
    for claim in claims:
        own = sides.get(claim.name, Sides({}, {}))
        seeds = [s for s in own.method if own.method[s] in rows and own.control.get(s, "") in rows]
        pairs = [(rows[own.method[s]], rows[own.control[s]]) for s in seeds]
        times = [row["seconds"] for row, _ in pairs]
        beside = claim.control_protocol or claim.protocol
        out.append(
            Judged(
                claim,
                tuple(value(row, claim, claim.protocol) for row, _ in pairs),
                tuple(value(row, claim, beside) for _, row in pairs),
                sum(times) / len(times) if times else math.nan,
            )
        )
    return out


def cells(one: Judged) -> tuple[str, ...]:
    """A row of the table, as text."""
    claim, found = one.claim, one.difference
    paper = ", ".join(f"{name} {number:g}" for name, number in claim.published.items())
    return (
        f"{claim.name}: {claim.says}",
        one.verdict,
        f"{claim.method} {mean(one.method)}",
        f"{claim.control} {mean(one.control)}",
        signed(found),
        number(found.detectable),
        f"{found.n} of {claim.seeds}",
        f"{claim.paper}: {paper}" if paper else claim.paper,
        number(one.seconds / 60),
        f"fedshift claims run {claim.name}",
    )


def markdown(judged: Sequence[Judged]) -> str:
    """The table in Markdown."""
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    for one in judged:
        *texts, command = cells(one)
        safe = [text.replace("|", "\\|") for text in texts]
        lines.append("| " + " | ".join([*safe, f"`{command}`"]) + " |")
    return "\n".join(lines) + "\n"


def signed(found: Difference) -> str:
    """A difference with its interval."""
    if not found.n:
        return "not run"
    half = "" if math.isinf(found.half) else f" ± {found.half:.2f}"
    return f"{found.mean:+.2f}{half}"


def mean(values: Sequence[float]) -> str:
    """The mean of some numbers; a dash without any."""
    return f"{sum(values) / len(values):.2f}" if values else "\N{EN DASH}"


def number(x: float) -> str:
    """A number, or a dash where there is none."""
    return f"{x:.2f}" if math.isfinite(x) else "\N{EN DASH}"
