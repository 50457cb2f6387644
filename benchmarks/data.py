"""What data cost: loading a prepared store, and batches against a training step.

Ratios of interleaved repeats; the loading time is printed because its limit is absolute.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from fedshift.base.process import one_thread, tune_process
from fedshift.core.registry import BACKBONES
from fedshift.data.samples import Domain, Samples
from fedshift.data.store import read_domain, write_domain
from fedshift.engine.compute import in_layout

REPEATS = 60


def load_seconds(images: int = 10_000, side: int = 64) -> float:
    """Seconds to open a prepared store of images and take the first batch."""
    x = torch.randint(0, 256, (images, side, side, 3), dtype=torch.uint8)
    split = torch.zeros(images, dtype=torch.uint8)
    domain = Domain("d", x, torch.arange(images) % 10, split, tuple("0123456789"))
    with tempfile.TemporaryDirectory() as folder:
        write_domain(Path(folder) / "d", domain)
        began = time.perf_counter()
        again = read_domain(Path(folder) / "d")
        Samples(again.x, again.y, torch.arange(images)).take(torch.arange(64))
        return time.perf_counter() - began


def batch_share(size: int, backbone: str) -> tuple[float, float, float]:
    """Quartiles of (time of a batch) / (time of a training step) at 32 px."""
    x = torch.randint(0, 256, (4000, 32, 32, 3), dtype=torch.uint8)
    samples = Samples(x, torch.randint(0, 10, (4000,)), torch.arange(4000))
    net = in_layout(BACKBONES.get(backbone).build((3, 32, 32), 10), "channels-last").train()
    optimiser = torch.optim.SGD(net.parameters(), 0.01, fused=True)
    ratios = []
    epoch = torch.randperm(4000).split(size)  # drawn once per epoch, as the loop does
    for repeat in range(REPEATS + 5):
        began = time.perf_counter()
        inputs, labels = samples.take(epoch[repeat % len(epoch)])
        taken = time.perf_counter()
        F.cross_entropy(net(inputs).logits, labels).backward()
        optimiser.step()
        optimiser.zero_grad()
        if repeat >= 5:
            ratios.append((taken - began) / (time.perf_counter() - taken))
    low, middle, high = statistics.quantiles(ratios, n=4)
    return low, middle, high


def main() -> None:
    """Print both."""
    tune_process()
    with one_thread():
        print(f"10,000 images of 64x64 from a store: {1000 * load_seconds():.0f} ms")
        for backbone, size in (("cnn", 16), ("cnn", 64), ("lenet", 64), ("fedka-cnn", 16)):
            shares = [f"{100 * value:.1f}" for value in batch_share(size, backbone)]
            what = f"batch of {size} for {backbone}"
            print(f"{what:<26} {shares[1]} % of a training step ({shares[0]} to {shares[2]})")
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
