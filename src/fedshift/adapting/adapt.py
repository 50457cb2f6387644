"""Adapt a trained model to a new site without labels, and say if that is likely to have hurt it.

Users call :func:`adapt`, and ``fedshift adapt`` does. Adapting is the hook ``adapt`` of parts of
methods (``methods.adapt_bn``, ``tent``, ``t3a``, ``shot``, and those of methods that have their
own); there is no other implementation here. Labels of the site, where there are any, are read to
say how well the model does before and after, and never reach a part or the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedshift.adapting.keep import digest, require_free, write_model
from fedshift.adapting.opening import Opened, open_site, outputs
from fedshift.adapting.scores import Scores, compare
from fedshift.adapting.verdict import Judgement, Signals, batch_norm_shift, judge, signals_of
from fedshift.base import seeds, tree
from fedshift.base.errors import ConfigError, DataError, RunError
from fedshift.core.method import Method
from fedshift.core.net import batch_norm_buffers, load
from fedshift.core.part import Part
from fedshift.core.registry import build
from fedshift.data.samples import Samples
from fedshift.experiment.models import Model
from fedshift.report.results import RunResult

OWN = "own"  # the parts of the run's own method
PLAIN = "adapt-bn"  # what is taken where the method has none, and the second opinion


@dataclass(frozen=True)
class Adapted:
    """An adapted model, the verdict on it, how it compares if there are labels, and its folder."""

    model: Model
    with_: str
    verdict: Judgement
    scores: Scores | None = None
    path: Path | None = None
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """What the command line says."""
        site, seen = self.model.site, self.verdict.signals
        out = [f"adapted to {site} with {self.with_}: {seen.samples} inputs, no label used"]
        out += [str(self.scores)] if self.scores else []
        reasons = [self.verdict.collapse] if self.verdict.collapse else []
        out += [f"warning: {one}" for one in (*reasons, *self.verdict.warnings)]
        out += [f"note: {one}" for one in (*self.verdict.notes, *self.notes)]
        return [*out, *([f"model in {self.path}"] if self.path else [])]

    def to_json(self) -> dict[str, Any]:
        """The same as data."""
        return {
            "site": self.model.site,
            "with": self.with_,
            "verdict": self.verdict.to_json(),
            "scores": self.scores.to_json() if self.scores else None,
            "notes": list(self.notes),
            "path": str(self.path) if self.path else None,
        }


def adapt(  # noqa: PLR0913  as many options as the command has
    run: RunResult | Path | str,
    data: Any,
    *,
    with_: str | None = None,
    site: str | None = None,
    start: str | None = None,
    out: Path | str | None = None,
    force: bool = False,
    method: Method | None = None,
) -> Adapted:
    """Adapt the model of a run to a site that took no part, without labels.

    Args:
        run: a run directory, a model that this function wrote, or a result.
        data: the site's data: a folder of images, a table, an npz file, a DataFrame, an array.
        with_: how: ``own`` (of the run's method), ``adapt-bn``, ``tent``, ``t3a``, ``shot``, or any
            method with a hook ``adapt``, with settings as in ``tent[adapt_lr=0.01]``. By default
            the method's own, else ``adapt-bn``.
        site: what the site is called; by default as the folder or the file.
        start: a site of the run whose own model is taken.
        out: a folder to write the model to; None keeps it in memory.
        force: keep the model although its predictions collapse.
        method: the method, if the run was given a Method object.
    """
    if out is not None:
        require_free(Path(out))
    at = open_site(run, data, site, start, method)
    name, parts = parts_of(at.model, with_)
    source, inputs = digest(at.model.net), at.data.unlabelled
    if len(inputs) < 2:
        raise DataError("the site has 1 input; adapting needs 2 at least, and better some dozens")
    labelled = at.data.labelled
    known = outputs(at.model, labelled) if len(labelled) else None
    verdict = judge(adapt_net(at.model, parts, inputs), at.data.several)
    if verdict.collapse and not force:
        raise RunError(
            f"{name}: {verdict.collapse}; nothing is written: take another way, or force it",
            "force",
        )
    task = at.model.config.scenario.task
    scores = (
        compare(task, labelled.labels, known, outputs(at.model, labelled))
        if known is not None
        else None
    )
    found = Adapted(at.model, name, verdict, scores, None, at.data.notes)
    return found if out is None else _written(found, at, Path(out), source)


def _written(found: Adapted, at: Opened, out: Path, source: str) -> Adapted:
    step = {
        "kind": "adapt",
        "with": found.with_,
        "samples": found.verdict.signals.samples,
        "verdict": found.verdict.to_json(),
        "scores": found.scores.to_json() if found.scores else None,
    }
    write_model(at.run, out, at.model, at.data.inputs, step | at.told(source))
    return replace(found, path=out)


def parts_of(model: Model, with_: str | None) -> tuple[str, Sequence[Part]]:
    """The parts that adapt, and what they are called together."""
    wanted = with_ or (OWN if model.method.overriding("adapt") else PLAIN)
    whole = model.method if wanted == OWN else build(wanted)
    found = whole.overriding("adapt")
    if not found:
        who = model.config.label if wanted == OWN else wanted
        raise ConfigError(
            f"{who} has no way to adapt to a new site; take adapt-bn, tent, t3a or shot",
            f"with={PLAIN}",
        )
    objective = model.config.scenario.objective
    for part in found:
        if part.objectives is not None and objective not in part.objectives:
            raise ConfigError(
                f"{part.name} is for {' and '.join(sorted(part.objectives))}, and the model is for "
                f"{objective}; take adapt-bn", f"with={PLAIN}",
            )  # fmt: skip
        if wanted != OWN:
            part.build(model.net)  # raises if the net has nothing that it could adapt
    return model.config.label if wanted == OWN else wanted, found


def adapt_net(model: Model, parts: Sequence[Part], inputs: Samples) -> Signals:
    """Adapt the model's net in place to unlabelled inputs, and say what that did.

    The random numbers are those of the protocol ``unseen-adapted``.
    """
    before, start = outputs(model, inputs), tree.clone(model.net.state_dict())
    second, shift = _second_opinion(model, inputs)
    load(model.net, start)
    play(model, parts, inputs)
    after = outputs(model, inputs)
    if not bool(after.isfinite().all()):
        raise DataError("after adapting the model gives no finite numbers; check the site's data")
    if model.config.scenario.objective != "classification":
        return Signals(len(inputs), shift=shift)
    return signals_of(before, after, second, shift)


def play(model: Model, parts: Sequence[Part], inputs: Samples) -> None:
    """Let parts adapt the net in place."""
    with seeds.fork(model.config.seed, model.round, "adapt"):
        for part in parts:
            part.adapt(model.net, inputs, model.scoring)
    model.net.eval()


def _second_opinion(model: Model, inputs: Samples) -> tuple[Tensor | None, float | None]:
    """What BatchNorm re-estimation alone predicts, and by how much statistics moved; in place."""
    if not batch_norm_buffers(model.net):
        return None, None
    start = tree.clone(model.net.state_dict())
    play(model, build(PLAIN).parts, inputs)
    return outputs(model, inputs), batch_norm_shift(model.net, start, model.net.state_dict())
