"""A loaded model predicts from raw files as it did from prepared data, which may be gone."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import fedshift
from fedshift.base.errors import DataError
from fedshift.data.catalogue import Variant
from fedshift.data.library.datasets import add
from fedshift.data.library.loaded import load
from fedshift.data.library.prepare import store_of

NET = {"hidden": 8, "features": 4, "norm": "none"}


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def clinics(root: Path, target=lambda z: int(z > 0)) -> Path:
    """Two sites: a number with gaps, one in another unit at the second, a category, a code."""
    rng = np.random.default_rng(1)
    root.mkdir()
    for k, name in enumerate(("east", "west")):
        with (root / f"{name}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["age", "lab", "pain", "grade", "ill"])
            for _ in range(80):
                age, lab = rng.normal(50, 9), rng.normal(3, 1)
                pain, grade = rng.choice(["mild", "bad"]), rng.integers(1, 4)
                z = (age - 50) / 9 + (lab - 3) + (pain == "bad") - 0.5
                cells = ["?" if rng.random() < 0.1 else f"{age:.1f}", f"{lab * (1 + 999 * k):.3f}"]
                out.writerow([*cells, pain, f"{grade}.0", target(z)])
    return root


def trained(tmp_path: Path, root: Path, method: str = "fedavg", **table: object):
    card, _ = add("clinics", root, table={"label": "ill", "categorical": "grade"} | table)
    out = tmp_path / "run"
    fedshift.run(method, "clinics", rounds=2, lr=0.1, out=out, quiet=True, backbone_options=NET)
    return card, out


def prepared_logits(out: Path, site: str, name: str):
    """Of the prepared rows of a site, with the net alone."""
    model = fedshift.load_model(out, site)
    with torch.no_grad():
        return model, model.net(load("clinics")[name].x.float()).logits


@pytest.mark.parametrize("statistics", ["federated", "site"])
def test_raw_files_are_predicted_as_the_prepared_rows_after_those_are_gone(
    tmp_path, home, statistics
):
    root = clinics(tmp_path / "raw")
    card, out = trained(tmp_path, root, statistics=statistics)
    expected = {name: prepared_logits(out, f"{name}-0", name)[1] for name in ("east", "west")}
    shutil.rmtree(home)
    for name, logits in expected.items():
        model = fedshift.load_model(out, f"{name}-0")
        found = model.predict(root / f"{name}.csv")
        assert found == [("0", "1")[i] for i in logits.argmax(1).tolist()]
        torch.testing.assert_close(
            found.probabilities, logits.double().softmax(1), rtol=0, atol=1e-6
        )
        assert found.classes == ("0", "1")
        frame = pd.read_csv(root / f"{name}.csv", na_values="?")
        assert model.predict(frame) == found
        rows = frame.drop(columns="ill").sample(frac=1, axis=1, random_state=0).to_dict("records")
        again = model.predict(rows[:3])
        assert again == found[:3]
        assert again.columns()["p(1)"] == [round(float(p), 6) for p in found.probabilities[:3, 1]]
    assert card.name == "clinics"


def test_a_new_site_brings_its_own_statistics_where_each_site_has_them(tmp_path, home):
    root = clinics(tmp_path / "raw")
    _, out = trained(tmp_path, root, statistics="site")
    model = fedshift.load_model(out)
    with pytest.raises(DataError, match="own statistics, and no site is named; name one of east, "):
        model.predict(root / "east.csv")
    with pytest.raises(DataError, match=r"'north' has none; .* give rows of the new site as refer"):
        model.predict(root / "east.csv", "north")
    frame = pd.read_csv(root / "west.csv", na_values="?")
    millis = frame.assign(lab=frame["lab"] * 1000)  # the same rows in a third unit
    own = model.predict(millis, "north", reference=millis)
    plain = model.predict(frame, "north", reference=frame)
    torch.testing.assert_close(own.probabilities, plain.probabilities, rtol=0, atol=1e-4)
    assert model.predict(frame, "west-0") == model.predict(frame, "west")


def test_missing_columns_are_named_and_odd_cells_are_told(tmp_path, home, caplog):
    root = clinics(tmp_path / "raw")
    _, out = trained(tmp_path, root)
    model = fedshift.load_model(out)
    with pytest.raises(DataError, match="has no column age, lab; the model needs it, and the"):
        model.predict([{"pain": "bad", "grade": 1}])
    with pytest.raises(DataError, match="int is no table; give a csv, parquet or xlsx file"):
        model.predict(3)
    row = {"age": 50, "lab": "high", "pain": "bad", "grade": 2, "ill": None}
    caplog.clear()
    found = model.predict([row])
    assert "column 'lab' has cells that are no numbers (1, such as 'high'): they" in caplog.text
    assert found == model.predict([row | {"lab": "?", "pain": " bad "}])
    unknown = model.predict([row | {"pain": "never seen"}])
    assert len(unknown) == 1
    with pytest.raises(DataError, match=r"inputs have shape \(2,\); the model takes"):
        model.predict(np.zeros((1, 2), np.float32))
    (out / "preparation.json").unlink()  # as in a run of an earlier version
    with pytest.raises(DataError, match="this run has no preparation of tables"):
        fedshift.load_model(out).predict([row])


def test_a_number_is_predicted_in_the_targets_unit(tmp_path, home):
    root = clinics(tmp_path / "raw", target=lambda z: f"{170 + 10 * z:.2f}")
    _, out = trained(tmp_path, root)
    model, outputs = prepared_logits(out, "east-0", "east")
    found = model.predict(root / "east.csv")
    shift, scale = model.config.scenario.target
    np.testing.assert_allclose(found, shift + scale * outputs.squeeze(1).numpy(), rtol=1e-5)
    truth = pd.read_csv(root / "east.csv")["ill"]
    assert abs(np.mean(found) - truth.mean()) < truth.std()  # about 170, not about 0
    assert found.probabilities is None
    assert list(found.columns()) == ["id", "prediction"]


def test_several_labels_are_named(tmp_path, home):
    root = clinics(tmp_path / "raw")
    for path in root.iterdir():
        frame = pd.read_csv(path)
        frame.assign(cough=frame["ill"], fever=1 - frame["ill"]).drop(columns="ill").to_csv(
            path, index=False
        )
    _, out = trained(tmp_path, root, label="cough,fever")
    found = fedshift.load_model(out).predict(root / "east.csv")
    for names, row in zip(found, found.probabilities.tolist(), strict=True):
        expected = [n for n, p in zip(("cough", "fever"), row, strict=True) if p > 0.5]
        assert list(names) == expected
    assert found.columns()["prediction"][0] == ", ".join(found[0])


def photos(root: Path, depth: int = 8) -> Path:
    rng = np.random.default_rng(0)
    for domain in ("lab", "ward"):
        for label, level in (("dark", 0.01), ("light", 0.7)):
            (root / domain / label).mkdir(parents=True)
            for i in range(12):
                values = (level + 0.2 * rng.random((12, 12))) * (2**depth - 1)
                array = values.astype(np.uint8 if depth == 8 else np.uint16)
                Image.fromarray(array).save(root / domain / label / f"{i}.png")
    return root


@pytest.mark.parametrize("depth", [8, 12])
def test_images_are_read_with_the_size_range_and_scaling_of_training(tmp_path, home, depth):
    root = photos(tmp_path / "photos", depth)
    card, _ = add("photos", root, size=8)
    out = tmp_path / "run"
    fedshift.run(
        "fedavg", "photos", rounds=1, pixels="unit", out=out, quiet=True,
        data_options={"size": 8}, backbone_options={"width": 4},
    )  # fmt: skip
    stored = load("photos", json.dumps({"size": 8}))["lab"]
    model = fedshift.load_model(out, "lab-0")
    with torch.no_grad():
        expected = model.net(stored.x.permute(0, 3, 1, 2).float() / 255).logits.double().softmax(1)
    assert store_of(card, Variant(8)).exists()
    shutil.rmtree(home)
    found = model.predict(root / "lab")
    torch.testing.assert_close(found.probabilities, expected, rtol=0, atol=1e-5)
    dark = sorted((root / "lab" / "dark").iterdir())
    some = model.predict(dark[:2])  # alone they would look like images of fewer bits
    torch.testing.assert_close(some.probabilities, found.probabilities[:2])
    assert model.predict(dark[0])[0] in ("dark", "light")
    (root / "lab" / "broken.png").write_bytes(b"no image")
    (root / "lab" / "empty.png").write_bytes(b"")
    for raw, words in (
        (root / "lab", r"broken\.png: is not an image.*; 1 more cannot be read: \S+empty\.png$"),
        (tmp_path / "nowhere", "is no image and no folder with images"),
        ([3], "list is no image; give a folder, a file"),
        (pd.DataFrame(), "the model takes images, not a csv"),
    ):
        with pytest.raises(DataError, match=words):
            model.predict(raw)


def test_the_command_writes_predictions_as_the_documentation_says(tmp_path, home, capsys):
    from fedshift.cli.main import main

    root = clinics(tmp_path / "raw")
    _, out = trained(tmp_path, root, statistics="site")
    expected = fedshift.load_model(out, "east-0").predict(root / "east.csv")

    def typed(*words: object) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in ("predict", out, *words)])
        both = capsys.readouterr()
        return end.value.code, both.out + both.err

    file = tmp_path / "predictions.csv"
    code, text = typed(root / "east.csv", "--site", "east-0", "--out", file)
    assert (code, text.startswith("80 predictions of round")) == (0, True)
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    assert [row["prediction"] for row in rows] == expected
    code, text = typed(root / "east.csv", "--site", "east-0", "--json")
    assert json.loads(text)["prediction"] == expected
    east = root / "east.csv"
    code, text = typed(east, "--site", "new", "--reference", east)
    assert (code, text.splitlines()[0]) == (0, "id,prediction,p(0),p(1),energy")
    code, text = typed(east)
    assert code == 2
    assert "each site's own statistics, and no site is named" in " ".join(text.split())
