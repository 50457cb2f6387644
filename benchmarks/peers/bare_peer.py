"""The bare loop of ``benchmarks/common.py``, and FedAvg by hand as the reference for accuracy."""

from __future__ import annotations

import sys
from dataclasses import asdict

import common
import torch
import torch.nn.functional as F
from protocol import given, serve
from torch import Tensor
from work import LR, Work, build, floats


def loop(work: Work, weights: dict[str, Tensor]) -> None:
    """The base of all ratios: as many steps on a batch that is ready; nothing is federated."""
    same = common.Work(**asdict(work))
    serve(work, common.bare(same), lambda: weights)


def by_hand(work: Work, weights: dict[str, Tensor]) -> None:
    """Each client trains the received weights, the plain mean of all replies is sent next."""
    net = build(work, weights)
    shared = weights
    g = torch.Generator().manual_seed(0)

    def visit(client: int) -> dict[str, Tensor]:
        net.load_state_dict(shared)
        net.train()
        x, y = floats(work, client)
        optimiser = torch.optim.SGD(net.parameters(), LR)
        for rows in torch.randperm(work.rows, generator=g).split(work.batch):
            optimiser.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
        return net.state_dict()

    def play() -> None:
        nonlocal shared
        total: dict[str, Tensor] = {k: torch.zeros_like(v) for k, v in shared.items()}
        for client in range(work.clients):
            for key, value in visit(client).items():
                total[key] += value
        shared = {
            k: v / work.clients if v.is_floating_point() else v // work.clients
            for k, v in total.items()
        }

    serve(work, play, lambda: shared)


if __name__ == "__main__":
    (by_hand if "by-hand" in sys.argv else loop)(*given())
