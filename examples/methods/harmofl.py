"""HarmoFL's weight perturbation: the gradient a step uphill (Jiang et al., AAAI 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import fedshift as fs


@dataclass(frozen=True)
class ExamplePerturbation(fs.Part):
    """w <- w - lr grad F(w + delta) with delta = alpha grad F(w) / |grad F(w)|.

    F is the whole objective, the terms of other parts included. The paper's other half, amplitude
    normalisation of the inputs, is left out.
    """

    alpha: float = fs.setting(0.05, "length of the perturbation", low=0.0)

    def edit_gradients(self, client: fs.Client, step: fs.Step) -> None:
        moved = [p for p in client.net.parameters() if p.grad is not None]
        length = torch.stack([p.grad.norm() for p in moved]).norm().clamp(min=1e-12)
        before = [p.detach().clone() for p in moved]
        with torch.no_grad():
            for p in moved:
                p.add_(p.grad, alpha=float(self.alpha / length))
        uphill = torch.autograd.grad(client.objective(step.batch), moved)
        with torch.no_grad():
            for p, w, gradient in zip(moved, before, uphill, strict=True):
                p.copy_(w)
                p.grad.copy_(gradient)


@fs.register("example-harmofl", paper="Jiang et al., AAAI 2022")
def harmofl() -> fs.Method:
    """FedAvg that looks for flat minima."""
    return fs.Method((ExamplePerturbation(),))
