"""How many rounds a short comparison plays, of whom, and when it gives somebody up.

``guide.advise`` follows a :class:`Schedule`. All methods are played with their defaults for an
eighth of the rounds; the best get their other settings, played as long. Of all these the best go on
to a quarter, the better half of them to a half, and one to the end, on seeds that chose nothing.
Runs are paused and go on later, so a survivor's rounds are not played again. FedAvg and local
training are never given up: the others are compared with them. Nothing here knows a score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedshift.base.errors import ConfigError
from fedshift.base.times import duration
from fedshift.experiment.expectation import Estimate

SHARES = (8, 4, 2)  # of all rounds: an eighth, a quarter, a half
KEPT = (4, 2, 1)  # settings that go on after each
TUNED = 3  # methods whose other settings are tried
FEWEST = 8  # rounds of a run, below which an eighth is nothing


@dataclass(frozen=True)
class Schedule:
    """The rounds of each rung and of a whole run, and how often each is played."""

    rounds: int
    rungs: tuple[int, ...]
    lanes: int  # runs of each setting in every rung
    seeds: int  # runs of those that are played to the end

    @classmethod
    def of(cls, rounds: int, every: int, *, lanes: int, seeds: int) -> Schedule:
        """Rungs at scored rounds, which come every ``every`` rounds."""
        rungs = tuple(scored_round(rounds / share, rounds, every) for share in SHARES)
        return cls(rounds, rungs, lanes, seeds)

    def searched(self, methods: int, others: int, baselines: int) -> int:
        """Rounds before the end: of so many methods (baselines included), and other settings."""
        first, second, third = self.rungs
        kept = [min(count, methods - baselines + others) for count in KEPT]
        on = (kept[0] + baselines) * (second - first) + (kept[1] + baselines) * (third - second)
        return self.lanes * ((methods + others) * first + on)

    def confirmed(self, methods: int) -> int:
        """Rounds of the end, for so many methods (baselines included)."""
        return self.seeds * methods * self.rounds

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)


def scored_round(wanted: float, rounds: int, every: int) -> int:
    """The scored round that is nearest to one, from the first to the last.

    >>> scored_round(3.75, 30, 3), scored_round(1.0, 8, 1), scored_round(5, 6, 4)
    (3, 1, 4)
    """
    if rounds <= every:
        return rounds
    return min(rounds, max(every, every * math.floor(wanted / every + 0.5)))


def often_enough(rounds: int, every: int) -> int:
    """How often rounds are scored so that an eighth of a run ends with a scored one.

    >>> often_enough(16, 4), often_enough(30, 3), often_enough(5, 3)
    (2, 3, 1)
    """
    return max(1, min(every, rounds // SHARES[0]))


def affordable(
    schedule: Schedule, estimates: Sequence[Estimate], others: int, seconds: float, workers: int
) -> int:
    """The rounds that fit into a time, at most the schedule's.

    What a method takes is what its warm-up says; those that go on are taken to be like the mean.
    """
    each = sum(e.seconds for e in estimates) / len(estimates) / schedule.rounds
    played = schedule.searched(len(estimates), others, 1) + schedule.confirmed(2)
    needed = each * played / workers
    fitting = math.floor(schedule.rounds * seconds / needed)
    if fitting >= schedule.rounds:
        return schedule.rounds
    if fitting < FEWEST:
        least = needed * FEWEST / schedule.rounds
        raise ConfigError(
            f"{duration(max(0.0, seconds))} are left after the warm-up, and a comparison of "
            f"{FEWEST} rounds takes about {duration(least)}; allow more time, or take a smaller "
            "scenario",
            f"minutes={math.ceil(least / 60) + 1}",
        )
    return fitting
