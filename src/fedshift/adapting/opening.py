"""Open a run's model and a site's data together, for ``adapt`` and ``finetune``.

Which model is taken: the one for everybody, or a site's own where the user names one. A method
whose sites keep entries of their own may have none for everybody; then the error says whose model
to start from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedshift.adapting.site_data import SiteData, name_of, read_site
from fedshift.base.errors import ConfigError, RunError
from fedshift.core.method import Method
from fedshift.data.samples import Samples
from fedshift.experiment.models import Kept, Model
from fedshift.report.results import RunResult


@dataclass(frozen=True)
class Opened:
    """A model that may be changed in place, and a site's data."""

    run: Path
    start: str | None
    model: Model
    data: SiteData

    def told(self, source: str) -> dict[str, Any]:
        """What the new model comes from; ``source`` is the checksum of the model as it was."""
        config = self.model.config
        return {"site": self.data.name, "from": {
            "run": config.name, "method": config.label, "round": self.model.round,
            "start": self.start, "sha256": source,
        }}  # fmt: skip


def open_site(
    run: RunResult | Path | str,
    data: Any,
    site: str | None,
    start: str | None,
    method: Method | None,
) -> Opened:
    """The model of a run and the data of a site that it is to suit."""
    path = run.path if isinstance(run, RunResult) else Path(run)
    if path is None:
        raise RunError("this run is not on disk, and so is no model of it; give the run an out")
    held = Kept.open(path, start, None, method)
    name = site or name_of(data)
    found = read_site(held.inputs, data, name, held.classes, held.config.scenario.task)
    if start is None and not held.one_for_all:
        raise _no_model(held, found)
    if start is not None and held.method.overriding("predict"):
        raise ConfigError(
            f"at site {start} {held.config.label} predicts with more than the net, which adapting "
            "would not change; leave out start, or take the model of another method"
        )
    model = held.of_all() if start is None else held.of_site(start)
    as_new = replace(model, site=name, sites=(name,), client=None, inputs=found.inputs, alike=None)
    return Opened(path, start, as_new, found)


def _no_model(held: Kept, data: SiteData) -> RunError:
    """There is no model for everybody; say whose to start from."""
    alike = held.most_alike(torch.cat([x for x, _ in data.unlabelled.chunks()]))
    best = max(set(alike), key=alike.count) if alike else held.sites[0]
    hint = f"; the data look most like those of {best}" if alike else ""
    return RunError(
        f"{held.config.label} keeps entries private, so there is no one model for all; start from "
        f"that of a site: {', '.join(held.sites)}{hint}",
        f"start={best}",
    )


def outputs(model: Model, samples: Samples) -> Tensor:
    """What a model says (n, K) of samples, in the batches in which samples are scored."""
    return torch.cat([model.logits(x) for x, _ in samples.chunks()])
