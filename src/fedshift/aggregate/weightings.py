"""How much each participant counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedshift.declare import Declares
from fedshift.message import Update

if TYPE_CHECKING:
    from fedshift.server import Server


class Weighting(Declares):
    """One weight per update; called once per round, so it may keep state at the server."""

    ahead: ClassVar[bool] = False  # whether the clients' enrolments are all it looks at

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:
        """Weights (n,) in float64 that sum to one, in the order of ``updates``."""
        raise NotImplementedError


class ByExamples(Weighting):
    """n_k / n (McMahan et al., AISTATS 2017, Algorithm 1)."""

    ahead = True

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:  # noqa: ARG002, D102
        n = torch.tensor([u.examples for u in updates], dtype=torch.float64)
        return n / n.sum()


class Uniform(Weighting):
    """1 / n."""

    ahead = True

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:  # noqa: ARG002, D102
        return torch.full((len(updates),), 1.0 / len(updates), dtype=torch.float64)


WEIGHTINGS: dict[str, Weighting] = {"examples": ByExamples(), "uniform": Uniform()}
