from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

from fedshift.base.logs import log

torch.set_num_threads(1)
settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def plain_log():
    """Undo what a test does to our logger: the command line and Flower's apps add handlers."""
    kept = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.level, log.propagate = kept[0], kept[1], kept[2]
