"""Registers a paper's scenario: its values at paper scale, and what laptop scale changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedshift import Scenario, register_scenario
from fedshift.core.scenario import Scale, scaled


def of_paper(
    name: str, what: str, paper: str, *, values: Mapping[str, Any], laptop: Mapping[str, Any]
) -> None:
    """Register the scenario ``name`` at both scales."""

    def build(scale: Scale = "laptop") -> Scenario:
        return scaled(Scenario(name=name, **values), scale, **laptop)

    build.__doc__ = what
    register_scenario(name, paper=paper)(build)


def leave_out(target: str, domains: tuple[str, ...]) -> dict[str, Any]:
    """Train on all domains but ``target``, which is unseen."""
    return {"domains": tuple(d for d in domains if d != target), "unseen": target}
