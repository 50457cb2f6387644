"""Gradients taken at other weights than the present ones, for steps that look ahead or uphill."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedshift import Batch, Client, Step


def moving(client: Client) -> list[nn.Parameter]:
    """The parameters of the net that the present step moves: those with a gradient."""
    return [p for p in client.net.parameters() if p.grad is not None]


def replace_by_gradient_at(client: Client, batch: Batch, shifts: Sequence[Tensor]) -> None:
    """Replace the gradient by that of the whole objective on ``batch`` at w + shifts, in place.

    ``shifts`` has one tensor per parameter of :func:`moving`. To be called from ``edit_gradients``
    of a part that declares ``replaces_gradients``. The weights come back bit for bit, and BatchNorm
    statistics do not move a second time. Tensors that other parts train outside the net stay where
    they are and keep their gradient.
    """
    parameters = moving(client)
    before = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for p, shift in zip(parameters, shifts, strict=True):
            p.add_(shift)
    there = torch.autograd.grad(client.objective(batch), parameters)
    with torch.no_grad():
        for p, w, gradient in zip(parameters, before, there, strict=True):
            p.copy_(w)
            p.grad = gradient


def replace_by_gradient_uphill(client: Client, step: Step, rho: float) -> None:
    """Replace each gradient g by that at w + rho g / |g|, in place (Foret et al., Eqs. 2 and 3).

    The norm is that of all parameters together; a gradient of zero moves nothing.
    """
    gradients = [p.grad for p in moving(client) if p.grad is not None]
    length = torch.stack([g.norm() for g in gradients]).norm().clamp(min=1e-12)
    replace_by_gradient_at(client, step.batch, [g * (rho / length) for g in gradients])
