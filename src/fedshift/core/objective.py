"""The objective of a task: its loss, what is counted when a model is scored, and its measures.

A scenario names one (``scenario.objective``); ``engine.visit`` trains with its loss, and scoring at
the sites and at the server goes through :func:`score`. Each site computes its own measures: a
domain's value is the mean over its sites, so nothing but numbers leaves a site. Scoring is
deterministic and must leave the model unchanged: the caller sets eval mode.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift.core import measures
from fedshift.data.samples import Samples

MOST = 10**9  # samples that one site may say to have scored
CONFUSION = "confusion"  # prefix of counts by true and predicted class: "confusion/3/5"


class Objective(ABC):
    """What a net is trained for: subclasses are kinds of target.

    Attributes:
        name: In ``scenario.objective``, and what :attr:`Domain.objective` says of data.
        main: The measure that tables, curves and the choice of a round use; in per cent, and more
            is better. A reply to scoring must contain it.
        shares: Measures that lie between 0 and 100 per cent.
        numbers: The other measures.
    """

    name: ClassVar[str]
    main: ClassVar[str]
    shares: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def loss(self, out: Tensor, y: Tensor, *, reduction: str = "mean") -> Tensor:
        """The task loss of outputs (B, K) and targets: mean or sum over the batch, or none (B,)."""

    @abstractmethod
    def measured(self, out: Tensor, y: Tensor) -> dict[str, float | None]:
        """Every measure of outputs (n, K), shares in per cent; None where it is not defined."""

    def counted(self, out: Tensor, y: Tensor) -> dict[str, float]:  # noqa: ARG002
        """Counts besides the measures, such as the cells of the confusion matrix."""
        return {}

    @abstractmethod
    def wrong_targets(self, y: Tensor, outputs: int) -> str:
        """What is wrong with targets for a net with so many outputs; empty if they fit."""

    def wrong_score(self, found: Mapping[str, float], cells: int = 0) -> str:
        """What is wrong with the numbers that a site reports of one split; empty if they fit.

        ``cells`` is the number of classes of which a confusion matrix may be reported.
        """
        for key in ("count", "loss"):
            if not found.get(key, -1.0) >= 0:
                return f"{key} is {found.get(key, 'missing')}, not a number from 0 on"
        count = found["count"]
        if count > MOST or count != int(count):
            return f"count is {count}, not a whole number up to {MOST}"
        if count and self.main not in found:
            return f"{self.main} is missing"
        problems = (self._wrong_measure(key, value) for key, value in found.items())
        return next(filter(None, problems), "") or wrong_cells(found, cells)

    def _wrong_measure(self, key: str, value: float) -> str:
        """What is wrong with one number: its name, or its range."""
        kind = key.partition("/")[0]
        if kind not in (*self.shares, *self.numbers, "count", "loss", CONFUSION):
            return f"{key} is no measure of {self.name}"
        high = 100 if kind in self.shares or kind == self.main else math.inf
        low = -math.inf if kind in self.numbers and kind == self.main else 0
        return "" if low <= value <= high else f"{key} is {value}, not from {low} to {high}"


def wrong_cells(found: Mapping[str, float], classes: int) -> str:
    """What is wrong with the cells of a confusion matrix of so many classes."""
    cells = {k: v for k, v in found.items() if k.startswith(CONFUSION)}
    for key, value in cells.items():
        _, *places = key.split("/")
        inside = [p.isascii() and p.isdigit() and int(p) < classes for p in places]
        if inside != [True, True]:
            return f"{key} is no cell of a confusion matrix of {classes} classes"
        if value < 0 or value != int(value):
            return f"{key} is {value}, not a whole number from 0 on"
    if cells and sum(cells.values()) != found["count"]:
        return f"the cells of {CONFUSION} add up to {sum(cells.values())}, not to {found['count']}"
    return ""


class Classification(Objective):
    """One class per sample: targets (n,) int64, or (n, K) probabilities in training."""

    name = "classification"
    main = "accuracy"
    shares = ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "ece")
    numbers = ("nll",)

    def loss(
        self, out: Tensor, y: Tensor, *, reduction: str = "mean", weight: Tensor | None = None
    ) -> Tensor:
        """Cross-entropy; ``weight`` (K,) of the classes is normalised over the batch."""
        return F.cross_entropy(out, y, weight, reduction=reduction)

    def measured(self, out: Tensor, y: Tensor) -> dict[str, float | None]:
        """Accuracy, recall, F1 and AUROC over classes, calibration of the predicted class."""
        right = out.argmax(1) == y
        counts = measures.confusion(y, out.argmax(1), out.shape[1])
        log_p = wide(out).log_softmax(1)  # (n, K)
        truth = y[:, None] == torch.arange(out.shape[1], device=y.device)
        area = measures.auroc(truth, measures.log_odds(log_p))
        return {
            "accuracy": 100.0 * float(right.sum()) / len(y),
            "balanced_accuracy": 100.0 * measures.balanced_accuracy(counts),
            "macro_f1": 100.0 * measures.macro_f1(counts),
            "auroc": None if area is None else 100.0 * area,
            "ece": 100.0 * measures.calibration_error(log_p.amax(1).exp(), right),
        }

    def counted(self, out: Tensor, y: Tensor) -> dict[str, float]:
        """The cells of the confusion matrix that are not zero."""
        counts = measures.confusion(y, out.argmax(1), out.shape[1])
        cells = counts.nonzero().tolist()
        return {f"{CONFUSION}/{i}/{j}": float(counts[i, j]) for i, j in cells}

    def wrong_targets(self, y: Tensor, outputs: int) -> str:
        """Labels outside of the classes."""
        if y.is_floating_point() or y.dim() != 1:
            return f"targets {y.dtype} of shape {tuple(y.shape)}, not one class per sample"
        odd = y[(y < 0) | (y >= outputs)]
        return f"label {int(odd.min())}; labels go from 0 to {outputs - 1}" if len(odd) else ""


class MultiLabel(Objective):
    """Any number of labels per sample: targets (n, K) of 0 and 1, K independent questions.

    ``accuracy`` is the share of right answers over samples and labels.
    """

    name = "multi-label"
    main = "accuracy"
    shares = Classification.shares
    numbers = ("nll",)

    def loss(self, out: Tensor, y: Tensor, *, reduction: str = "mean") -> Tensor:
        """Binary cross-entropy, the mean over labels."""
        each = F.binary_cross_entropy_with_logits(out, y.to(out.dtype), reduction="none").mean(1)
        if reduction == "none":
            return each
        return each.sum() if reduction == "sum" else each.mean()

    def measured(self, out: Tensor, y: Tensor) -> dict[str, float | None]:
        """Each measure is the mean over the labels for which it is defined."""
        truth, predicted = y > 0.5, out > 0
        pairs = [
            measures.confusion(t.long(), p.long(), 2)
            for t, p in zip(truth.T, predicted.T, strict=True)
        ]
        recalls = [measures.balanced_accuracy(c) for c in pairs if bool((c.sum(1) > 0).all())]
        f1 = [
            float(2 * c[1, 1].double() / (c[1].sum() + c[:, 1].sum()))
            for c in pairs
            if bool(c[1].sum() + c[:, 1].sum() > 0)
        ]
        p = wide(out).sigmoid()
        right = truth == predicted
        shares = {
            "accuracy": float(right.double().mean()),
            "balanced_accuracy": mean(recalls),
            "macro_f1": mean(f1),
            "auroc": measures.auroc(truth, out),
            "ece": measures.calibration_error(torch.maximum(p, 1 - p).flatten(), right.flatten()),
        }
        return {name: None if v is None else 100.0 * v for name, v in shares.items()}

    def wrong_targets(self, y: Tensor, outputs: int) -> str:
        """Anything but K zeros and ones per sample."""
        if y.dim() != 2 or y.shape[1] != outputs:
            return f"targets of shape {tuple(y.shape)}, not {outputs} labels per sample"
        odd = y[(y != 0) & (y != 1)]
        return f"label {float(odd.flatten()[0]):g}; labels are 0 or 1" if len(odd) else ""


@dataclass(frozen=True)
class Regression(Objective):
    """A number per sample: targets (n,) as floats; the net predicts (y - shift) / scale.

    Losses are in the net's units, measures in the target's. ``r2`` in per cent is the share of the
    target's variance that is explained; it is negative for a model that is worse than the mean.
    """

    name = "regression"
    main = "r2"
    numbers = ("r2", "mae", "rmse")

    shift: float = 0.0
    scale: float = 1.0

    def loss(self, out: Tensor, y: Tensor, *, reduction: str = "mean") -> Tensor:
        """Squared error."""
        return F.mse_loss(out.squeeze(1), self.in_net_units(y).to(out.dtype), reduction=reduction)

    def in_net_units(self, y: Tensor) -> Tensor:
        """What the net has to predict for targets ``y``."""
        return (y - self.shift) / self.scale

    def measured(self, out: Tensor, y: Tensor) -> dict[str, float | None]:
        """R2, mean absolute and root mean square error."""
        predicted = wide(out).squeeze(1) * self.scale + self.shift
        error = predicted - y
        return {
            "r2": 100.0 * measures.r2(y, predicted),
            "mae": float(error.abs().mean()),
            "rmse": float(error.square().mean().sqrt()),
        }

    def wrong_targets(self, y: Tensor, outputs: int) -> str:
        """Classes, or numbers that are missing."""
        if not y.is_floating_point() or y.dim() != 1:
            return f"targets {y.dtype} of shape {tuple(y.shape)}, not one number per sample"
        if outputs != 1:
            return f"{outputs} outputs of the net; a number per sample needs 1"
        return "" if bool(y.isfinite().all()) else "targets that are not finite"


def balanced_weights(y: Tensor, classes: int) -> Tensor:
    """N / (K n_c) of each of the K classes that occur, 0 of the others, for labels (n,)."""
    counts = torch.bincount(y, minlength=classes).float()
    return torch.where(counts > 0, len(y) / (counts.clamp(min=1) * (counts > 0).sum()), 0.0)


OBJECTIVES: dict[str, type[Objective]] = {
    kind.name: kind for kind in (Classification, MultiLabel, Regression)
}
CLASSIFICATION = Classification()


@lru_cache
def objective(name: str, shift: float = 0.0, scale: float = 1.0) -> Objective:
    """The objective of that name; shift and scale of the target are for regression."""
    return Regression(shift, scale) if name == Regression.name else OBJECTIVES[name]()


@torch.inference_mode()
def score(
    predict: Callable[[Tensor], Tensor],
    samples: Samples,
    objective: Objective = CLASSIFICATION,
    *,
    cells: bool = False,
) -> dict[str, float]:
    """Number of samples, summed loss and every defined measure; ``cells`` adds further counts.

    ``predict`` maps inputs (B, *shape) to outputs (B, K). The summed loss stays on the device until
    the end and is kept in double precision where there is any.
    """
    if not len(samples):
        return {"count": 0.0, "loss": 0.0}
    kept = torch.float32 if samples.x.device.type == "mps" else torch.float64  # MPS has no doubles
    loss = torch.zeros((), dtype=kept, device=samples.x.device)
    outputs, targets = [], []
    for x, y in samples.chunks():
        out = predict(x)  # (B, K)
        loss += objective.loss(out, y, reduction="sum")
        outputs.append(out)
        targets.append(y)
    found = {"count": float(len(samples)), "loss": float(loss)}
    out, y = torch.cat(outputs), torch.cat(targets)
    known = {name: v for name, v in objective.measured(out, y).items() if v is not None}
    if "nll" in objective.numbers:
        known["nll"] = found["loss"] / found["count"]
    return found | known | (objective.counted(out, y) if cells else {})


def scores_of(metrics: Mapping[str, float], split: str) -> dict[str, float]:
    """The numbers of one split in a reply to scoring, where they are called ``split/key``."""
    head = f"{split}/"
    return {k[len(head) :]: v for k, v in metrics.items() if k.startswith(head)}


def wide(out: Tensor) -> Tensor:
    """Outputs in double precision where there is any: probabilities near 1 stay apart."""
    return out.float() if out.device.type == "mps" else out.double()


def mean(values: list[float]) -> float | None:
    """The mean, or None if there is no value."""
    return sum(values) / len(values) if values else None
