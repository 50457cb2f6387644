from __future__ import annotations

import math

import pytest
import torch

from fedshift.core.objective import score
from fedshift.data.samples import Samples
from fedshift.evaluate.metrics import Count, Metrics, rounds_to


def test_avg_std_all_and_worst_by_hand():
    counts = [
        Count("a0", "a", score=80, count=10, loss=5.0, weight=30),
        Count("a1", "a", score=60, count=10, loss=7.0, weight=10),
        Count("b0", "b", score=45, count=20, loss=8.0, weight=60),
    ]
    found = Metrics.of(counts)
    assert found.domains == {"a": 70.0, "b": 45.0}
    assert found.avg == pytest.approx(57.5)
    assert found.std == pytest.approx((2 * 12.5**2) ** 0.5)  # ddof = 1: two deviations of 12.5
    assert found.all == pytest.approx(0.3 * 80 + 0.1 * 60 + 0.6 * 45)
    assert found.worst == pytest.approx(45.0)
    assert found.loss == pytest.approx(20.0 / 40)
    assert found.clients == {"a0": 80.0, "a1": 60.0, "b0": 45.0}
    assert Metrics.from_json(found.to_json()) == found


def test_every_measure_is_averaged_as_accuracy_is_and_read_back():
    counts = [
        Count("a0", "a", 80, 10, 5.0, 1, {"auroc": 90.0, "ece": 1.0}, {(0, 0): 6, (0, 1): 4}),
        Count("a1", "a", 60, 10, 5.0, 1, {"ece": 3.0}, {(0, 1): 10}),  # one class: no area
        Count("b0", "b", 45, 20, 5.0, 1, {"auroc": 50.0, "ece": 8.0}),
    ]
    found = Metrics.of(counts)
    assert found.by_domain == {"a": {"auroc": 90.0, "ece": 2.0}, "b": {"auroc": 50.0, "ece": 8.0}}
    assert found.measures == {"auroc": 70.0, "ece": 5.0}
    assert found.confusion == {"a": [[0, 0, 6], [0, 1, 14]]}
    assert found.samples == {"a": 20, "b": 20}
    told = found.to_json()
    assert (told["auroc"], told["ece"], "measures" in told) == (70.0, 5.0, False)
    assert Metrics.from_json(told) == found
    assert (found.value("auroc"), found.value("a"), found.value("worst")) == (70.0, 70.0, 45)
    assert math.isnan(found.value("rmse"))


def test_rows_of_earlier_versions_are_read():
    old = {"avg": 1.0, "std": 0.0, "all": 1.0, "worst": 1.0, "loss": 2.0}
    assert Metrics.from_json(old | {"domains": {"a": 1.0}, "clients": {}}).measures == {}


def test_one_domain_has_no_spread():
    assert Metrics.of([Count("d", "d", 25, 4, 1.0, 4)]).std == 0.0
    assert Metrics.of([Count("d", "d", 25, 4, 1.0, 4)]).clients == {}


def test_rounds_to_a_threshold():
    curve = [(2, 50.0), (4, 70.0), (6, 65.0), (8, 72.0)]
    assert rounds_to(70.0, curve) == 4
    assert rounds_to(72.0, curve) == 8
    assert rounds_to(90.0, curve) is None


def test_score_counts_over_batches():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1100, 3, generator=generator)
    y = torch.randint(0, 3, (1100,), generator=generator)
    found = score(lambda z: 2 * z, Samples(x, y, torch.arange(1100)))
    logits = (2 * x).double().numpy()
    import numpy as np

    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert found["accuracy"] == pytest.approx(100 * (logits.argmax(1) == y.numpy()).mean())
    assert found["count"] == 1100
    assert found["loss"] == pytest.approx(-log_p[np.arange(1100), y.numpy()].sum(), rel=1e-5)
