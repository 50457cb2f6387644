"""The configuration of a run: method, scenario and seed, complete enough to repeat the run.

``experiment`` makes one per run, ``runs`` writes it to the run directory, and worker processes and
Flower apps rebuild the method from it. The folder's name contains a hash of the content, so that a
sweep recognises what is finished. Nothing that leaves the numbers unchanged (transport, workers,
machine) may enter that hash.
"""

from __future__ import annotations

import hashlib
import json
import platform
from typing import Any

import numpy as np
import torch
from pydantic import Field, ValidationError

from fedshift.base.errors import ConfigError, RunError
from fedshift.base.version import __version__
from fedshift.core.method import Method
from fedshift.core.registry import SCENARIOS
from fedshift.core.registry import build as build_method
from fedshift.core.scenario import Frozen, Scenario, one_line

FORMAT = 2  # of run directories; 1 (before 0.2) has older names in its scenario and is read too

# Options of a scenario that every name covers; a later one enters it only if it is not the default,
# so that an option more does not rename the runs that do not use it.
NAMED = frozenset(
    word
    for line in (
        "name scale changed data data_options domains unseen public split unseen_split partition",
        "pixels augment backbone backbone_options rounds epochs steps batch_size optimiser lr",
        "momentum weight_decay clip lr_decay precision optimiser_state bn weights",
        "clients_per_round fraction protocols selection scored evaluate_every analyses",
        "private_at_new_site allow",
    )
    for word in line.split()
)


class RunConfig(Frozen):
    """One run: ``method`` is the expression as typed, ``composition`` the method built from it."""

    format: int = FORMAT
    method: str  # expression, or the label of a Method object
    settings: dict[str, Any] = Field(default_factory=dict)
    without: tuple[str, ...] = ()
    composition: dict[str, Any]
    replayable: bool = True  # False: the method came as an object and must be given again
    scenario: Scenario
    seed: int = 0
    data: str = ""  # fingerprint of the data; empty if they are at remote sites, or in old runs

    @property
    def label(self) -> str:
        """The method with its changed settings and removed parts, as tables print it."""
        changed = [f"{k}={v}" for k, v in self.settings.items()]
        removed = [f"without {name}" for name in self.without]
        return ", ".join([self.method, *changed, *removed])

    @property
    def scenario_label(self) -> str:
        """The scenario with what differs from the registered one, as tables print it."""
        known = SCENARIOS.entries().get(self.scenario.name)
        if known is None:
            return self.scenario.name
        scale = {"scale": self.scenario.scale} if self.scenario.scale else {}
        base, own = flat(known.build(**scale)), compared(self.scenario, flat(self.scenario))
        changed = [f"{k}={v}" for k, v in own.items() if v != base.get(k)]
        return f"{self.scenario.name}[{', '.join(changed)}]" if changed else self.scenario.name

    @property
    def fingerprint(self) -> str:
        """Hash of everything that can change a result; the scenario's summary text cannot.

        Runs from before data had fingerprints have none, and keep the names that they had.
        """
        content = {
            "format": self.format,
            "composition": self.composition,
            "scenario": named_options(self.scenario),
            "seed": self.seed,
        } | ({"data": self.data} if self.data else {})
        text = json.dumps(content, sort_keys=True).encode()
        return hashlib.blake2b(text, digest_size=6).hexdigest()

    @property
    def name(self) -> str:
        """Folder name: readable, and unique by content."""
        words = "".join(c if c.isalnum() else "-" for c in self.method.replace(" ", ""))
        name = self.scenario.name.replace("/", "-")
        return f"{words}-{name}-s{self.seed}-{self.fingerprint}"

    def build(self) -> Method:
        """Build the method from its expression; an error if the run was given a Method object."""
        if not self.replayable:
            raise RunError(
                f"run {self.name} was made from a Method object; resume it from Python with "
                "fedshift.run(method, ..., resume=True)"
            )
        return build_method(self.method, **self.settings).without(*self.without)


def named_options(scenario: Scenario) -> dict[str, Any]:
    """The options of a scenario that enter a run's name, as JSON."""
    values = scenario.model_dump(mode="json", exclude={"summary"})
    chosen = scenario.model_dump(mode="json", exclude_defaults=True)
    return {key: value for key, value in values.items() if key in NAMED or key in chosen}


def flat(scenario: Scenario) -> dict[str, Any]:
    """Options of a scenario as one flat dictionary; those of the partition as ``partition.key``."""
    values = scenario.model_dump(exclude={"name", "summary", "partition", "changed"})
    plan = scenario.partition.model_dump()
    return values | {f"partition.{key}": value for key, value in plan.items()}


def compared(scenario: Scenario, options: dict[str, Any]) -> dict[str, Any]:
    """Its options without the rounds, if another budget is equal and each method has its own."""
    return {k: v for k, v in options.items() if k != "rounds" or scenario.equal == "rounds"}


def configure(
    method: str | Method,
    scenario: Scenario,
    *,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
) -> tuple[RunConfig, Method]:
    """A run's configuration and its method, from an expression or from a Method object."""
    if not isinstance(method, str | Method):
        raise ConfigError(
            f"the method is a {type(method).__name__}; a run has one, a name or a Method: compare "
            "takes several"
        )
    settings = settings or {}
    words = isinstance(method, str)
    if isinstance(method, Method):
        whole = method.with_(**settings).without(*without)
        names = [p.name for p in method.parts] or [method.aggregate.name]
        label = " + ".join(names)
    else:
        whole = build_method(method, **settings).without(*without)
        label = method
    config = RunConfig(
        method=label,
        settings=settings,
        without=without,
        composition=whole.describe(),
        replayable=words,
        scenario=scenario,
        seed=seed,
    )
    return config, whole


def parse_config(value: Any, source: str) -> RunConfig:
    """Validate a configuration read from the file ``source``; raise one line if it does not fit."""
    try:
        held = dict(value["run"])
        if held.get("format", FORMAT) not in (1, FORMAT):
            raise RunError(
                f"{source} has format {held['format']}, and this version reads 1 and {FORMAT}; "
                "install a newer fedshift"
            )
        return RunConfig.model_validate(held | {"format": FORMAT})
    except (ValueError, KeyError, TypeError) as error:
        text = one_line(error) if isinstance(error, ValidationError) else repr(error)
        raise RunError(f"{source} is not a run configuration we can read: {text}") from None


def environment() -> dict[str, Any]:
    """Versions and thread count, which are recorded with a run but do not enter its name."""
    return {
        "fedshift": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }
