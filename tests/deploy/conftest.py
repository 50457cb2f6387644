from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import fedshift.transports.flower.quiet  # noqa: F401  before Flower is imported

sys.path.insert(0, str(Path(__file__).parent))  # for the helper module of these tests
