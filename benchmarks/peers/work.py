"""The same work for every peer, in pure PyTorch: nets, data, how a global model is scored.

Imported in the peers' own environments, where there is no fedshift: the nets are copies with the
same state-dict keys, and ``fedshift_peer.py`` checks that they compute the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LR = 0.01  # plain SGD, no momentum
HELD_OUT = 256  # rows that nobody trains on

Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Work:
    """Net, clients per round (all of them), local steps and batch: one epoch of each client."""

    name: str
    backbone: str
    shape: tuple[int, ...]  # of one input as a net sees it
    classes: int
    clients: int
    steps: int
    batch: int

    @property
    def rows(self) -> int:
        """Of each client."""
        return self.steps * self.batch


WORKS = {
    work.name: work
    for work in (
        Work("A", "fedka-cnn", (3, 28, 28), 10, 10, 32, 16),
        Work("A100", "fedka-cnn", (3, 28, 28), 10, 100, 4, 16),
        Work("B10", "mlp", (384,), 2, 10, 8, 16),
        Work("B100", "mlp", (384,), 2, 100, 8, 16),
        Work("C", "resnet10", (3, 32, 32), 7, 4, 2, 64),
        # One step on all rows: the order of the rows cannot matter, so all losses must agree.
        Work("same", "mlp", (384,), 2, 4, 1, 32),
    )
}


def stored(work: Work, client: int) -> Rows:
    """What a client holds: (N, H, W, C) uint8 or (N, D) floats, and labels (N,).

    Every class is a mean of its own plus noise, so that there is something to learn. The client
    after the last one is the held-out set.
    """
    g = torch.Generator().manual_seed(1 + client)
    rows = work.rows if client < work.clients else HELD_OUT
    y = torch.randint(work.classes, (rows,), generator=g)
    x = 0.4 * _means(work)[y] + torch.randn(rows, *work.shape, generator=g)
    if len(work.shape) == 1:
        return x, y
    pixels = x.mul(50).add(128).clamp(0, 255).to(torch.uint8)
    return pixels.permute(0, 2, 3, 1).contiguous(), y


@cache
def _means(work: Work) -> Tensor:
    """One mean per class (K, *shape); of images in patches, for convolutions to see."""
    g = torch.Generator().manual_seed(0)
    if len(work.shape) == 1:
        return 0.4 * torch.randn(work.classes, *work.shape, generator=g)
    channels, *sides = work.shape
    coarse = torch.randn(work.classes, channels, 7, 7, generator=g)
    return F.interpolate(coarse, size=sides)


@cache
def floats(work: Work, client: int) -> Rows:
    """What a client holds as nets take it: (N, *shape) floats that are ready, and labels (N,)."""
    x, y = stored(work, client)
    return (x.permute(0, 3, 1, 2).div(255).contiguous() if x.dim() == 4 else x), y


class Block(nn.Module):
    """ReLU(branch(x) + shortcut(x)) of a residual net."""

    def __init__(self, inputs: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or inputs != out:
            shortcut = nn.Conv2d(inputs, out, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, C, H, W) to (B, C', H / stride, W / stride)."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


def fedka_cnn(work: Work) -> dict[str, nn.Module]:
    """FedKA's CNN for digits."""
    side = ((work.shape[1] - 4) // 2 - 4) // 2
    return {
        "conv1": nn.Sequential(
            nn.Conv2d(work.shape[0], 64, 5), nn.BatchNorm2d(64), nn.MaxPool2d(2), nn.ReLU()
        ),
        "conv2": nn.Sequential(
            nn.Conv2d(64, 50, 5), nn.BatchNorm2d(50), nn.MaxPool2d(2), nn.ReLU()
        ),
        "flatten": nn.Flatten(),
        "head": nn.Sequential(
            nn.Linear(50 * side * side, 100),
            nn.BatchNorm1d(100),
            nn.ReLU(),
            nn.Linear(100, work.classes),
        ),
    }


def mlp(work: Work) -> dict[str, nn.Module]:
    """384-500-100-classes with BatchNorm."""
    inputs = work.shape[0]
    return {
        "layer1": nn.Sequential(nn.Linear(inputs, 500), nn.BatchNorm1d(500), nn.ReLU()),
        "layer2": nn.Sequential(nn.Linear(500, 100), nn.BatchNorm1d(100), nn.ReLU()),
        "head": nn.Linear(100, work.classes),
    }


def resnet10(work: Work) -> dict[str, nn.Module]:
    """One basic block per stage, stem of one conv 3x3."""
    modules: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(work.shape[0], 64, 3, padding=1, bias=False),
        "bn1": nn.BatchNorm2d(64),
        "relu": nn.ReLU(),
    }
    for i in range(4):
        inputs, out = 64 * 2 ** max(0, i - 1), 64 * 2**i
        modules[f"layer{i + 1}"] = nn.Sequential(Block(inputs, out, 1 if i == 0 else 2))
    return modules | {
        "avgpool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "fc": nn.Linear(512, work.classes),
    }


NETS = {"fedka-cnn": fedka_cnn, "mlp": mlp, "resnet10": resnet10}


def blank(work: Work) -> nn.Module:
    """The net before any weights are loaded."""
    return nn.Sequential(OrderedDict(NETS[work.backbone](work)))


def build(work: Work, weights: Mapping[str, Tensor]) -> nn.Module:
    """The net with these weights."""
    net = blank(work)
    net.load_state_dict(weights)
    return net


@torch.no_grad()
def score(work: Work, state: Mapping[str, Tensor]) -> tuple[float, float]:
    """Loss and accuracy of a global model on the held-out rows.

    The loss is under the statistics of the held-out batch, so that it depends on the trained
    parameters alone; the accuracy is under the running statistics as the framework left them
    (several peers do not average them).
    """
    x, y = floats(work, work.clients)
    net = build(work, state)
    right = (net.eval()(x).argmax(1) == y).float().mean()
    return float(F.cross_entropy(net.train()(x), y)), float(right)
