"""An exported model answers as the trained one, without fedshift."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import logsumexp
from sklearn.utils import murmurhash3_32

import fedshift
from fedshift.base.errors import ConfigError, RunError
from fedshift.experiment.models import Model
from fedshift.serve import export as exporting
from fedshift.serve import standalone
from fedshift.serve.graph import Graph
from fedshift.testing import granting, tiny_scenario

onnxruntime = pytest.importorskip("onnxruntime")
BLOCKED = "import sys; sys.modules['fedshift'] = None; import runpy; sys.argv = sys.argv[1:]; "
ALONE = BLOCKED + "runpy.run_path(sys.argv[0], run_name='__main__')"


def alone(*args: str | Path) -> list[dict[str, str]]:
    """Run a script in a process that cannot import fedshift."""
    command = [sys.executable, "-W", "error", "-c", ALONE, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


@pytest.fixture(scope="module")
def onnx(images, tmp_path_factory) -> exporting.Exported:
    out = tmp_path_factory.mktemp("onnx") / "model.onnx"
    return fedshift.export(images, out, site="dark-0", quantise="int8")


def test_the_graph_scales_pixels_itself_and_takes_batches_of_any_size(images, onnx):
    model = fedshift.load_model(images, "dark-0")
    session = onnxruntime.InferenceSession(str(onnx.path))
    x = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8)
    inputs = torch.from_numpy((x / 255 - 0.5) / 0.25).float()  # "centred": mean 1/2, std 1/4
    with torch.no_grad():
        expected = model.net(inputs).logits.double()
    for size in (1, 4, 5):
        logits, p = session.run(["logits", "probabilities"], {"input": x[:size]})
        np.testing.assert_allclose(logits, expected[:size], rtol=0, atol=1e-5)
        np.testing.assert_allclose(p, expected[:size].softmax(1), rtol=0, atol=1e-6)


def test_the_kept_predictions_of_the_run_are_part_of_the_check(onnx):
    assert onnx.parity.tests == onnx.parity.kept > 0
    assert onnx.parity.inputs == onnx.parity.tests + 16
    assert onnx.parity.same == 1
    assert onnx.parity.difference < 1e-4
    assert "opset 18" in onnx.lines()[0]
    assert "against the run's kept predictions; outputs within" in onnx.lines()[1]


def test_quantisation_says_what_it_costs(onnx):
    session = onnxruntime.InferenceSession(str(onnx.path.with_name("model.int8.onnx")))
    assert session.run(None, {"input": np.zeros((2, 3, 8, 8), np.uint8)})[0].shape == (2, 4)
    assert onnx.quantised is not None
    assert onnx.quantised.tests == onnx.quantised.inputs  # accuracy is of test samples alone
    assert 0 < onnx.quantised.difference < 1
    assert f"{onnx.quantised.after - onnx.quantised.before:+.2f}" in onnx.lines()[2]


def test_images_are_predicted_in_a_process_without_fedshift(images, onnx, tmp_path):
    rng = np.random.default_rng(1)
    for i, mode in enumerate(("RGB", "L", "RGBA", "P")):
        pixels = rng.integers(0, 256, (11, 9, 4), dtype=np.uint8)
        made = (
            Image.fromarray(pixels, "RGBA") if mode == "RGBA" else Image.fromarray(pixels[..., :3])
        )
        made.convert(mode).save(tmp_path / f"{i}.png")
    found = alone(onnx.path.with_name("prepare.py"), tmp_path)
    expected = fedshift.load_model(images, "dark-0").predict(tmp_path)
    assert [row["id"] for row in found] == ["0.png", "1.png", "2.png", "3.png"]
    assert [row["prediction"] for row in found] == list(expected)
    p = [[float(row[f"p({c})"]) for c in "abcd"] for row in found]
    np.testing.assert_allclose(p, expected.probabilities, rtol=0, atol=1e-5)


def test_rows_of_a_csv_are_predicted_in_a_process_without_fedshift(table, tmp_path):
    run, raw = table
    done = fedshift.export(run, tmp_path / "visits.onnx")
    assert done.parity.holds
    for name in ("east", "west"):
        expected = fedshift.load_model(run).predict(raw / f"{name}.csv")
        found = alone(tmp_path / "prepare.py", raw / f"{name}.csv", "--id", "patient")
        assert [row["id"] for row in found][:2] == [f"{name}0", f"{name}1"]
        assert [row["prediction"] for row in found] == list(expected)
        p = [float(row["p(1)"]) for row in found]
        np.testing.assert_allclose(p, expected.probabilities[:, 1], rtol=0, atol=2e-6)


def prepared(folder: Path):
    spec = importlib.util.spec_from_file_location("prepare", folder / "prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore:`torch.jit.load`:DeprecationWarning")
def test_cells_become_numbers_as_fedshift_makes_them(table, tmp_path):
    run, raw = table
    fedshift.export(run, tmp_path / "m.ts", "torchscript")
    model = fedshift.load_model(run)
    odd = tmp_path / "odd.csv"
    odd.write_text(
        "note;ward;pain;since;lab;age\n"
        "Fever fever COUGH;0012;BAD;11.3.2020;1.234,5;50,5\n;5;never;2020/2/30;high;\n"
        ";;?;2021-01-01 10:00;2;-9\n"
        "fever;7;mild;2021-01-01;1,234,567;3\n"
    )
    files = [raw / "east.csv", odd]
    plain = tmp_path / "plain.csv"
    plain.write_text('note,ward,pain,since,lab,age\nno fever,5.0,mild,,"1,200",nan\n')
    for file in [*files, plain]:
        found, _ = prepared(tmp_path).of_table(file, None, None)
        np.testing.assert_allclose(found, model.inputs.read(file, None), rtol=0, atol=1e-6)
    found, _ = prepared(tmp_path).of_table(raw / "east.csv", None, None)
    _, p = prepared(tmp_path).run_model(found, tmp_path / "m.ts")  # torch runs its own formats
    expected = model.predict(raw / "east.csv").probabilities
    np.testing.assert_allclose(p, expected, rtol=0, atol=1e-6)


def test_words_are_hashed_as_scikit_learn_hashes_them():
    for word in ("", "a", "ab", "abc", "abcd", "übel", "fever", "haemoglobin"):
        assert standalone.murmur(word.encode()) == murmurhash3_32(word.encode(), 0)


def test_the_energy_is_the_negative_log_of_the_summed_exponentials(monkeypatch):
    logits = np.random.default_rng(0).normal(0, 5, (6, 4))
    monkeypatch.setattr(standalone, "ABOUT", {"task": "classification"})
    np.testing.assert_allclose(standalone.energy(logits), -logsumexp(logits, axis=1))
    monkeypatch.setattr(standalone, "ABOUT", {"task": "multi-label"})
    np.testing.assert_allclose(standalone.energy(logits), -np.log(1 + np.exp(logits)).sum(1))


@pytest.mark.parametrize(
    ("method", "site"),
    [("fedproto[classifier=prototype]", "dark-0"), ("fedexp", "dark-0"), ("partialfed", "dark-1")],
)  # fmt: skip
def test_what_a_method_predicts_with_is_in_the_graph(method, site, tmp_path):
    scenario = tiny_scenario(rounds=1, **granting(method))
    fedshift.run(method, scenario, out=tmp_path / "run", quiet=True)
    done = fedshift.export(tmp_path / "run", tmp_path / "m.pt2", "torch-export", site=site)
    assert done.parity.holds
    if method.startswith("fedproto"):
        with pytest.raises(ConfigError, match="predicts with more than its net, and safetensors"):
            fedshift.export(tmp_path / "run", tmp_path / "m.st", "safetensors", site=site)


def test_a_prediction_that_draws_numbers_is_refused_in_one_line(tmp_path):
    fedshift.run("fedsr", tiny_scenario(rounds=1), out=tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match="prediction cannot be written as a graph") as found:
        fedshift.export(tmp_path / "run", tmp_path / "m.pt2", "torch-export")
    assert "\n" not in str(found.value)
    assert not (tmp_path / "m.pt2").exists()


def test_safetensors_hold_the_net_and_its_description(images, tmp_path):
    done = fedshift.export(images, tmp_path / "model", "safetensors", site="bright-1")
    assert done.parity.holds
    assert done.parity.kept == 16
    assert done.opset is None


def test_a_deployed_sites_own_model_is_exported_without_a_card(images, tmp_path):
    """Its folder, as ``deploy.models`` writes it, has the model and no results of the run."""
    site, model = tmp_path / "site", json.loads((images / "best" / "model.json").read_text())
    shutil.copytree(images, site)
    round_ = fedshift.load_model(images, "dark-0").round
    (site / "best" / "model.json").write_text(
        json.dumps(model | {"round": round_, "sites": ["dark-0"]})
    )
    (site / "summary.json").unlink()
    done = fedshift.export(site, tmp_path / "m" / "m.onnx", site="dark-0")
    assert done.parity.holds
    assert [path.name for path in done.files] == ["m.onnx", "prepare.py"]
    assert "no model card: the run's results are not in this folder" in done.lines()[2]


def test_a_file_that_answers_otherwise_is_not_kept(images, tmp_path, monkeypatch):
    wrong = Graph.forward
    monkeypatch.setattr(
        exporting, "runner", lambda _path, _kind, graph: lambda x: wrong(graph, x)[0] + 2e-4
    )
    with pytest.raises(RunError, match="does not answer as the trained one: same classes on"):
        fedshift.export(images, tmp_path / "m.pt2", "torch-export", site="dark-0")
    assert not (tmp_path / "m.pt2").exists()


def test_what_cannot_be_exported_is_said_in_one_line(images, tmp_path):
    with pytest.raises(ConfigError, match="format is 'tflite'; it takes one of onnx, torch-export"):
        fedshift.export(images, tmp_path / "m", "tflite")
    with pytest.raises(ConfigError, match="is not int8 of an ONNX file"):
        fedshift.export(images, tmp_path / "m", "torchscript", quantise="int8")
    with pytest.raises(RunError, match="keeps entries private, so there is no one model for all"):
        fedshift.export(images, tmp_path / "m")
    (tmp_path / "prepare.py").write_text("# mine\n")
    with pytest.raises(ConfigError, match="belongs to another model; export into a folder of its"):
        fedshift.export(images, tmp_path / "m", "torchscript", site="dark-0")
    assert isinstance(fedshift.load_model(images, "dark-0"), Model)
