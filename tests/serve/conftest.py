"""Two short runs that the tests of this folder share: images, and a table with every kind."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import fedshift
from fedshift.data.library.datasets import add
from fedshift.testing import tiny_scenario


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FedBN: a model per site, and none for all."""
    out = tmp_path_factory.mktemp("images") / "run"
    fedshift.run("fedbn", tiny_scenario(rounds=1), out=out, quiet=True)
    return out


def visits(root: Path) -> Path:
    """Two sites with gaps, a decimal comma in quotes, a date, a code, many names and a text."""
    rng = np.random.default_rng(4)
    root.mkdir()
    for name in ("east", "west"):
        with (root / f"{name}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["patient", "age", " lab", "since", "pain", "ward", "note", "ill"])
            for i in range(70):
                age, lab = rng.normal(50, 9), rng.normal(1500, 400)
                pain = rng.choice(["mild", "bad", "?"])
                ill = int((age - 50) / 9 + (lab - 1500) / 400 + (pain == "bad") > 0.5)
                out.writerow([
                    f"{name}{i}", "NA" if rng.random() < 0.1 else f"{age:.1f}", f"{lab:,.1f}",
                    f"20{rng.integers(10, 24)}-0{rng.integers(1, 9)}-1{rng.integers(0, 9)}",
                    pain, f"00{rng.integers(1, 90)}",
                    " ".join(rng.choice(["cough", "fever", "Fever", "no", "übel", "x"], 5)), ill,
                ])  # fmt: skip
    return root


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of FedAvg on a table, and the folder of the raw files."""
    root = tmp_path_factory.mktemp("table")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSHIFT_HOME", str(root / "home"))
        raw = visits(root / "raw")
        add("visits", raw, table={
            "label": "ill", "drop": "patient", "categorical": "ward, pain", "text": "note",
            "words": 16, "date": "since", "one_hot": 20, "hashed": 8,
        })  # fmt: skip
        net = {"hidden": 8, "features": 4, "norm": "none"}
        fedshift.run("fedavg", "visits", rounds=1, out=root / "run", quiet=True,
                     backbone_options=net)  # fmt: skip
    return root / "run", raw
