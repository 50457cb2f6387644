"""How sure the numbers of one seed are: the bootstrap against the formulas that it repeats."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import fedshift
from fedshift.base.errors import RunError
from fedshift.base.tensor_files import write_tensors
from fedshift.core.objective import objective
from fedshift.report import bootstrap, formats, tables
from fedshift.report.cells import Cell
from fedshift.report.results import Comparison
from fedshift.runs.predictions import FILE, KeptPredictions, read_predictions, write_predictions
from fedshift.testing import tiny_scenario


def predictions(kind: str, n: int = 60) -> KeptPredictions:
    """Outputs that know something of the target, with ties among them."""
    generator = torch.Generator().manual_seed(1)
    if kind == "regression":
        y = torch.randn(n, generator=generator)
        out = (y + torch.randn(n, generator=generator))[:, None]
    elif kind == "multi-label":
        y = (torch.rand(n, 3, generator=generator) < 0.3).float()
        out = torch.round(2 * (y - 0.5) + torch.randn(n, 3, generator=generator), decimals=1)
    else:
        y = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), n, True, generator=generator)
        noise = torch.randn(n, 3, generator=generator)
        out = torch.round(torch.nn.functional.one_hot(y, 3) + noise, decimals=1)
    return KeptPredictions("personal", 1, "dark", y, out)


@pytest.mark.parametrize("kind", ["classification", "multi-label", "regression"])
def test_a_weight_is_how_often_a_sample_occurs(kind):
    """Every measure of weighted samples is that of the samples, each repeated so many times."""
    task = objective(kind, 0.5, 2.0) if kind == "regression" else objective(kind)
    found = predictions(kind)
    weights = np.random.default_rng(0).integers(0, 4, (5, len(found.y)))
    weights[0] = 1
    drawn = bootstrap.weighted(weights, found, task)
    assert drawn.keys() >= {"r2"} if kind == "regression" else drawn.keys() >= {"auroc"}
    for i, row in enumerate(weights):
        rows = torch.from_numpy(np.repeat(np.arange(len(row)), row))
        expected = task.measured(found.out[rows], found.y[rows])
        for name, values in drawn.items():
            assert values[i] == pytest.approx(expected[name], abs=1e-4), name


def test_the_interval_of_an_accuracy_is_the_binomials():
    """70 of 100 right: 1.96 * sqrt(0.7 * 0.3 / 100) = 8.98 per cent."""
    y = torch.zeros(100, dtype=torch.long)
    out = torch.zeros(100, 2)
    out[:70, 0] = out[70:, 1] = 1.0
    kept = KeptPredictions("p", 1, "d", y, out)
    drawn = bootstrap.domain_draws([kept], objective("classification"))
    assert bootstrap.half_width(drawn["accuracy"]) == pytest.approx(8.98, abs=0.6)
    assert np.isnan(drawn["auroc"]).all()  # one class has no area
    assert math.isnan(bootstrap.half_width(drawn["auroc"]))


def test_a_model_that_is_never_wrong_claims_no_certainty():
    y = torch.arange(20) % 2
    found = KeptPredictions("p", 1, "d", y, torch.nn.functional.one_hot(y, 2).float())
    drawn = bootstrap.domain_draws([found], objective("classification"))
    assert set(drawn["accuracy"]) == {100.0}
    assert math.isnan(bootstrap.half_width(drawn["accuracy"]))


def test_two_methods_get_the_same_draws_so_their_difference_is_paired():
    """B is wrong where A is, and on 10 of 100 further samples: only these vary in A - B."""
    y = torch.zeros(100, dtype=torch.long)

    def draws(wrong: int):
        out = torch.zeros(100, 2)
        out[wrong:, 0] = out[:wrong, 1] = 1.0
        found = KeptPredictions("p", 1, "d", y, out)
        return bootstrap.domain_draws([found], objective("classification"))["accuracy"]

    a = Cell.of([60.0], 4.9, draws(40))
    b = Cell.of([50.0], 5.0, draws(50))
    apart = a.minus(b)
    assert apart.mean == 10.0
    assert apart.interval == pytest.approx(1.96 * 100 * math.sqrt(0.1 * 0.9 / 100), abs=0.6)
    assert Cell.of([60.0], 4.9).minus(b).interval == pytest.approx(
        1.96 * math.hypot(4.9, 5.0), 1e-4
    )
    assert a.minus(a).interval == pytest.approx(1.96 * math.hypot(4.9, 4.9), 1e-4)  # not zero
    assert tables.leaders([a, b], [False, False]) == [True, False]


def test_large_test_sets_keep_classes_only_and_draws_come_in_parts(tmp_path: Path, monkeypatch):
    found = predictions("classification")
    whole = bootstrap.domain_draws([found], objective("classification"))
    monkeypatch.setattr("fedshift.report.bootstrap.AT_ONCE", 7000)
    parts = bootstrap.domain_draws([found], objective("classification"))
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)
    monkeypatch.setattr("fedshift.runs.predictions.LARGEST", 100)
    write_predictions(tmp_path, [found])
    (kept,) = read_predictions(tmp_path)
    assert kept.out.shape == (60,)
    few = bootstrap.domain_draws([kept], objective("classification"))
    assert few.keys() == {"accuracy", "balanced_accuracy", "macro_f1"}
    assert np.allclose(few["macro_f1"], whole["macro_f1"])


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "local", "fedka"])
def test_a_run_keeps_the_predictions_that_it_reports(method, tmp_path: Path):
    """Also after adaptation, and of private entries; and keeping them changes no other file."""
    result = fedshift.run(method, tiny_scenario(rounds=2), out=tmp_path / "r", quiet=True)
    kept = read_predictions(tmp_path / "r")
    assert {p.protocol for p in kept} == result.summary["protocols"].keys()
    for protocol in result.summary["protocols"]:
        outcome = result.outcome(protocol)
        own = [p for p in kept if p.protocol == protocol]
        assert {p.round for p in own} == {outcome.round}
        right = [100 * float((p.out.argmax(1) == p.y).double().mean()) for p in own]
        by_domain = {
            d: np.mean([r for r, p in zip(right, own, strict=True) if p.domain == d])
            for d in outcome.metrics.domains
        }
        assert by_domain == pytest.approx(outcome.metrics.domains)
    assert all(p.out.shape == (16, 4) for p in kept)  # outputs, one per class; no input is 16 x 4


def test_a_site_that_never_trained_predicts_with_its_own_initial_entries(tmp_path: Path):
    """And not with those of the site whose model was loaded before."""
    scenario = tiny_scenario(rounds=1, clients_per_round=2, protocols=("personal",))
    result = fedshift.run("fedper", scenario, out=tmp_path / "r", quiet=True)
    assert len(read_predictions(tmp_path / "r")) == 4
    assert len(set(result.outcome("personal").metrics.clients.values())) > 1


def test_one_seed_has_intervals_of_every_measure_and_memory_only_those_of_counts(tmp_path: Path):
    alone = tiny_scenario(rounds=1, domains=("dark",), partition={"kind": "per-domain"})
    kept = fedshift.run("fedavg", alone, out=tmp_path / "r", quiet=True)
    cell = Comparison([kept]).cell("fedavg", "tiny", "global", "balanced_accuracy")
    again = fedshift.load(tmp_path / "r")
    same = Comparison([again]).cell("fedavg", "tiny", "global", "balanced_accuracy")
    assert cell.interval == same.interval
    assert 0 < cell.interval < 50
    memory = Comparison([fedshift.run("fedavg", alone, quiet=True)])
    assert math.isnan(memory.cell("fedavg", "tiny", "global", "balanced_accuracy").interval)
    assert memory.cell("fedavg", "tiny", "global").interval > 0
    assert kept.draws("global", 99) is None
    text = formats.markdown(Comparison([kept]))
    assert "1 seed, ± 95 % interval over test samples" in text


def test_predictions_that_are_not_those_reported_are_not_kept(tmp_path: Path, monkeypatch):
    """The check: a model that predicts otherwise than when it was scored."""
    logits = fedshift.Model.logits
    monkeypatch.setattr(fedshift.Model, "logits", lambda self, x: -logits(self, x))
    fedshift.run("fedavg", tiny_scenario(rounds=1), out=tmp_path / "r", quiet=True)
    assert not (tmp_path / "r" / FILE).exists()


def test_a_file_that_holds_something_else_is_one_line(tmp_path: Path):
    assert read_predictions(tmp_path) == []
    write_tensors(tmp_path / FILE, {"x": torch.zeros(1)}, {"predictions": [{"a": 1}]})
    with pytest.raises(RunError, match="holds no predictions; delete it"):
        read_predictions(tmp_path)
