"""Reference rows against scikit-learn and NumPy, on a table with a planted signal."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from fedshift.cli import main
from fedshift.data.library.datasets import add
from fedshift.engine.federation import federate
from fedshift.experiment.compare import compare
from fedshift.experiment.scenario import find_scenario
from fedshift.report.load import load_comparison
from fedshift.testing import tiny_scenario


@pytest.fixture
def heart(tmp_path, monkeypatch) -> str:
    """Three hospitals; the label depends on two of four columns, which each site shifts."""
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    rng = np.random.default_rng(1)
    n = 240
    x, site = rng.normal(size=(n, 4)), np.arange(n) % 3
    y = (x[:, 0] - x[:, 1] + 0.5 * rng.normal(size=n) > 0.3).astype(int)
    names = np.array(["ch", "hu", "va"])[site]
    np.savez(
        tmp_path / "heart.npz",
        x=(x + site[:, None] * 0.1).astype(np.float32),
        y=y,
        domain=names,
        split=np.where(np.arange(n) % 5 == 0, 1, np.where(np.arange(n) % 5 == 1, 2, 0)),
    )
    add("heart", tmp_path / "heart.npz")
    return "heart"


def test_references_are_what_scikit_learn_and_numpy_say(heart, tmp_path: Path):
    found = compare("fedavg", heart, rounds=2, references=True, workers=1, quiet=True, unseen="va")
    assert found.methods == [
        "local",
        "fedavg",
        "reference: pooled",
        "reference: majority class",
        "reference: logistic regression",
        "reference: gradient boosting",
    ]
    made = federate(find_scenario(heart, unseen="va"), 0)
    sites = [s.data.train for s in made.sites.values()]
    x = np.concatenate([s.x[s.rows].numpy() for s in sites])
    y = np.concatenate([s.labels.numpy() for s in sites])
    scaler = StandardScaler().fit(x)
    model = LogisticRegression(max_iter=1000).fit(scaler.transform(x), y)
    common = np.bincount(y).argmax()
    results = {r.label: r for r in found.results}
    for name, splits in [*made.domains.items(), ("va", made.unseen)]:
        test = splits.test
        inputs, labels = test.x[test.rows].numpy(), test.labels.numpy()
        protocol = "unseen" if name == "va" else "personal"
        of = {
            k: results[f"reference: {k}"].outcome(protocol).metrics.domains[name]
            for k in ("majority class", "logistic regression")
        }
        right = model.predict(scaler.transform(inputs)) == labels
        assert of["logistic regression"] == pytest.approx(100 * right.mean())
        assert of["majority class"] == pytest.approx(100 * (labels == common).mean())
    pooled = results["reference: pooled"]
    assert pooled.accuracy("personal") == pooled.accuracy("global")
    assert pooled.summary["bytes"]["train"] == {"up": 0, "down": 0}
    assert list(pooled.outcome("unseen").metrics.domains) == ["va"]
    assert results["reference: logistic regression"].accuracy("global") > 75


def test_references_of_images_have_no_table_models_and_are_kept(tmp_path: Path):
    scenario = tiny_scenario(rounds=1)
    first = compare("fedavg", scenario, references=True, out=tmp_path, workers=1, quiet=True)
    assert first.methods == ["local", "fedavg", "reference: pooled", "reference: majority class"]
    # the tiny patterns have four classes, equally often
    assert first.results[-1].accuracy("global") == 25.0
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("summary.json")}
    assert len(stamps) == 5  # the pooled run itself is in a folder of its own
    again = compare("fedavg", scenario, references=True, out=tmp_path, workers=1, quiet=True)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("summary.json")} == stamps
    assert [r.summary for r in again.results] == [r.summary for r in first.results]
    assert sorted(load_comparison(tmp_path).methods) == sorted(first.methods)


def test_the_options_are_typed(heart, tmp_path: Path, capsys):
    out = str(tmp_path / "runs")
    words = ["--method", "fedavg,local", "--scenario", heart, "--rounds", "1", "--workers", "1"]
    with pytest.raises(SystemExit) as stop:
        main(["compare", *words, "--out", out, "--references", "--against", "local"])
    told = capsys.readouterr()
    assert (stop.value.code or 0) == 0, told.err
    assert "difference to local" in told.out
    assert "reference: gradient" in told.out
    assert max(map(len, told.out.splitlines())) <= 80 + len(out)  # the report's path is whole
    with pytest.raises(SystemExit):
        main(["show", out, "--against", "local"])
    assert "difference to local" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["report", out, "--format", "markdown", "--against", "local"])
    assert "| minus local |" in capsys.readouterr().out
    for form, sign in (("csv", "avg minus local"), ("latex", "minus local &")):
        with pytest.raises(SystemExit):
            main(["report", out, "--format", form, "--against", "local"])
        assert sign in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["report", out, "--against", "local"])
    assert "difference to local" in (tmp_path / "runs" / "report.html").read_text()
    names = [json.loads(p.read_text())["run"]["method"] for p in Path(out).glob("*/config.json")]
    assert "reference: logistic regression" in names
