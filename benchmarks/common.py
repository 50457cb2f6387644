"""What the benchmarks share: synthetic federations, bare loops, interleaved timing."""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import torch
import torch.nn.functional as F

from fedshift.core.config import configure
from fedshift.core.registry import BACKBONES
from fedshift.core.scenario import Scenario
from fedshift.data.dealing.partitions import PerDomain
from fedshift.data.registry import register_dataset
from fedshift.data.samples import Domain
from fedshift.engine.round import play_round
from fedshift.experiment.session import Options, Session, prepare

Program = Callable[[], object]


@dataclass(frozen=True)
class Work:
    """The same work for everybody: net, clients per round, steps, batch."""

    name: str
    backbone: str
    shape: tuple[int, ...]  # of one input as a net sees it
    classes: int
    clients: int
    steps: int
    batch: int
    options: tuple[tuple[str, object], ...] = ()


WORKS = (
    Work("A", "fedka-cnn", (3, 28, 28), 10, 10, 32, 16),
    Work("B10", "mlp", (384,), 2, 10, 8, 16),
    Work("B100", "mlp", (384,), 2, 100, 8, 16),
    Work("C", "resnet10", (3, 32, 32), 7, 4, 2, 64),
)


def samples(work: Work, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stored inputs (N, H, W, C) uint8 or (N, D) float, and labels (N,)."""
    g = torch.Generator().manual_seed(0)
    y = torch.randint(work.classes, (rows,), generator=g)
    if len(work.shape) == 1:
        return torch.randn(rows, *work.shape, generator=g), y
    channels, height, width = work.shape
    x = torch.randint(0, 256, (rows, height, width, channels), generator=g, dtype=torch.uint8)
    return x, y


def scenario(work: Work, *, registered: int | None = None, **changes: object) -> Scenario:
    """One domain dealt to the clients, exactly enough rows for one epoch of the steps each."""
    clients = registered or work.clients
    each = work.steps * work.batch
    name = f"bench-{work.name}-{clients}"

    @register_dataset(name)
    def data() -> dict[str, Domain]:
        x, y = samples(work, each)
        x, y = (t.repeat(clients, *[1] * (t.dim() - 1)) for t in (x, y))
        x, y = (torch.cat([t, t[:each]]) for t in (x, y))
        split = torch.zeros(len(y), dtype=torch.uint8)
        split[-each:] = 1
        split[-each // 2 :] = 2
        return {"one": Domain("one", x, y, split, tuple(map(str, range(work.classes))))}

    return Scenario(
        name=name,
        data=name,
        domains=("one",),
        partition=PerDomain(clients_per_domain=clients),
        pixels="unit",
        backbone=work.backbone,
        backbone_options=dict(work.options),
        rounds=10_000,
        steps=work.steps,
        batch_size=work.batch,
        lr=0.01,
        protocols=("global",),
        clients_per_round=work.clients if registered else None,
    ).change(**changes)


def session(work: Work, method: str, transport: str, workers: int, **changes: object) -> Session:
    """A run before round 1."""
    config, whole = configure(method, scenario(work, **changes))
    return prepare(config, whole, None, Options(transport=transport, workers=workers))


def rounds(opened: Session) -> Program:
    """One federated round: visits and aggregation."""
    return partial(play_round, opened.server, opened.transport, opened.record)


def bare(work: Work, *, channels_last: bool = False) -> Program:
    """The same number of steps on inputs that are ready: no messages, no state, no aggregation."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    net = BACKBONES.get(work.backbone).build(work.shape, work.classes, **dict(work.options))
    x, y = samples(work, work.batch)
    x = x.permute(0, 3, 1, 2).float().div(255) if x.dim() == 4 else x
    if x.dim() == 4:
        net, x = net.to(memory_format=layout), x.contiguous(memory_format=layout)
    optimiser = torch.optim.SGD(net.parameters(), 0.01)

    def play() -> None:
        net.train()
        for _ in range(work.clients * work.steps):
            optimiser.zero_grad()
            F.cross_entropy(net(x).logits, y).backward()
            optimiser.step()

    return play


def apart(make: Callable[[], Program]) -> Program:
    """A program in a process of its own, which shares neither allocator nor settings with ours."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    context.Process(target=_answer, args=(there, make), daemon=True).start()

    def play() -> None:
        here.send(None)
        here.recv()

    return play


def _answer(line: Connection, make: Callable[[], Program]) -> None:
    """Play whenever asked to; the process ends with the one that asks."""
    torch.set_num_threads(1)
    play = make()
    with suppress(EOFError):
        while True:
            line.recv()
            play()
            line.send(None)


def interleave(
    programs: Mapping[str, Program], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each program in each repeat, two first ones dropped."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for repeat in range(repeats + 2):
        for name, play in programs.items():
            began = clock()
            play()
            if repeat >= 2:
                times[name].append(clock() - began)
    return times


def ratios(times: Mapping[str, list[float]], base: str) -> dict[str, tuple[float, float, float]]:
    """Median and quartiles of each program's ratio to ``base`` within a repeat."""
    out = {}
    for name, values in times.items():
        own = [v / b for v, b in zip(values, times[base], strict=True)]
        low, middle, high = statistics.quantiles(own, n=4)
        out[name] = (middle, low, high)
    return out


def header() -> str:
    """Hardware, versions and commit."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}, commit {commit or 'unknown'}"
    )
