"""Regression from data to loss: two hospitals, a linear law, outliers forgiven (Huber, 1964)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import fedshift as fs

SLOPES, OFFSET = torch.tensor([3.0, -2.0, 0.5, 0.0]), 12.0  # y = <SLOPES, x> + OFFSET


@fs.register_dataset("example-plane")
def plane() -> dict[str, fs.Domain]:
    """Tables of four columns around another centre at each hospital; no noise."""
    rng, out = fs.seeds.numpy("example-plane"), {}
    split = torch.tensor([0, 0, 1, 2], dtype=torch.uint8).repeat(24)
    for name, centre in (("north", 0), ("south", 1)):
        x = torch.from_numpy(rng.normal(centre, 1, (96, 4))).float()
        out[name] = fs.Domain(name, x, x @ SLOPES + OFFSET, split, ("y",))
    return out


@fs.register_backbone("example-linear")
def linear(shape: Sequence[int], classes: int) -> fs.Net:
    """One linear layer."""
    modules = {"table": nn.Flatten(), "head": nn.Linear(shape[0], classes)}
    return fs.Net(modules, stages={"table": ("table",)}, head="head", shape=shape, classes=classes)


@fs.register_scenario("example-plane")
def scenario() -> fs.Scenario:
    """Two clients, one per hospital; the net predicts (y - 10) / 4."""
    data = {"name": "example-plane", "data": "example-plane", "domains": ("north", "south")}
    task = {"objective": "regression", "target": (10.0, 4.0), "backbone": "example-linear"}
    return fs.Scenario(**data, **task, epochs=5)


@dataclass(frozen=True)
class ExampleHuber(fs.Part):
    """e^2 up to |e| = delta, then 2 delta |e| - delta^2: a step in the scenario's own units."""

    delta: float = fs.setting(1.0, "error, in units of the target's scale, that is large", low=1e-6)
    objectives = frozenset({"regression"})

    def task_loss(self, client: fs.Client, step: fs.Step) -> Tensor:
        shift, scale = client.scenario.target
        wanted = (step.y - shift) / scale
        return 2 * nn.functional.huber_loss(step.out.logits.squeeze(1), wanted, delta=self.delta)


@fs.register("example-huber", paper="Huber, 1964")
def huber() -> fs.Method:
    """FedAvg that is not led by a few wrong targets."""
    return fs.Method((ExampleHuber(),))
