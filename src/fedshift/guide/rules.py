"""The rule of thumb: from a question and its constraints to a method, with the reason for each.

``guide.first_run`` asks it, and docs/guide.md has it as a table. It goes by what was measured on
the embedded digits and by what parts can be combined; it never looks at the data, so it is a place
to begin and not advice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.core.scenario import Protocol

Question = Literal["single", "per-site", "unlabelled", "unseen"]
Privacy = Literal["none", "secure-aggregation", "local-dp"]
QUESTIONS: dict[str, str] = {
    "single": "Which one model is best for all sites?",
    "per-site": "Which model is best for each site?",
    "unlabelled": "Which model is best at a site that has inputs but no labels?",
    "unseen": "Which model is best at a site that nobody has seen yet?",
}
PRIVACIES: dict[str, str] = {
    "none": "the server sees every site's update",
    "secure-aggregation": "the server sees sums of updates only",
    "local-dp": "noise hides every site's update, also from the server",
}
NEED_TARGET = ("unlabelled", "unseen")
CODECS: tuple[tuple[str, float], ...] = (  # upload against plain, docs/codecs.md
    ("", 1.0),
    ("half", 0.504),
    ("quantise[bits=8]", 0.256),
    ("quantise[bits=4]", 0.132),
)
FEWEST = 3  # rounds below which a budget is refused


@dataclass(frozen=True)
class Wish:
    """What somebody wants, and what it may cost."""

    question: str = "single"
    target: str = ""  # the site without labels, or the one that stands for sites not seen yet
    privacy: str = "none"
    mb_per_round: float | None = None  # up and down, all sites together
    mb: float | None = None  # the same, in all rounds
    minutes: float | None = None  # of a run with one process

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.question not in get_args(Question):
            raise UnknownNameError.of("question", self.question, get_args(Question))
        if self.privacy not in get_args(Privacy):
            raise UnknownNameError.of("kind of privacy", self.privacy, get_args(Privacy))
        for name in ("mb_per_round", "mb", "minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value:g}; it takes a number above 0")
        if self.target and self.question not in NEED_TARGET:
            raise ConfigError(
                f"target is {self.target!r}, and the question {self.question} has no target; ask "
                "unlabelled or unseen, or leave it out"
            )


@dataclass(frozen=True)
class Rule:
    """What to begin with, and why."""

    method: str
    protocols: tuple[Protocol, ...]
    why: str


WITH_BATCH_NORM: dict[str, Rule] = {
    "single": Rule(
        "fedavg",
        ("global",),
        "FedAvg averages the sites' models. It is what every other method is compared with, and "
        "without a measurement nothing says that another one is better here.",
    ),
    "per-site": Rule(
        "fedbn",
        ("personal",),
        "FedBN keeps BatchNorm at each site and averages the rest, so every site normalises its "
        "own look. On the embedded digits 90.0 against FedAvg's 82.4 % (three seeds).",
    ),
    "unlabelled": Rule(
        "fedavg + adapt-bn",
        ("unseen-adapted", "unseen"),
        "FedAvg, and the target's unlabelled inputs give BatchNorm new statistics, at the target "
        "itself. On the embedded digits 74.0 %, not told apart from FedKA's 72.8, which needs the "
        "target's inputs at the server (three seeds).",
    ),
    "unseen": Rule(
        "fedavg + adapt-bn",
        ("unseen", "unseen-adapted"),
        "FedAvg is scored at a site that takes no part, as it is (unseen) and with BatchNorm "
        "statistics of that site's unlabelled inputs (unseen-adapted). On the embedded digits 68.1 "
        "and 77.6 % (three seeds).",
    ),
}
WITHOUT_BATCH_NORM: dict[str, Rule] = {
    "single": WITH_BATCH_NORM["single"],
    "per-site": Rule(
        "ditto",
        ("personal",),
        "Ditto trains a second model at each site, tied to the shared one; it never leaves the "
        "site. FedBN would be FedAvg here, since the net has no BatchNorm.",
    ),
    "unlabelled": Rule(
        "fedavg",
        ("unseen",),
        "FedAvg as it is: adapting BatchNorm is out, since the net has none. SHOT adapts without "
        'it ("fedavg + shot") and was not measured on such nets.',
    ),
    "unseen": Rule(
        "fedavg",
        ("unseen",),
        "FedAvg as it is, scored at a site that takes no part; the net has no BatchNorm to adapt.",
    ),
}
PRIVACY_PARTS: dict[str, tuple[str, str]] = {
    "secure-aggregation": (
        "secure-aggregation",
        "Updates are masked so that the server learns their sum and nothing of a single one. With "
        "two sites each still learns the other's, by subtraction. On real machines write "
        "secure-aggregation[randomness=system].",
    ),
    "local-dp": (
        "local-dp[clip=1, noise=1]",
        "Each site clips its update and adds noise before it leaves. What epsilon that is, the "
        "run's ledger says; with few sites the noise may cost most of the accuracy. On real "
        "machines write local-dp[clip=1, noise=1, randomness=system].",
    ),
}


def rule_for(question: str, privacy: str) -> Rule:
    """The method to begin with. Noise leaves BatchNorm's statistics at the sites: use none."""
    rules = WITHOUT_BATCH_NORM if privacy == "local-dp" else WITH_BATCH_NORM
    return rules[question]


@dataclass(frozen=True)
class Fit:
    """How a run fits into its bytes."""

    codec: str
    rounds: int
    megabytes: float  # of a round, up and down, all sites together
    why: str


def fit_bytes(wish: Wish, up: float, down: float, rounds: int) -> Fit:
    """The mildest codec with which all rounds fit, else fewer rounds; ``up``, ``down``: of a round.

    >>> fit_bytes(Wish(mb_per_round=1.6), 1e6, 1e6, 30).codec
    'half'
    """
    codecs: Sequence[tuple[str, float]] = CODECS
    if wish.privacy == "secure-aggregation":
        codecs = CODECS[:1]  # masked sums cannot be encoded
    best: Fit | None = None
    for name, factor in codecs:
        one = (up * factor + down) / 1e6
        if wish.mb_per_round is not None and one > wish.mb_per_round:
            continue
        allowed = rounds if wish.mb is None else min(rounds, int(wish.mb / one))
        if best is None or allowed > best.rounds:
            best = Fit(name, allowed, one, _why(wish, name, allowed, rounds, one))
        if allowed == rounds:
            break
    least = (up * codecs[-1][1] + down) / 1e6
    if best is None or best.rounds < FEWEST:
        limit = f"{wish.mb_per_round:g} MB a round" if best is None else f"{wish.mb:g} MB in all"
        raise ConfigError(
            f"{limit} are too few: a round takes {least:.3g} MB at least, of which "
            f"{down / 1e6:.3g} go down to the sites, and {FEWEST} rounds are the least; allow "
            "more, or take a smaller backbone"
        )
    return best


def _why(wish: Wish, codec: str, allowed: int, rounds: int, one: float) -> str:
    """The reason for a codec and for fewer rounds; nothing if all fits as it is."""
    parts = []
    if codec:
        parts.append(
            f"{codec} makes uploads smaller; on the embedded digits that cost no accuracy that "
            "three seeds could show."
        )
    if allowed < rounds:
        parts.append(f"{allowed} rounds in place of {rounds}, to stay below {wish.mb:g} MB in all.")
    limited = wish.mb is not None or wish.mb_per_round is not None
    if limited:
        parts.append(f"A round moves about {one:.3g} MB up and down, all sites together.")
    return " ".join(parts)
