"""Runs and sites that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedshift
from fedshift.testing import tiny, tiny_scenario


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    """A run of FedAvg: one model for all."""
    out = tmp_path_factory.mktemp("fedavg") / "run"
    fedshift.run("fedavg", tiny_scenario(rounds=2), out=out, quiet=True)
    return out


@pytest.fixture(scope="session")
def private(tmp_path_factory) -> Path:
    """A run of FedBN: a model per site, and none for all."""
    out = tmp_path_factory.mktemp("fedbn") / "run"
    scenario = tiny_scenario(rounds=12, selection="last", private_at_new_site="refuse")
    fedshift.run("fedbn", scenario, out=out, quiet=True)
    return out


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """40 images of the look that nobody trained on, with labels."""
    path = tmp_path_factory.mktemp("site") / "tinted.npz"
    tinted = tiny()["tinted"]
    np.savez(path, x=tinted.x.numpy(), y=tinted.y.numpy(), classes=list("abcd"))
    return path
