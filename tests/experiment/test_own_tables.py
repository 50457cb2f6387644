"""From raw csv files to a trained model: as good as a pipeline that may pool all rows."""

from __future__ import annotations

import csv
import json
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
from fedshift.data.sources.tables import agreement
from fedshift.data.store import read_ids
from fedshift.runs.what_left import require_declared, what_left


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


NETS = {
    "linear": {},  # federated logistic regression
    "mlp": {"hidden": 16, "features": 8, "norm": "none"},
}


@pytest.mark.parametrize("backbone", NETS)
def test_a_federated_net_reaches_the_pooled_pipeline_within_its_error(tmp_path, backbone):
    root = hospitals(tmp_path / "raw")
    card, report = add("four-hospitals", root, table={"label": "num"})
    assert report["left_out"] == []
    assert sum(len(d.y) for d in load("four-hospitals").values()) == 910
    result = fedshift.run(
        "fedavg",
        "four-hospitals",
        split=Given(),
        rounds=12,
        lr=0.1,
        backbone=backbone,
        backbone_options=NETS[backbone],
        quiet=True,
    )
    expected, error = pooled(root, card)
    assert expected > 75  # there is something to learn
    assert result.accuracy("global", "last") > expected - error


def test_two_commands_lead_from_raw_files_to_intervals_auroc_and_references(tmp_path, capsys):
    from fedshift.cli.main import main

    root, out = hospitals(tmp_path / "raw"), tmp_path / "runs"
    for words in (
        ["data", "add", "heart", root, "--label", "num"],
        ["compare", "--method", "fedavg", "--scenario", "heart", "--references", "--backbone",
         "linear", "--rounds", "3", "--workers", "1", "--out", out, "--quiet"],
    ):  # fmt: skip
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        assert end.value.code == 0, capsys.readouterr().err
    assert sum(len(d.y) for d in load("heart").values()) == 910
    page = (out / "report.html").read_text()
    rows = {"majority class", "logistic regression", "gradient boosting", "pooled"}
    for text in (*(f"reference: {row}" for row in rows), "local", "AUROC (%)", "95 % interval"):
        assert text in page, text


@pytest.mark.parametrize("statistics", ["federated", "site"])
def test_the_ledger_declares_what_each_site_told_for_the_preparation(
    tmp_path, statistics, monkeypatch
):
    told: dict[str, list[int]] = {}
    packed = agreement.packed

    def noted(answer):
        told.setdefault("bytes", []).append(len(packed(answer)))
        told.setdefault("text", []).append(packed(answer).decode())
        return packed(answer)

    monkeypatch.setattr(agreement, "packed", noted)
    root, out = hospitals(tmp_path / "raw"), tmp_path / "run"
    add("heart", root, table={"label": "num", "statistics": statistics})
    run = {"backbone": "linear", "rounds": 1, "out": out, "quiet": True}
    fedshift.run("fedavg", "heart", **run)
    left = [one for one in what_left(out) if one.kind == "preparation"]
    assert [(one.round, one.client) for one in left] == [(0, f"{name}-0") for name in "abcd"]
    pairs = zip(told["bytes"][::2], told["bytes"][1::2], strict=True)
    assert [one.bytes for one in left] == [sum(pair) for pair in pairs]
    sums = "rows, missing cells, sum, sum of squares" in left[0].declared
    assert sums == (statistics == "federated")
    assert "names of categories" in left[0].declared
    second = json.loads(told["text"][1])  # hospital a's
    assert set(second["age"]) == (
        {"rows", "missing", "total", "squares", "whole", "bins"} if sums else {"missing"}
    )
    assert "typical" in (second["pain"]["counts"] if sums else second["pain"]["names"])
    assert not any("p00" in text for text in told["text"])  # nobody's id
    require_declared(what_left(out))
    lines = len((out / "ledger.jsonl").read_text().splitlines())
    fedshift.run("fedavg", "heart", resume=True, **run)
    assert len((out / "ledger.jsonl").read_text().splitlines()) == lines
