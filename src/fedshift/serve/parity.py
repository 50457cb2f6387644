"""Whether an exported model answers as the trained one: on made inputs, and on the test samples.

``export`` refuses to leave a file behind that does not. Test samples are those of the run's
scenario, if its data are still there; where the run keeps what its model predicted for them
(``predictions.safetensors``), the exported model is held against that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedshift.base import seeds
from fedshift.base.errors import FedshiftError
from fedshift.core.objective import Classification
from fedshift.data.samples import Samples
from fedshift.engine.federation import federate_for
from fedshift.experiment.models import BATCH, Model
from fedshift.runs.predictions import KeptPredictions, read_predictions
from fedshift.serve.formats import Runner
from fedshift.serve.graph import Graph

TOLERANCE = 1e-4  # by which outputs may differ; of outputs above 1, in proportion
SIZES = (1, 2, 13)  # of made batches: the graph must take any


@dataclass(frozen=True)
class Asked:
    """Raw inputs, what the trained model answers, and the targets if they are known."""

    x: Tensor  # (n, *shape)
    out: Tensor  # (n, K)
    y: Tensor | None = None
    kept: bool = False  # the answers are those that the run kept
    name: str = ""  # of the site or domain that they are of


@dataclass(frozen=True)
class Parity:
    """How an exported model compares with the trained one."""

    inputs: int
    tests: int  # of them test samples of the run
    kept: int  # of these, compared with the predictions that the run kept
    difference: float  # the largest between two outputs
    proportion: float  # the same, of outputs above 1 in proportion
    same: float  # share of inputs with the same class
    before: float | None = None  # the task's measure on the test samples, trained
    after: float | None = None  # and exported

    @property
    def holds(self) -> bool:
        """Whether both models answer alike."""
        return self.proportion <= TOLERANCE and self.same == 1.0

    def __str__(self) -> str:
        kept = f", {self.kept} against the run's kept predictions" if self.kept else ""
        which = f"{self.inputs - self.tests} made inputs"
        which += f" and {self.tests} test samples{kept}" if self.tests else ""
        classes = "same classes" if self.same == 1 else f"{100 * self.same:.2f} % same classes"
        more = f" ({self.proportion:.1e} in proportion)" if self.difference > TOLERANCE else ""
        return f"{classes} on {which}; outputs within {self.difference:.1e}{more}"


def made_inputs(graph: Graph) -> list[Asked]:
    """Inputs drawn at random, in batches of several sizes."""
    draw = seeds.generator("parity")
    found = []
    for size in SIZES:
        shape = (size, *graph.shape)
        x = (
            torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
            if graph.images
            else torch.randn(shape, generator=draw)
        )
        found.append(Asked(x, _trained(graph, x)))
    return found


def _trained(graph: Graph, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([graph(part)[0] for part in x.split(BATCH)])


def tested_inputs(graph: Graph, run: Path) -> list[Asked]:
    """The test samples of a run; none if its data are gone."""
    model = graph.model
    try:
        sets = _samples(model, "test")
        kept = _kept(model, run)
    except (FedshiftError, OSError):
        return []
    found = []
    for name, samples in sets.items():
        x = stored_inputs(samples)
        known = kept.get(name)
        usable = known is not None and known.out.dim() == 2 and len(known.out) == len(x)
        out = known.out if known is not None and usable else _trained(graph, x)
        found.append(Asked(x, out, samples.labels, usable, name))
    return found


def validation_inputs(graph: Graph) -> list[Asked]:
    """The validation samples of the model's sites; none if the run's data are gone."""
    try:
        sets = _samples(graph.model, "val")
    except (FedshiftError, OSError):
        return []
    unseen = graph.model.config.scenario.unseen  # nobody may learn anything from its labels
    named = {name: (stored_inputs(s), s.labels) for name, s in sets.items() if name != unseen}
    return [Asked(x, _trained(graph, x), y, name=name) for name, (x, y) in named.items()]


def stored_inputs(samples: Samples) -> Tensor:
    """Raw inputs as a graph takes them: images uint8, channels first."""
    x = samples.x[samples.rows]
    return x.permute(0, 3, 1, 2).contiguous() if x.dim() == 4 else x.float()


def _samples(model: Model, split: Literal["val", "test"]) -> dict[str, Samples]:
    """A split of the model's site, or of every domain; those with no samples left out."""
    scenario = model.config.scenario
    made = federate_for(model.method, scenario, model.config.seed)
    if model.site is not None and model.site in made.sites:
        sets = {model.site: made.sites[model.site].data}
    else:
        sets = dict(made.domains)
        if made.unseen is not None:
            sets[str(scenario.unseen)] = made.unseen
    found = {name: one.val if split == "val" else one.test for name, one in sets.items()}
    return {name: samples for name, samples in found.items() if len(samples)}


def _kept(model: Model, run: Path) -> dict[str, KeptPredictions]:
    """The kept predictions of this very model, by site or domain."""
    found = [p for p in read_predictions(run) if p.round == model.round]
    if model.site is None:
        return {p.domain: p for p in found if p.protocol in ("global", "unseen")}
    own = [p for p in found if p.protocol == "personal"]
    return dict(zip(model.sites, own, strict=True)) if len(own) == len(model.sites) else {}


def compare(asked: Sequence[Asked], run: Runner, graph: Graph) -> Parity:
    """Ask the exported model the same."""
    with torch.no_grad():
        answers = [torch.cat([run(p) for p in one.x.split(BATCH)]) for one in asked]
    out, new = torch.cat([one.out for one in asked]), torch.cat(answers)  # (N, K) each
    apart = (out - new).abs().nan_to_num(nan=torch.inf)
    choose = isinstance(graph.task, Classification)
    same = (out.argmax(1) == new.argmax(1)) if choose else ((out > 0) == (new > 0)).all(1)
    tests = [i for i, one in enumerate(asked) if one.y is not None]
    return Parity(
        len(out),
        sum(len(asked[i].x) for i in tests),
        sum(len(asked[i].x) for i in tests if asked[i].kept),
        float(apart.max()),
        float((apart / out.abs().clamp(min=1)).max()),
        float(same.double().mean()) if graph.outputs[0] == "logits" else 1.0,
        _measure(graph, [asked[i].out for i in tests], [asked[i].y for i in tests]),
        _measure(graph, [answers[i] for i in tests], [asked[i].y for i in tests]),
    )


def _measure(graph: Graph, out: Sequence[Tensor], y: Sequence[Tensor | None]) -> float | None:
    """The task's main measure of all test samples together."""
    if not out:
        return None
    targets = torch.cat([one for one in y if one is not None])
    return graph.task.measured(torch.cat(list(out)), targets)[graph.task.main]
