"""The contrast of features of pseudo-data, received features and local ones (Eqs. 5 and 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Features(NamedTuple):
    """The three features that Eq. 5 compares, paired by row, (B, D) each."""

    pseudo: Tensor  # phi_i(x_p)
    anchor: Tensor  # phi_g(x_p), of the received model
    data: Tensor  # phi_i(x)

    def detach(self) -> Features:
        """The same values without gradient."""
        return Features(*(z.detach() for z in self))


def contrast(near: Tensor, far: Tensor, tau1: float, tau2: float) -> Tensor:
    """Eq. 5 from cosines (B,): mean of -log e^{tau1 near} / (e^{tau1 near} + e^{tau2 far})."""
    return F.softplus(tau2 * far - tau1 * near).mean()


def cosines(
    project: Callable[[Tensor], Tensor], z: Features, overlap: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines (B,) in Eq. 5, to the anchor and to the data, of projected features.

    With ``overlap`` (B,), Eq. 6: the data's contribution to x_p is removed from the second one.
    """
    rest = z.pseudo if overlap is None else z.pseudo - overlap[:, None] * z.data
    rows = [*z, *([] if overlap is None else [rest])]
    pseudo, anchor, data, *other = project(torch.cat(rows)).chunk(len(rows))  # (B, P) each
    near = F.cosine_similarity(pseudo, anchor)
    return near, F.cosine_similarity(other[0] if other else pseudo, data)


def overlaps(y_p: Tensor, y: Tensor) -> Tensor:
    """<y_p, y> of Eq. 6, (B,), for pseudo-labels (B, C) and classes (B,) or soft labels (B, C)."""
    return y_p.gather(1, y[:, None])[:, 0] if y.dim() == 1 else (y_p * y).sum(1)
