"""Any method with any settings of the scenario runs, or is refused in one line before it begins.

Drawn by a seed. ``FEDSHIFT_DRAWS=2000 pytest tests/experiment/test_any_settings.py`` draws more.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from fedshift.base.errors import FedshiftError
from fedshift.core.registry import METHODS
from fedshift.experiment.session import prepare
from fedshift.runs.summary import summarise
from fedshift.testing import configure, granting, play, tiny_scenario

PARTS = ("adapt-bn", "mixup", "sam", "top-k", "local-dp", "secure-aggregation", "median", "tent")
PROTOCOLS = ("personal", "personal-trained", "global", "unseen", "unseen-adapted")
VALUES: dict[str, tuple[Any, ...]] = {
    "unseen": (None,),
    "domains": (("dark",), ("dark", "bright", "tinted")),
    "bn": ("local", "recompute"),
    "private_at_new_site": ("initial", "mean", "none"),
    "selection": ("last", "last5", "oracle"),
    "scored": ("trained",),
    "optimiser": ("adam", "adamw"),
    "optimiser_state": ("keep",),
    "precision": ("bfloat16",),
    "clients_per_round": (1, 3),
    "weights": ("uniform",),
    "max_weight": (0.3, 1.0),
    "steps": (1, 5),
    "batch_size": (1, 3, 100),
    "class_balance": ("weights", "sampling"),
    "labelled": (0.2, 0.5),
    "clip": (0.1,),
    "evaluate_every": (2, 5),
    "backbone": ("mlp", "lenet", "linear"),
    "backbone_options": ({"norm": "group"}, {"width": 2}, {}),
    "attack": ("sign-flip", "label-flip", "backdoor"),
    "public": ("tiny",),
}


def drawn(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A method, often with another part, and some settings."""
    method = rng.choice(sorted(METHODS.entries()))
    if rng.random() < 0.3:
        method += f" + {rng.choice(PARTS)}"
    changes = {key: rng.choice(of) for key, of in VALUES.items() if rng.random() < 0.15}
    if rng.random() < 0.6:
        changes["protocols"] = tuple(rng.sample(PROTOCOLS, rng.randint(1, 3)))
    if "attack" in changes:
        changes["attackers"] = 0.3
    return method, changes


def played(method: str, changes: dict[str, Any]) -> bool:
    """Whether it could be played; two rounds and the summary of the run."""
    try:
        needed = granting(method)
        scenario = tiny_scenario(**{"rounds": 2, "epochs": 1} | needed | changes)
        config, whole = configure(method, scenario, seed=0)
        session = prepare(config, whole, None)
    except FedshiftError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "\n" not in refused
        return False
    play(session)
    assert set(summarise(config, session.record.metrics)["protocols"]) <= set(scenario.protocols)
    return True


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=() if name in ("fpl", "fedfa") else pytest.mark.exhaustive)
        for name in sorted(METHODS.entries())
    ],
)
def test_every_method_runs_in_bfloat16(method):
    assert played(method, {"precision": "bfloat16"})


@pytest.mark.parametrize("seed", range(int(os.environ.get("FEDSHIFT_DRAWS", "40")) // 20))
@pytest.mark.filterwarnings("ignore")
def test_any_settings_run_or_are_refused_before_the_first_round(seed):
    rng = random.Random(seed)
    ran = [played(*drawn(rng)) for _ in range(20)]
    assert any(ran)
