"""A temperature makes confidence what accuracy is, and changes no class."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

import fedshift
from fedshift.base.errors import ConfigError, RunError
from fedshift.cli import main
from fedshift.core.objective import MultiLabel
from fedshift.engine.federation import federate
from fedshift.serve import calibrate, parity
from fedshift.serve.calibrate import fitted_temperature, gap, temperature_of_run
from fedshift.serve.parity import Asked
from fedshift.testing import tiny_scenario

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def unseen(tmp_path_factory):
    """A run with one model for all, and a domain that it never saw."""
    out = tmp_path_factory.mktemp("unseen") / "run"
    scenario = tiny_scenario(rounds=3, domains=("dark",), unseen="bright")
    fedshift.run("fedavg", scenario, out=out, quiet=True)
    return out


def test_labels_drawn_from_divided_logits_give_the_divisor_back():
    rng = np.random.default_rng(0)
    z = rng.normal(0, 4, (20_000, 5))
    for t in (0.5, 1.0, 3.0):
        p = softmax(z / t, axis=1)
        y = (p.cumsum(1) > rng.random((len(z), 1))).argmax(1)
        assert fitted_temperature(torch.tensor(z), torch.tensor(y)) == pytest.approx(t, rel=0.03)


def test_the_likelihood_is_stationary_at_the_temperature():
    """d NLL / d beta = mean(sum_k p_k z_k - z_y) is 0 at beta = 1 / t, which is the optimum."""
    rng = np.random.default_rng(1)
    z, y = rng.normal(0, 3, (400, 4)), rng.integers(0, 4, 400)
    z[np.arange(400), y] += 1.5
    p = softmax(z / fitted_temperature(torch.tensor(z), torch.tensor(y)), axis=1)
    slope = ((p * z).sum(1) - z[np.arange(400), y]).mean()
    assert abs(slope) < 1e-4


def test_error_and_likelihood_are_of_the_divided_logits():
    rng = np.random.default_rng(2)
    z, y = rng.normal(0, 3, (300, 3)), rng.integers(0, 3, 300)
    found = gap(Asked(torch.zeros(0), torch.tensor(z), torch.tensor(y)), 2.5)
    for at, t in enumerate((1.0, 2.5)):
        log_p = log_softmax(z / t, axis=1)
        confidence, right = np.exp(log_p.max(1)), log_p.argmax(1) == y
        edges = np.linspace(0, 1, 16)
        inside = [(confidence > a) & (confidence <= b) for a, b in zip(edges, edges[1:])]  # noqa: B905,RUF007
        ece = sum(abs(right[i].sum() - confidence[i].sum()) for i in inside) / 300
        assert found.ece[at] == pytest.approx(100 * ece)
        assert found.nll[at] == pytest.approx(-log_p[np.arange(300), y].mean())


def test_it_is_fitted_on_validation_samples_of_the_training_domains_alone(unseen, monkeypatch):
    scenario = tiny_scenario(rounds=3, domains=("dark",), unseen="bright")
    made = federate(scenario, 0)
    seen = []
    real = calibrate.fitted_temperature
    monkeypatch.setattr(calibrate, "fitted_temperature", lambda z, y: seen.append(y) or real(z, y))
    found = temperature_of_run(unseen)
    assert found.fitted == len(made.domains["dark"].val)
    assert torch.equal(seen[0], made.domains["dark"].val.labels)
    assert {k: g.samples for k, g in found.tests.items()} == {
        "dark": len(made.domains["dark"].test), "bright": len(made.unseen.test),
    }  # fmt: skip


def test_a_calibrated_file_has_the_same_logits_and_classes(unseen, tmp_path, capsys):
    plain = fedshift.export(unseen, tmp_path / "plain" / "m.onnx")
    words = ["--calibrate", "temperature", "--out", str(tmp_path / "warm" / "m.onnx")]
    with pytest.raises(SystemExit) as code:
        main(["export", str(unseen), *words])
    told = capsys.readouterr().out
    assert code.value.code == 0
    card = json.loads((tmp_path / "warm" / "m.onnx.card.json").read_text())
    t = card["temperature"]["value"]
    assert abs(t - 1) > 0.01
    assert f"calibrated: temperature {t:.3f}, fitted on" in told
    assert "(fewer than 100: it may be far off)" in told
    x = np.random.default_rng(0).integers(0, 256, (20, 3, 8, 8), dtype=np.uint8)
    (z, p), (warm_z, warm_p) = (
        onnxruntime.InferenceSession(str(path)).run(None, {"input": x})
        for path in (plain.path, tmp_path / "warm" / "m.onnx")
    )
    np.testing.assert_array_equal(z, warm_z)
    np.testing.assert_array_equal(p.argmax(1), warm_p.argmax(1))
    np.testing.assert_allclose(warm_p, softmax(z.astype(float) / t, axis=1), atol=1e-6)
    for end in ("md", "html"):
        text = (tmp_path / "warm" / f"m.onnx.card.{end}").read_text()
        assert f"Logits are divided by {t:.3f} before they become probabilities" in text
        assert "These samples are few, so the number may be far off." in text
    assert "Logits are divided" not in (tmp_path / "plain" / "m.onnx.card.md").read_text()


def test_a_card_of_a_site_says_what_a_temperature_would_do(images, tmp_path, capsys):
    words = ["--site", "dark-0", "--calibrate", "temperature", "--out", str(tmp_path / "c.json")]
    with pytest.raises(SystemExit) as code:
        main(["card", str(images), *words])
    capsys.readouterr()
    found = json.loads((tmp_path / "c.json").read_text())
    assert (code.value.code, found["site"]) == (0, "dark-0")
    assert list(found["temperature"]["tests"]) == ["dark-0"]


def test_what_cannot_be_calibrated_is_said_in_one_line(images, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="'isotonic' is not known; it takes one of temperature"):
        fedshift.export(images, tmp_path / "m", calibrate="isotonic")
    labels = SimpleNamespace(task=MultiLabel())
    with pytest.raises(ConfigError, match="of one class out of several; this run's task is multi"):
        calibrate.temperature_of(labels, [])
    monkeypatch.setattr(parity, "_samples", lambda *_: {})
    with pytest.raises(RunError, match="no validation samples to fit a temperature on"):
        temperature_of_run(images, "dark-0")


def test_a_model_that_is_always_right_gets_the_lowest_temperature_and_no_lower():
    assert fitted_temperature(torch.eye(3), torch.arange(3)) == pytest.approx(0.1, rel=1e-3)
