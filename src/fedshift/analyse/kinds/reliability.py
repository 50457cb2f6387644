"""Reliability diagram: how often predictions of some confidence are right (Guo et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedshift.analyse.alike import Series, caption, require_classes, series_of, under_protocol
from fedshift.analyse.finding import Finding, Rows
from fedshift.analyse.pictures import draw
from fedshift.analyse.registry import register_kind
from fedshift.base.errors import ConfigError
from fedshift.report.results import RunResult
from fedshift.runs.predictions import read_predictions


@register_kind("reliability", paper="Guo et al., ICML 2017", group="predictions")
def reliability(
    results: Sequence[RunResult],
    *,
    protocol: str | None = None,
    bins: int = 15,
    domain: str = "",
    mixed: bool = False,
) -> Finding:
    """Accuracy over confidence in bins, from the predictions that a run keeps of its test samples.

    Options: bins: of equal width; domain: only that one's samples.
    """
    found, notes = under_protocol(series_of(results, mixed=mixed), protocol, mixed=mixed)
    require_classes(found, "a reliability diagram")
    if bins < 1:
        raise ConfigError(f"bins is {bins}; it takes 1 or more")
    table: Rows = []
    errors: dict[str, float] = {}
    for one in found:
        confidence, right = confidences(one, domain)
        rows, errors[one.label] = in_bins(confidence, right, bins)
        table += [{"method": one.label, "protocol": one.protocol} | row for row in rows]
    best = min(errors, key=errors.__getitem__)
    sentence = (
        f"{best} is best calibrated under {found[0].protocol}: expected calibration error "
        f"{100 * errors[best]:.1f} %."
    )
    notes += [f"{name}: calibration error {100 * e:.2f} %" for name, e in errors.items()]
    figure = draw(lambda d: _figure(d, table, errors, caption(found)))
    return Finding(table, figure, sentence, tuple(notes))


def confidences(one: Series, domain: str) -> tuple[Tensor, Tensor]:
    """Confidence (n,) and whether the prediction was right (n,), over seeds and domains."""
    found: list[tuple[Tensor, Tensor]] = []
    for run in one.runs:
        held = read_predictions(run.path) if run.path is not None else []
        outcome = run.outcome(one.protocol)
        assert outcome is not None
        own = [
            p
            for p in held
            if (p.protocol, p.round) == (one.protocol, outcome.round) and domain in ("", p.domain)
        ]
        if not own:
            raise ConfigError(
                f"{run.config.name} keeps no predictions for {one.protocol}"
                + (f" on {domain!r}" if domain else "")
                + "; a simulated run in a directory keeps those of its reported round",
                "out=DIR",
            )
        if any(p.out.dim() < 2 for p in own):
            raise ConfigError(
                f"{run.config.name} has so many test samples that it keeps the predicted classes "
                "only, without confidence; use a smaller test split"
            )
        found += [(p.out.double().softmax(1), p.y) for p in own]
    tops = [(p.max(1), y) for p, y in found]
    right = torch.cat([(top.indices == y.long()) for top, y in tops])
    return torch.cat([top.values for top, _ in tops]), right


def in_bins(confidence: Tensor, right: Tensor, bins: int) -> tuple[Rows, float]:
    """Mean confidence and accuracy of each bin that has samples, and the calibration error.

    Bins are of equal width and closed on their right side; ECE = sum |B|/n |accuracy - confidence|.
    """
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    rows: Rows = []
    error = 0.0
    for i in range(bins):
        own = place == i
        count = int(own.sum())
        if not count:
            continue
        sure, hit = float(confidence[own].mean()), float(right[own].double().mean())
        error += count / len(confidence) * abs(hit - sure)
        rows.append(
            {
                "from": i / bins,
                "to": (i + 1) / bins,
                "samples": count,
                "confidence": sure,
                "accuracy": hit,
            }
        )
    return rows, error


def _figure(d: Any, table: Rows, errors: dict[str, float], note: str) -> Any:
    own = {
        f"{name} (ECE {100 * error:.1f} %)": (
            [r["confidence"] for r in table if r["method"] == name],
            [r["accuracy"] for r in table if r["method"] == name],
        )
        for name, error in errors.items()
    }
    return d.reliability(own, d.Chart("reliability", note, x="confidence", y="accuracy"))
