"""Fine-tune a trained model to a site with a few labels.

Users call :func:`finetune`, and ``fedshift finetune`` does. Part of the labelled samples is held
out: it says when to stop and how well the model does before and after. Training goes through the
one loop of the project (``core.loop.descend``), and the statistics of BatchNorm stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift.adapting.keep import digest, require_free, write_model
from fedshift.adapting.opening import open_site, outputs
from fedshift.adapting.scores import Scores, compare
from fedshift.base import seeds, tree
from fedshift.base.errors import ConfigError, DataError
from fedshift.core.loop import Batch, Log, Step, Turn, descend, shuffled_rows
from fedshift.core.method import Method
from fedshift.core.net import Net, Output, head_keys, keys_of_type, load
from fedshift.core.objective import Objective
from fedshift.core.optimiser import Optimisation
from fedshift.data.samples import Samples
from fedshift.experiment.models import Model
from fedshift.report.results import RunResult

LAYERS = ("head", "bn", "all")
HELD_OUT = 0.3  # share of the labelled samples
PATIENCE = 5  # epochs without a lower loss on them
LEAST = 4  # labelled samples


@dataclass(frozen=True)
class Finetuned:
    """A fine-tuned model, how it compares on the samples held out, and where it was written."""

    model: Model
    layers: str
    epoch: int  # whose entries were kept; 0: none was better than the model as it was
    trained: int  # labelled samples trained on
    scores: Scores
    path: Path | None = None

    def lines(self) -> list[str]:
        """What the command line says."""
        out = [f"fine-tuned {self.layers} on {self.trained} samples; epoch {self.epoch} was best",
               f"held out: {self.scores}"]  # fmt: skip
        if self.epoch == 0:
            out.append("note: no epoch was better than the model as it was, which is kept")
        return [*out, *([f"model in {self.path}"] if self.path else [])]

    def to_json(self) -> dict[str, Any]:
        """The same as data."""
        return {
            "site": self.model.site,
            "layers": self.layers,
            "epoch": self.epoch,
            "samples": self.trained,
            "scores": self.scores.to_json(),
            "path": str(self.path) if self.path else None,
        }


def finetune(  # noqa: PLR0913  as many options as the command has
    run: RunResult | Path | str,
    data: Any,
    *,
    layers: str = "head",
    epochs: int = 30,
    lr: float | None = None,
    site: str | None = None,
    start: str | None = None,
    out: Path | str | None = None,
    method: Method | None = None,
) -> Finetuned:
    """Train a model further on a site's labelled samples, with early stopping on some of them.

    Args:
        run: a run directory, a model that :func:`fedshift.adapt` wrote, or a result.
        data: the site's data with labels: a folder of images in class folders, a table with the
            column of labels, an npz file with ``x`` and ``y``.
        layers: what trains: ``head``, ``bn`` (scale and shift of BatchNorm, and the head), ``all``.
        epochs: passes over the samples at most.
        lr: learning rate; by default a tenth of the run's.
        site: what the site is called; by default as the folder or the file.
        start: a site of the run whose own model is taken.
        out: a folder to write the model to; None keeps it in memory.
        method: the method, if the run was given a Method object.
    """
    if layers not in LAYERS:
        raise ConfigError(f"layers is {layers!r}; it takes one of {', '.join(LAYERS)}", "layers")
    if out is not None:
        require_free(Path(out))
    at = open_site(run, data, site, start, method)
    if at.model.method.overriding("predict"):
        raise ConfigError(
            f"{at.model.config.label} predicts with more than the net, which fine-tuning would not "
            "train; fine-tune the model of another method"
        )
    if at.data.notes:  # of labels
        raise DataError(at.data.notes[0])
    train, held = split(at.data.labelled, at.model.config.scenario.task)
    before, source = outputs(at.model, held), digest(at.model.net)
    chosen = _optimisation(at.model, lr)
    epoch = train_net(at.model, train, held, moved(at.model.net, layers), chosen, epochs)
    scores = compare(at.model.config.scenario.task, held.labels, before, outputs(at.model, held))
    found = Finetuned(at.model, layers, epoch, len(train), scores)
    if out is None:
        return found
    step = {"kind": "finetune", "layers": layers, "epoch": epoch, "lr": chosen.lr,
            "samples": len(train), "held_out": len(held), "scores": scores.to_json()}  # fmt: skip
    write_model(at.run, Path(out), at.model, at.data.inputs, step | at.told(source))
    return replace(found, path=Path(out))


def split(labelled: Samples, task: Objective) -> tuple[Samples, Samples]:
    """Samples to train on and samples held out, class by class as far as there are enough.

    The draw depends on the number of samples alone. Every class keeps a sample to train on.
    """
    if len(labelled) < LEAST:
        raise DataError(
            f"the site has {len(labelled)} labelled samples; fine-tuning needs {LEAST}: images in "
            "folders called like the classes, or rows with the label's column filled in"
        )
    draw = seeds.generator("finetune", len(labelled))
    order = torch.randperm(len(labelled), generator=draw)
    y = labelled.labels if task.name == "classification" else torch.zeros(len(labelled))
    held = torch.zeros(len(labelled), dtype=torch.bool)
    for value in y.unique():
        own = order[y[order] == value]
        held[own[: min(math.ceil(HELD_OUT * len(own)), len(own) - 1)]] = True
    if not held.any():
        held[order[: math.ceil(HELD_OUT * len(order))]] = True
    return (
        replace(labelled, rows=labelled.rows[~held]),
        replace(labelled, rows=labelled.rows[held]),
    )


def moved(net: Net, layers: str) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that train; what the run held fixed stays fixed."""
    head, norms = head_keys(net), keys_of_type(net, _BatchNorm)
    wanted = {"head": head, "bn": head | norms, "all": set(net.state_dict())}[layers]
    found = [(k, p) for k, p in net.named_parameters() if k in wanted and p.requires_grad]
    if layers == "bn" and not norms:
        raise ConfigError("this backbone has no BatchNorm; train head or all", "layers=head")
    return found


