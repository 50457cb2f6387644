"""Supervised contrast over given pairs: features near those of their class, far from all others.

FedRCL contrasts the samples of a batch with each other, VHL with virtual samples as well (Khosla et
al., NeurIPS 2020). Which pairs attract and which stand in the denominator is the caller's choice.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NONE = -1e9  # score of a pair that is left out: far below any cosine / tau, but finite


def cosines(z: Tensor, others: Tensor) -> Tensor:
    """Cosine (A, N) of each feature of ``z`` (A, D) with each of ``others`` (N, D)."""
    return F.normalize(z) @ F.normalize(others).T


def agreement(shares: Tensor, others: Tensor) -> Tensor:
    """Weight (A, N) of each pair, from class shares (A, K) and (N, K): 1 for one class, 0 for two.

    With soft labels it is the probability that both samples are of the same class.
    """
    return shares @ others.T


def not_itself(anchors: int, others: int) -> Tensor:
    """Mask (A, N) without the pairs of a sample with itself; the anchors are the first columns."""
    return ~torch.eye(anchors, others, dtype=torch.bool)


def pair_contrast(s: Tensor, attract: Tensor, against: Tensor) -> Tensor:
    """-sum_j a_ij log(e^{s_ij} / sum_{k in against_i} e^{s_ik}) / sum_j a_ij of each anchor, (A,).

    ``s`` (A, N) are similarities over the temperature, ``attract`` (A, N) the weights a of the
    pairs that attract, ``against`` (A, N) the mask of those in the denominator. An anchor that
    nothing attracts adds 0.
    """
    logs = s - s.masked_fill(~against, NONE).logsumexp(1, keepdim=True)  # (A, N)
    return -(attract * logs).sum(1) / attract.sum(1).clamp(min=1e-12)
