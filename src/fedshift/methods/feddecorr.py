"""FedDecorr: features of a batch are to be uncorrelated (Shi et al., ICLR 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import Client, Method, Part, Step, register, setting

EPS = 1e-8  # added to each variance, so that a constant feature has no correlation


def correlation(z: Tensor) -> Tensor:
    """Correlation matrix (D, D) of features ``z`` (B, D) over the batch, B at least 2."""
    centred = z - z.mean(0)
    unit = centred / (centred.square().sum(0) / (len(z) - 1) + EPS).sqrt()
    return unit.T @ unit / (len(z) - 1)


def decorrelation(z: Tensor) -> Tensor:
    """|K|_F^2 / D^2, K the correlation matrix of ``z`` (B, D), the diagonal included."""
    return correlation(z).square().mean()


@dataclass(frozen=True)
class Decorrelation(Part):
    """beta / D^2 |K|_F^2, K the correlation matrix of the batch's features.

    The diagonal is one, so it adds a constant and no gradient. A batch of one sample has no
    correlation and adds nothing. Nothing but the model is sent.
    """

    beta: float = setting(0.1, "weight of the decorrelation", low=0.0)
    times_batch: bool = setting(False, "off-diagonal mean times (B - 1)^2 / B, as released")

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The regulariser on the features before the head."""
        z = step.out.features
        if len(z) < 2:
            return None
        if not self.times_batch:
            return self.beta * decorrelation(z)
        squares, width = correlation(z).square(), z.shape[1]
        off = (squares.sum() - torch.diag(squares).sum()) / max(1, width * (width - 1))
        return self.beta * off * (len(z) - 1) ** 2 / len(z)


@register("feddecorr", paper="Shi et al., ICLR 2023", group="label skew")
def feddecorr() -> Method:
    """FedAvg whose features do not collapse into few dimensions.

    With skewed labels a client's features fall into a small subspace, and the averaged model
    inherits it. Penalising correlations between features keeps all dimensions in use.

    Use it: with strong label skew, on top of any other method; it costs next to nothing.
    Not for: batches of one or two samples, of which a correlation says nothing.
    Equations: the regulariser: `correlation`, `decorrelation`; local loss: `Decorrelation.loss`.
    """
    return Method((Decorrelation(),))
