"""The gradient a short way uphill: two passes per batch (Foret et al., ICLR 2021, Eqs. 2 and 3)."""

from __future__ import annotations

import torch

from fedshift import Client, Step


def replace_by_gradient_uphill(client: Client, step: Step, rho: float) -> None:
    """Replace each gradient g by that of the whole objective at w + rho g / |g|, in place.

    To be called from ``edit_gradients`` of a part that declares ``replaces_gradients``. The norm is
    that of all parameters of the net together which the step moves; a gradient of zero moves
    nothing. The weights come back bit for bit, and BatchNorm statistics do not move a second time.
    Tensors that other parts train outside the net stay where they are and keep their gradient.
    """
    moved = [(p, p.grad) for p in client.net.parameters() if p.grad is not None]
    parameters = [p for p, _ in moved]
    length = torch.stack([g.norm() for _, g in moved]).norm().clamp(min=1e-12)
    before = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for p, g in moved:
            p.add_(g * (rho / length))
    uphill = torch.autograd.grad(client.objective(step.batch), parameters)
    with torch.no_grad():
        for (p, g), w, gradient in zip(moved, before, uphill, strict=True):
            p.copy_(w)
            g.copy_(gradient)
