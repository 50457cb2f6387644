"""Predictions carry ids and a score of how unlike the training data an input is."""

from __future__ import annotations

import csv

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy.special import logsumexp

import fedshift
from fedshift.base.errors import DataError
from fedshift.cli import main
from fedshift.experiment.raw import energy_of


def test_the_energy_is_that_of_the_logits(images):
    model = fedshift.load_model(images, "dark-0")
    x = torch.randn(6, 3, 8, 8)
    with torch.no_grad():
        logits = model.net(x).logits.double().numpy()
    found = model.predict(x)
    np.testing.assert_allclose(found.energy, -logsumexp(logits, axis=1))
    assert found.ids == [1, 2, 3, 4, 5, 6]
    labels = energy_of(torch.from_numpy(logits), labels=True)
    np.testing.assert_allclose(labels, -np.log1p(np.exp(logits)).sum(1))


def test_a_data_frame_comes_back_under_its_own_index(table):
    run, raw = table
    model = fedshift.load_model(run)
    frame = pd.read_csv(raw / "east.csv", dtype={"ward": str}).set_index("patient")
    found = model.predict_frame(frame)
    assert found.index.equals(frame.index)
    assert list(found.columns) == ["prediction", "p(0)", "p(1)", "energy"]
    assert found["prediction"].tolist() == list(model.predict(raw / "east.csv"))
    assert model.predict(frame).ids == frame.index.tolist()


def test_rows_and_files_keep_their_names(table, images, tmp_path):
    run, raw = table
    model = fedshift.load_model(run)
    named = [f"east{i}" for i in range(70)]
    assert model.predict(raw / "east.csv", ids="patient").ids == named
    rows = pd.read_csv(raw / "east.csv", dtype=str).to_dict("records")
    assert model.predict(rows[:2], ids="patient").ids == named[:2]
    with pytest.raises(DataError, match="has no column 'nobody' to name its rows"):
        model.predict(raw / "east.csv", ids="nobody")
    for name in ("b/2.png", "a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / name)
    seen = fedshift.load_model(images, "dark-0").predict(tmp_path)
    assert seen.ids == ["a.png", "b/2.png"]


def test_the_command_writes_ids_probabilities_and_energy(table, tmp_path, capsys):
    run, raw = table
    out = tmp_path / "out.csv"
    with pytest.raises(SystemExit) as code:
        main(["predict", str(run), str(raw / "west.csv"), "-o", str(out), "--id", "patient"])
    assert code.value.code == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert list(rows[0]) == ["id", "prediction", "p(0)", "p(1)", "energy"]
    assert [row["id"] for row in rows] == [f"west{i}" for i in range(70)]
    assert all(float(r["p(0)"]) + float(r["p(1)"]) == pytest.approx(1) for r in rows)
    assert "70 predictions of round 1" in capsys.readouterr().out
