"""Registers a paper's scenario at its scales: the paper's, bench, and laptop.

``laptop`` is a quick look of a minute or two. ``bench`` is what claims and rankings use: FedAvg
reaches its plateau in a few minutes on one core, and nothing is smaller that a method's point rests
on. Its image size, width, rounds, rate and decay are chosen for FedAvg on validation data
(``scripts/bench_scale.py``) and are the same for all methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedshift import ConfigError, Scenario, register_scenario
from fedshift.core.scenario import Scale, scaled


def of_paper(
    name: str,
    what: str,
    paper: str,
    *,
    values: Mapping[str, Any],
    laptop: Mapping[str, Any],
    bench: Mapping[str, Any] | None = None,
) -> None:
    """Register the scenario ``name`` at all scales; None: nothing is chosen for bench yet."""

    def build(scale: Scale = "laptop") -> Scenario:
        smaller = {"laptop": laptop, "bench": bench, "paper": {}}[scale]
        if smaller is None:
            raise ConfigError(f"scenario {name!r} has no scale bench; take laptop or paper")
        return scaled(Scenario(name=name, **values), scale, **smaller)

    build.__doc__ = what
    register_scenario(name, paper=paper)(build)


def leave_out(target: str, domains: tuple[str, ...]) -> dict[str, Any]:
    """Train on all domains but ``target``, which is unseen."""
    return {"domains": tuple(d for d in domains if d != target), "unseen": target}
