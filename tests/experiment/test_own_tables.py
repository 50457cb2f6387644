"""From raw csv files to a trained model: as good as a pipeline that may pool all rows."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fedshift
from fedshift.data.catalogue import Variant
from fedshift.data.dealing.splits import Given
from fedshift.data.library.datasets import add
from fedshift.data.library.loaded import load
from fedshift.data.library.prepare import store_of
from fedshift.data.store import read_ids


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))


def hospitals(root):
    """Planted signal in a number, a category and a number that most hospitals do not record."""
    rng = np.random.default_rng(0)
    root.mkdir()
    for k, (name, n) in enumerate({"a": 300, "b": 290, "c": 120, "d": 200}.items()):
        age, chol = rng.normal(54 + 2 * k, 9, n), rng.normal(240, 50, n)
        pain, ca = rng.choice(["typical", "atypical", "none at all"], n), rng.integers(0, 4, n)
        z = (age - 55) / 9 + 1.5 * (pain == "typical") - 0.5 + (ca - 1.5) + rng.logistic(0, 0.4, n)
        with (root / f"{name}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["patient_id", "age", "chol", "pain", "ca", "num"])
            for i in range(n):
                seen = rng.random() < (0.98 if k == 0 else 0.1)
                cells = (f"{age[i]:.1f}", "?" if k == 2 else f"{chol[i]:.0f}", pain[i])
                out.writerow([f"p{k}{i}", *cells, ca[i] if seen else "?", int(z[i] > 0)])
    return root


def pooled(root, card):
    """Accuracy in per cent of scikit-learn's pipeline on pooled rows, the mean over hospitals."""
    x, y, at = [], [], []
    for name, domain in load(card.name).items():
        with (root / f"{name}.csv").open() as file:
            lines = list(csv.DictReader(file))
        assert read_ids(store_of(card, Variant()) / name)[0] == f"{name}.csv:2"
        for line, split in zip(lines, domain.split.tolist(), strict=True):
            number = [math.nan if line[c] == "?" else float(line[c]) for c in ("age", "chol", "ca")]
            x.append([*number, line["pain"]])
            y.append(int(line["num"]))
            at.append((name, split))
    x, y, at = np.array(x, dtype=object), np.array(y), np.array(at)
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    model = make_pipeline(
        make_column_transformer((numbers, [0, 1, 2]), (OneHotEncoder(), [3])), LogisticRegression()
    )
    train = at[:, 1] == "0"
    right = model.fit(x[train], y[train]).predict(x) == y
    tests = {name: right[(at[:, 0] == name) & ~train] for name in "abcd"}
    share = np.mean([one.mean() for one in tests.values()])
    error = np.sqrt(sum(one.mean() * (1 - one.mean()) / len(one) for one in tests.values())) / 4
    return 100 * share, 100 * error


def test_a_federated_net_reaches_the_pooled_pipeline_within_its_error(tmp_path):
    root = hospitals(tmp_path / "raw")
    card, report = add("four-hospitals", root, table={"label": "num"})
    assert report["left_out"] == []
    assert sum(len(d.y) for d in load("four-hospitals").values()) == 910
    net = {"hidden": 16, "features": 8, "norm": "none"}
    result = fedshift.run(
        "fedavg",
        "four-hospitals",
        split=Given(),
        rounds=12,
        lr=0.1,
        backbone_options=net,
        quiet=True,
    )
    expected, error = pooled(root, card)
    assert expected > 75  # there is something to learn
    assert result.accuracy("global", "last") > expected - error