def train_net(
    model: Model,
    train: Samples,
    held: Samples,
    parameters: list[tuple[str, torch.nn.Parameter]],
    chosen: Optimisation,
    epochs: int,
) -> int:
    """Train in place and leave the entries of the epoch with the lowest loss on ``held``.

    The net runs as it predicts: BatchNorm with its statistics, no dropout.
    """
    net, task = model.net, model.config.scenario.task

    def forward(batch: Batch) -> Output:
        out: Output = net.eval()(batch.x)
        return out

    def objective(step: Step) -> dict[str, Tensor]:
        return {"finetune": task.loss(step.out.logits, step.y)}

    turn = Turn("finetune", parameters, forward, objective, chosen)
    draw = seeds.generator(model.config.seed, "finetune")
    kept, lowest, best = tree.clone(net.state_dict()), _loss(model, held), 0
    for epoch in range(1, epochs + 1):
        log = Log()
        descend(net, _batches(train, model.config.scenario.batch_size, draw), [turn], log)
        log.means(f"fine-tuning, epoch {epoch}")
        loss = _loss(model, held)
        if loss < lowest:
            kept, lowest, best = tree.clone(net.state_dict()), loss, epoch
        elif epoch - best >= PATIENCE:
            break
    load(net, kept)
    net.eval()
    return best


def _batches(samples: Samples, size: int, draw: torch.Generator) -> Iterator[Batch]:
    rows = shuffled_rows(len(samples), size, draw, epochs=1, steps=None)
    for i, positions in enumerate(rows):
        yield Batch(*samples.take(positions), i)


def _loss(model: Model, samples: Samples) -> float:
    model.net.eval()
    return float(model.config.scenario.task.loss(outputs(model, samples), samples.labels))


def _optimisation(model: Model, lr: float | None) -> Optimisation:
    """The run's optimiser, by default at a tenth of its first rate."""
    usual = model.config.scenario.optimisation(1)
    rate = usual.lr / 10 if lr is None else lr
    if not 0 <= rate < math.inf:
        raise ConfigError(f"lr is {rate}; it takes a number from 0 on", "lr=NUMBER")
    return replace(usual, lr=rate)
