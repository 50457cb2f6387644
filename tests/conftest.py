from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

from fedshift.base.logs import log

torch.set_num_threads(1)
EXAMPLES = 100 if os.environ.get("FEDSHIFT_TEST_ALL") == "1" else 15
settings.register_profile("default", deadline=None, derandomize=True, max_examples=EXAMPLES)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def plain_log():
    """Undo what a test does to our logger: the command line and Flower's apps add handlers."""
    kept = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.level, log.propagate = kept[0], kept[1], kept[2]


REPEATING = {"contract", "hostile", "chaos", "fuzz", "examples"}  # folders


def pytest_collection_modifyitems(config, items):
    """Leave out further cases of what others show, unless FEDSHIFT_TEST_ALL asks for all.

    Tests that play whole runs of what others have shown in detail are not counted in coverage:
    counting takes half as long again as running. pytest-cov fails on that mark where it counts
    nothing.
    """
    counted = bool(config.getoption("cov_source", None)) and not config.getoption("no_cov", False)
    for item in items:
        if counted and item.path.parent.name in REPEATING:
            item.add_marker("no_cover")
    if os.environ.get("FEDSHIFT_TEST_ALL") == "1":
        return
    further = [item for item in items if item.get_closest_marker("exhaustive")]
    config.hook.pytest_deselected(items=further)
    items[:] = [item for item in items if item not in set(further)]
