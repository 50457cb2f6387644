"""The files of examples/methods as plug-ins, and small stand-ins for what a part sees."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedshift import Batch, Output, Step
from fedshift.base.registry import import_file
from fedshift.core.objective import CLASSIFICATION
from fedshift.core.registry import build
from fedshift.testing import worker

FOLDER = Path(__file__).parents[2] / "examples" / "methods"


@pytest.fixture(scope="session", autouse=True)
def plugins():
    """Register every example."""
    for path in sorted(FOLDER.glob("*.py")):
        import_file(path)


@pytest.fixture
def part():
    """The only part of a method: ``part("example-fedntd[beta=0]")``."""
    return lambda expression: build(expression).parts[0]


@pytest.fixture
def stub():
    """As much of a client as most hooks see, with a fixed generator."""

    def make(**given):
        generator = torch.Generator().manual_seed(0)
        common = {
            "state": defaultdict(dict),
            "scratch": defaultdict(dict),
            "task": CLASSIFICATION,
            "generator": lambda name: generator,
        }
        return SimpleNamespace(**(common | given))

    return make


@pytest.fixture
def step_of():
    """A step with given logits, features and targets; the inputs do not matter."""

    def make(logits, y, features=None):
        z = torch.zeros(len(y), 3) if features is None else torch.as_tensor(features)
        batch = Batch(torch.zeros(len(y), 2), torch.as_tensor(y))
        return Step(batch, Output(torch.as_tensor(logits), z), "model")

    return make


@pytest.fixture
def same():
    """Two trees hold the same bits under the same names."""

    def compare(a, b):
        assert a.keys() == b.keys()
        odd = [k for k in a if not torch.equal(a[k], b[k])]
        assert not odd, f"{odd} differ"

    return compare


@pytest.fixture
def state_of():
    """What one client keeps under one name: ``state_of(session, client, name)``."""

    def find(session, client, name):
        return worker(session).store.load(client, before=session.server.round + 1)[name]

    return find
