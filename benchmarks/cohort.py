"""A cohort trained as one batch over stacked parameters, against the bare loop: is it worth it?

Work B100 (an MLP whose step is mostly overhead), one thread, interleaved. ``bmm`` is written by
hand for this net and bounds what any such transport can reach; ``vmap`` is torch.func on the net
as it is, which is what a transport for any net would have to use. Neither pays for messages,
batches by index, state or aggregation. Run in two processes at best half of it is left.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from common import WORKS, Program, Work, bare, header, interleave, ratios
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from fedshift.base.process import one_thread, tune_process
from fedshift.core.optimiser import Optimisation
from fedshift.core.registry import BACKBONES

COHORTS = (5, 10, 25)


def inputs(work: Work, cohort: int) -> tuple[Tensor, Tensor]:
    """(K, B, D) and (K, B)."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(cohort, work.batch, *work.shape, generator=g)
    return x, torch.randint(work.classes, (cohort, work.batch), generator=g)


def by_hand(work: Work, cohort: int) -> Program:
    """Batched matrix products over (K, in, out) weights; BatchNorm in its formula."""
    x, y = inputs(work, cohort)
    net = BACKBONES.get(work.backbone).build(work.shape, work.classes)
    stacked = [p.detach().unsqueeze(0).repeat(cohort, *[1] * p.dim()) for p in net.parameters()]
    theta = [t.mT.contiguous() if t.dim() == 3 else t.unsqueeze(1) for t in stacked]
    theta = [torch.nn.Parameter(t) for t in theta]
    optimiser = Optimisation(lr=0.01).build(theta)

    def layer(h: Tensor, weight: Tensor, bias: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        h = torch.baddbmm(bias, h, weight)
        variance, mean = torch.var_mean(h, dim=1, keepdim=True, correction=0)
        return F.relu((h - mean) * torch.rsqrt(variance + 1e-5) * gain + shift)

    def step() -> None:
        h = layer(layer(x, *theta[:4]), *theta[4:8])
        logits = torch.baddbmm(theta[9], h, theta[8])
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / work.batch
        loss.backward()
        optimiser.step()
        for p in theta:
            p.grad = None

    return lambda: [step() for _ in range(work.steps * work.clients // cohort)]


def by_vmap(work: Work, cohort: int) -> Program:
    """torch.func.vmap of the net's own forward and gradient."""
    x, y = inputs(work, cohort)
    nets = [BACKBONES.get(work.backbone).build(work.shape, work.classes) for _ in range(cohort)]
    theta, buffers = stack_module_state(nets)
    moved = [torch.nn.Parameter(t.detach()) for t in theta.values()]
    optimiser = Optimisation(lr=0.01).build(moved)

    def loss(theta: dict, buffers: dict, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(nets[0], (theta, buffers), (x,)).logits, y)

    gradient = vmap(grad(loss))

    def step() -> None:
        found = gradient(dict(zip(theta, moved, strict=True)), buffers, x, y)
        for p, name in zip(moved, theta, strict=True):
            p.grad = found[name].detach()
        optimiser.step()

    return lambda: [step() for _ in range(work.steps * work.clients // cohort)]


def main() -> None:
    """B100 for several cohorts."""
    print(header())
    work = next(w for w in WORKS if w.name == "B100")
    tune_process()
    with one_thread():
        programs = {"bare loop": bare(work)}
        for cohort in COHORTS:
            programs[f"bmm {cohort}"] = by_hand(work, cohort)
            programs[f"vmap {cohort}"] = by_vmap(work, cohort)
        times = interleave(programs, 5, time.process_time)
    for name, (middle, low, high) in ratios(times, "bare loop").items():
        print(f"{name:<10} {middle:5.2f}   ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
