"""How much each pair of layers counts: attention over positions and channels (Eqs. 7 to 9)."""

from __future__ import annotations

import torch
from torch import Tensor


def position_attention(a: Tensor, b: Tensor) -> Tensor:
    """Eq. 7: softmax over m of avg(A_l^T B_m), (R, R), from a and b (R, B, C, d).

    The d x d map is never formed: its average is the inner product of the averages over positions.
    """
    energy = torch.einsum("lbc,mbc->lm", a.mean(3), b.mean(3)) / a.shape[1]
    return energy.softmax(1)


def channel_attention(a: Tensor, b: Tensor) -> Tensor:
    """Eq. 8: softmax over m of avg(A_l B_m^T), (R, R); averages over channels instead."""
    energy = torch.einsum("lbd,mbd->lm", a.mean(2), b.mean(2)) / a.shape[1]
    return energy.softmax(1)


def both_attentions(a: Tensor, b: Tensor) -> Tensor:
    """Eq. 9: alpha = (alpha^p + alpha^c) / 2, (R, R)."""
    return 0.5 * (position_attention(a, b) + channel_attention(a, b))


def no_attention(a: Tensor, b: Tensor) -> Tensor:
    """Equal weights 1 / R, (R, R): Table 5, without attention."""
    return a.new_full((len(a), len(b)), 1 / len(b))


def same_layer(a: Tensor, b: Tensor) -> Tensor:
    """Identity (R, R): Table 5, same-layer alignment."""
    return torch.eye(len(a), len(b), dtype=a.dtype)


ATTENTIONS = {
    "both": both_attentions,
    "position": position_attention,
    "channel": channel_attention,
    "none": no_attention,
}
