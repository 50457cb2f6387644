"""Measures of predictions beyond accuracy, as pure functions of targets and outputs.

``core.objective`` calls them where a model is scored, at a site or at the server. Shares lie
between 0 and 1 here, as in scikit-learn, whose definitions they follow; a measure that is not
defined for the given targets (AUROC of a single class) is None. Nothing here may look at a model or
at samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 15  # of the calibration error, as in Guo et al., ICML 2017


def confusion(y: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Counts (K, K): row = true class, column = predicted class, for labels (n,) each."""
    return torch.bincount(y * classes + predicted, minlength=classes**2).view(classes, classes)


def balanced_accuracy(counts: Tensor) -> float:
    """Mean recall over the classes that occur, from a confusion matrix (K, K)."""
    present = counts.sum(1) > 0
    recall = counts.diagonal()[present].double() / counts.sum(1)[present]
    return float(recall.mean())


def macro_f1(counts: Tensor) -> float:
    """Mean F1 = 2 TP / (2 TP + FP + FN) over the classes that occur or are predicted."""
    both = counts.sum(0) + counts.sum(1)  # (K,) 2 TP + FP + FN
    known = both > 0
    return float((2 * counts.diagonal()[known].double() / both[known]).mean())


def auroc(positive: Tensor, scores: Tensor) -> float | None:
    """Mean area under the ROC curve of K one-against-rest questions; ties count half.

    ``positive`` (n, K) is boolean, ``scores`` (n, K) any order-preserving score. A column without a
    positive or without a negative has no area and is left out; None if that holds for all.
    """
    n_pos = positive.sum(0).double()  # (K,)
    n_neg = len(positive) - n_pos
    known = (n_pos > 0) & (n_neg > 0)
    if not bool(known.any()):
        return None
    ranks = torch.stack([mean_ranks(column) for column in scores[:, known].T], 1)  # (n, K')
    above = (ranks * positive[:, known]).sum(0) - n_pos[known] * (n_pos[known] + 1) / 2
    return float((above / (n_pos[known] * n_neg[known])).mean())


def log_odds(log_p: Tensor) -> Tensor:
    """log(p / (1 - p)) from log-probabilities, in single precision.

    It orders as p does and keeps values near 1 apart. Rounding makes probabilities equal that
    differ only in the order of their sums, so that ties are ties.
    """
    return (log_p - (-log_p.expm1()).log()).float()


def mean_ranks(values: Tensor) -> Tensor:
    """Ranks (n,) from 1 in double precision; equal values share the mean of their ranks.

    >>> mean_ranks(torch.tensor([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, group, sizes = values.unique(return_inverse=True, return_counts=True)
    last = sizes.cumsum(0)  # rank of the last member of each group
    return (last - (sizes - 1) / 2).double()[group]


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """ECE: sum over bins of |B|/n * |accuracy - mean confidence|, for (n,) each.

    ``BINS`` bins of equal width, each closed on its right side.
    """
    confidence = confidence.double()
    bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    gap = torch.zeros(BINS, dtype=torch.float64, device=confidence.device)
    gap.index_add_(0, bins, right.double() - confidence)
    return float(gap.abs().sum() / len(confidence))


def r2(y: Tensor, predicted: Tensor) -> float:
    """1 - sum (y - f)^2 / sum (y - mean y)^2; for constant targets 1 if all are met, else 0."""
    y, predicted = y.double(), predicted.double()
    left = (y - predicted).square().sum()
    total = (y - y.mean()).square().sum()
    return float(1 - left / total) if total > 0 else float(left == 0)
