"""Let the reported model of a run predict its test samples once more, and keep that.

``experiment.run`` calls it after the last round, so that no round is slower for it, and before the
run is marked as done, with the models that ``experiment.models`` loads from the run directory. What
is kept must be the numbers that the run reports: predictions whose measure is not the reported one
are dropped, and tables then use the counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedshift.base import seeds, tree
from fedshift.base.errors import FedshiftError
from fedshift.core.method import Method
from fedshift.core.net import load
from fedshift.core.objective import Objective
from fedshift.data.federation import Federation
from fedshift.data.samples import Samples
from fedshift.experiment.models import Kept, Model
from fedshift.report.results import Outcome, RunResult
from fedshift.runs.predictions import KeptPredictions, write_predictions

Predicted = tuple[str, str, Tensor, Tensor]  # name, domain, targets and outputs
SAME = 1e-6  # per cent by which a measure may differ from the reported one


def keep_predictions(result: RunResult, method: Method, federation: Federation) -> None:
    """Write the predictions of a run whose rounds are done into its directory, if it has one."""
    if result.path is None:
        return
    found = []
    for protocol in result.summary["protocols"]:
        outcome = result.outcome(protocol)
        if outcome is not None:
            try:
                made = [*_predicted(result.path, method, federation, protocol)]
            except FedshiftError:  # no such model, or it cannot be loaded: the counts have to do
                continue
            found += as_reported(made, protocol, outcome, result.config.scenario.task)
    if found:
        write_predictions(result.path, found)


def as_reported(
    made: Sequence[Predicted], protocol: str, outcome: Outcome, task: Objective
) -> list[KeptPredictions]:
    """The predictions under one protocol; none if they are not those that were reported."""
    reported = outcome.metrics
    found = []
    for name, domain, y, out in made:
        known = reported.clients.get(name, reported.domains.get(domain))
        value = task.measured(out, y)[task.main]
        if known is None or value is None or abs(value - known) > SAME:
            return []
        found.append(KeptPredictions(protocol, outcome.round, domain, y, out))
    return found if {p.domain for p in found} == reported.domains.keys() else []


def _predicted(
    path: Path, method: Method, federation: Federation, protocol: str
) -> Iterator[Predicted]:
    """What each model predicts for each set of test samples."""
    if protocol.startswith("personal"):
        held = Kept.open(path, "", protocol, method)  # type: ignore[arg-type]
        initial = tree.clone(held.net.state_dict())
        for site in held.sites:
            load(held.net, initial)
            own = federation.sites[site]
            yield (site, own.domain, *_outputs(held.of_site(site), own.data.test))
        return
    model = Kept.open(path, None, protocol, method).of_all()  # type: ignore[arg-type]
    if protocol == "global":
        for name, splits in federation.domains.items():
            yield (name, name, *_outputs(model, splits.test))
    elif federation.unseen is not None:
        name = str(model.config.scenario.unseen)
        if protocol == "unseen-adapted":
            _adapt(model, federation.unseen.inputs)
        yield (name, name, *_outputs(model, federation.unseen.test))


def _adapt(model: Model, unlabelled: Samples) -> None:
    """Adapt the model in place, as the evaluation does at the end of a round."""
    with seeds.fork(model.config.seed, model.round, "adapt"):
        for part in model.method.parts:
            part.adapt(model.net, unlabelled, model.scoring)
    model.net.eval()


def _outputs(model: Model, samples: Samples) -> tuple[Tensor, Tensor]:
    """Targets and outputs, in the batches in which samples are scored."""
    outputs = [(y, model.logits(x)) for x, y in samples.chunks()]
    return torch.cat([y for y, _ in outputs]), torch.cat([out for _, out in outputs])
