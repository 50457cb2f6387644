"""Losses and measures against scikit-learn and NumPy, ties and absent classes included."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from fedshift.core import measures
from fedshift.core.objective import OBJECTIVES, Regression, objective, score, scores_of
from fedshift.data.samples import Samples


def made(n=300, k=4, seed=0, *, ties=False, absent=()):
    """Logits that know something about the labels; with ``ties`` they take few values."""
    rng = np.random.default_rng(seed)
    known = [c for c in range(k) if c not in absent]
    y = rng.choice(known, n, p=np.arange(1, len(known) + 1) / sum(range(1, len(known) + 1)))
    logits = rng.normal(0, 1, (n, k)) + 1.2 * np.eye(k)[y]
    if ties:
        logits = np.round(logits)
    return logits, y


def scored(logits, y, task="classification", **kwargs):
    samples = Samples(torch.tensor(logits), torch.tensor(y), torch.arange(len(y)))
    return score(lambda x: x, samples, objective(task), **kwargs)


def softmax(logits):
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("absent", [(), (1,), (0, 3)])
def test_measures_of_classes_are_those_of_scikit_learn(ties, absent):
    logits, y = made(ties=ties, absent=absent)
    found = scored(logits, y)
    predicted = softmax(logits.astype(np.float32)).argmax(1)
    assert found["accuracy"] == pytest.approx(100 * sk.accuracy_score(y, predicted))
    present = np.unique(y)
    recall = sk.recall_score(y, predicted, labels=present, average="macro", zero_division=0)
    assert found["balanced_accuracy"] == pytest.approx(100 * recall)
    f1 = sk.f1_score(y, predicted, average="macro", zero_division=0)
    assert found["macro_f1"] == pytest.approx(100 * f1)
    p = softmax(logits.astype(np.float32).astype(np.float64)).round(12)  # sums in another order
    areas = [sk.roc_auc_score(y == c, p[:, c]) for c in present]
    assert found["auroc"] == pytest.approx(100 * np.mean(areas))
    assert found["nll"] == pytest.approx(sk.log_loss(y, p, labels=range(4)), rel=1e-5)


def test_a_binary_area_is_the_usual_one():
    logits, y = made(k=2, ties=True)
    assert scored(logits, y)["auroc"] == pytest.approx(
        100 * sk.roc_auc_score(y, logits[:, 1] - logits[:, 0])
    )


def test_one_class_has_no_area_but_a_recall():
    logits, _ = made(k=3)
    found = scored(logits, np.full(len(logits), 2))
    assert "auroc" not in found
    assert found["balanced_accuracy"] == pytest.approx(found["accuracy"])


def test_calibration_error_by_hand():
    # two bins: confidence 0.9 is right half of the time, confidence 0.6 always
    confidence = torch.tensor([0.9] * 4 + [0.6] * 6)
    right = torch.tensor([1, 1, 0, 0] + [1] * 6)
    assert measures.calibration_error(confidence, right) == pytest.approx(0.4 * 0.4 + 0.6 * 0.4)


def test_calibration_error_in_bins_as_numpy_counts_them():
    logits, y = made(500, 3, seed=3)
    p = softmax(logits.astype(np.float32).astype(np.float64))
    top, right = p.max(1), p.argmax(1) == y
    edges = np.linspace(0, 1, 16)
    expected = sum(
        inside.mean() * abs(right[inside].mean() - top[inside].mean())
        for low, high in itertools.pairwise(edges)
        if (inside := (top > low) & (top <= high)).any()
    )
    assert scored(logits, y)["ece"] == pytest.approx(100 * expected)


def test_cells_are_the_confusion_matrix_and_add_up():
    logits, y = made()
    found = scored(logits, y, cells=True)
    matrix = sk.confusion_matrix(y, logits.argmax(1), labels=range(4))
    cells = {(i, j): n for (i, j), n in np.ndenumerate(matrix) if n}
    told = {tuple(map(int, k.split("/")[1:])): v for k, v in found.items() if "confusion" in k}
    assert told == cells
    assert not any("confusion" in key for key in scored(logits, y))


def test_measures_of_labels_are_those_of_scikit_learn():
    rng = np.random.default_rng(1)
    y = (rng.random((200, 3)) < [0.2, 0.5, 0.7]).astype(np.float32)
    logits = np.round(rng.normal(0, 1, (200, 3)) + 2 * (y - 0.5), 1)
    found = scored(logits, y, "multi-label")
    p = 1 / (1 + np.exp(-logits.astype(np.float32).astype(np.float64)))
    decided = logits > 0
    assert found["accuracy"] == pytest.approx(100 * (decided == y).mean())
    assert found["macro_f1"] == pytest.approx(100 * sk.f1_score(y, decided, average="macro"))
    assert found["auroc"] == pytest.approx(100 * sk.roc_auc_score(y, p, average="macro"))
    recalls = [sk.balanced_accuracy_score(y[:, k], decided[:, k]) for k in range(3)]
    assert found["balanced_accuracy"] == pytest.approx(100 * np.mean(recalls))
    bce = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean()
    assert found["nll"] == pytest.approx(bce, rel=1e-5)


def test_a_label_that_never_occurs_is_left_out():
    rng = np.random.default_rng(2)
    y = np.stack([rng.random(50) < 0.5, np.zeros(50)], 1).astype(np.float32)
    logits = np.stack([rng.normal(size=50), np.full(50, -3.0)], 1)
    found = scored(logits, y, "multi-label")
    assert found["auroc"] == pytest.approx(100 * sk.roc_auc_score(y[:, 0], logits[:, 0]))
    assert found["macro_f1"] == pytest.approx(100 * sk.f1_score(y[:, 0], logits[:, 0] > 0))


def test_measures_of_numbers_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    y = rng.normal(50, 20, 120).astype(np.float32)
    out = ((y + rng.normal(0, 8, 120) - 50) / 20)[:, None]
    samples = Samples(torch.tensor(out), torch.tensor(y), torch.arange(120))
    found = score(lambda x: x, samples, Regression(shift=50, scale=20))
    predicted = out[:, 0].astype(np.float32) * 20.0 + 50
    assert found["r2"] == pytest.approx(100 * sk.r2_score(y, predicted))
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(y, predicted))
    assert found["rmse"] == pytest.approx(sk.root_mean_squared_error(y, predicted))
    assert found["loss"] == pytest.approx((((predicted - y) / 20) ** 2).sum(), rel=1e-5)
    assert "nll" not in found


def test_constant_targets_have_an_r2_as_in_scikit_learn():
    y = torch.full((5,), 3.0)
    assert measures.r2(y, y) == sk.r2_score(y, y) == 1.0
    assert measures.r2(y, y + 1) == sk.r2_score(y, y + 1) == 0.0


def test_no_samples_have_no_measures():
    empty = Samples(torch.empty(0, 3), torch.empty(0, dtype=torch.long), torch.empty(0).long())
    assert score(lambda x: x, empty) == {"count": 0.0, "loss": 0.0}


def test_losses_by_hand():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    nll = [math.log(1 + math.exp(-2)), math.log(1 + math.exp(1))]
    task = objective("classification")
    assert float(task.loss(logits, torch.tensor([0, 0]))) == pytest.approx(sum(nll) / 2)
    assert float(task.loss(logits, torch.tensor([0, 0]), reduction="sum")) == pytest.approx(
        sum(nll)
    )
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    each = [math.log(1 + math.exp(-2)) + math.log(2), math.log(2) + math.log(1 + math.exp(-1))]
    many = objective("multi-label")
    assert float(many.loss(logits, labels)) == pytest.approx(sum(each) / 4)
    assert float(many.loss(logits, labels, reduction="sum")) == pytest.approx(sum(each) / 2)
    number = Regression(shift=1.0, scale=2.0)  # targets 0 and 1 in the net's units
    assert float(number.loss(torch.tensor([[0.5], [3.0]]), torch.tensor([1.0, 3.0]))) == (
        pytest.approx((0.25 + 4.0) / 2)
    )


WHOLE = {"count": 2.0, "loss": 1.0, "accuracy": 50.0}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"count": -1.0}, "count is -1.0"),
        ({"loss": -0.1}, "loss is -0.1"),
        ({"accuracy": 100.5}, "accuracy is 100.5, not from 0 to 100"),
        ({"auroc": -3.0}, "auroc is -3.0"),
        ({"right": 3.0}, "right is no measure of classification"),
        ({"confusion/0/1": 3.0}, "add up to 3.0, not to 2.0"),
        ({"confusion/0/1": 3.0, "confusion/0/0": -1.0}, "confusion/0/0 is -1.0"),
        ({"confusion/0/1": 1.5, "confusion/0/0": 0.5}, "is 1.5, not a whole number"),
        ({"confusion/0/2": 2.0}, "confusion/0/2 is no cell of a confusion matrix of 2 classes"),
        ({"confusion/0": 2.0}, "confusion/0 is no cell"),
        ({"confusion/a/b": 2.0}, "confusion/a/b is no cell"),
        ({"count": 2.5}, "count is 2.5, not a whole number"),
        ({"count": 1e12}, "count is 1000000000000.0, not a whole number"),
        ({"nll": -1.0}, "nll is -1.0, not from 0"),
    ],
)
def test_numbers_that_cannot_be_are_refused(change, reason):
    assert OBJECTIVES["classification"]().wrong_score(WHOLE) == ""
    assert reason in OBJECTIVES["classification"]().wrong_score(WHOLE | change, cells=2)


def test_a_reply_without_its_main_measure_is_refused():
    task = objective("regression")
    assert task.wrong_score({"count": 2.0, "loss": 1.0}) == "r2 is missing"
    assert task.wrong_score({"count": 2.0, "loss": 1.0, "r2": -900.0}) == ""
    assert "r2 is 100.1" in task.wrong_score({"count": 2.0, "loss": 1.0, "r2": 100.1})
    assert objective("classification").wrong_score({"count": 0.0, "loss": 0.0}) == ""


@pytest.mark.parametrize(
    ("task", "y", "outputs", "problem"),
    [
        ("classification", torch.tensor([0, 4]), 4, "label 4; labels go from 0 to 3"),
        ("classification", torch.tensor([0.5]), 4, "not one class per sample"),
        ("multi-label", torch.tensor([[0.0, 0.5]]), 2, "label 0.5; labels are 0 or 1"),
        ("multi-label", torch.tensor([0, 1]), 2, "not 2 labels per sample"),
        ("regression", torch.tensor([1, 2]), 1, "not one number per sample"),
        ("regression", torch.tensor([1.0, math.nan]), 1, "not finite"),
        ("regression", torch.tensor([1.0]), 3, "3 outputs"),
    ],
)
def test_targets_of_another_kind_are_told(task, y, outputs, problem):
    assert problem in objective(task).wrong_targets(y, outputs)


def test_fitting_targets_pass():
    assert objective("classification").wrong_targets(torch.tensor([0, 3]), 4) == ""
    assert objective("multi-label").wrong_targets(torch.tensor([[0.0, 1.0]]), 2) == ""
    assert objective("regression").wrong_targets(torch.tensor([1.5, -2.0]), 1) == ""


def test_scores_of_a_split():
    told = {"val/loss": 1.0, "test/loss": 2.0, "test/confusion/0/1": 3.0}
    assert scores_of(told, "test") == {"loss": 2.0, "confusion/0/1": 3.0}
