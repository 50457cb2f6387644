"""The mean of updates of bounded length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedshift import (
    Method,
    Server,
    Tree,
    Update,
    register,
    setting,
)
from fedshift.methods.robust.rule import Robust
from fedshift.methods.shared.columns import median
from fedshift.methods.shared.updates import moved_by, updates_gram


@dataclass(frozen=True)
class NormClip(Robust):
    """theta + mean of (theta_k - theta) min(1, norm / |theta_k - theta|) (Sun et al., 2019).

    With ``norm`` 0 the bound is the median of the round's norms. A site moves the model by at most
    norm / n, which bounds large updates; it does nothing about small ones that point the wrong way.
    """

    norm: float = setting(0.0, "largest norm of an update; 0: the round's median", low=0.0)

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """The mean of the clipped updates."""
        norms = updates_gram(server, updates).diag().sqrt()  # (n,)
        bound = self.norm or float(median(norms[:, None]))
        return moved_by(server, updates, weights * (bound / norms).nan_to_num(1.0).clamp(max=1.0))


@register("norm-clip", paper="Sun et al., 2019", group="aggregation")
def norm_clip() -> Method:
    """The mean of updates of bounded length.

    Updates longer than a bound, by default the median of the round, are shortened to it before
    averaging.

    Use it: a mild protection that costs honest sites little.
    Not for: attackers whose updates are short and point the wrong way, which pass unchanged.
    Equations: clipped mean: `NormClip.combine`.
    """
    return Method(aggregate=NormClip())
