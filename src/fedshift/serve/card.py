"""The model card of a run: what the model is, on what it was trained, how well it does, its limits.

``export`` writes one beside every model, and ``fedshift card`` one of any run. Everything comes
from the run directory, where no sample is kept: sizes, class counts, scores, the ledger. The result
is plain JSON; ``card_text`` makes Markdown and HTML of it.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedshift.base.errors import FedshiftError, RunError
from fedshift.base.files import read_json
from fedshift.base.version import __version__
from fedshift.core.measures import BINS
from fedshift.core.objective import Classification
from fedshift.report.intervals import NORMAL, sample_error
from fedshift.report.load import load_run
from fedshift.report.results import RunResult, cell_of
from fedshift.runs.best import STORY
from fedshift.runs.predictions import KeptPredictions, read_predictions
from fedshift.runs.spending import FILE as SPENDING
from fedshift.runs.spending import Spending
from fedshift.runs.what_left import what_left
from fedshift.serve.calibrate import Temperature

Row = dict[str, Any]
FORMAT = 1
SOURCE = "source"  # where ``adapting`` keeps what a card needs of the run
NOT_THIS = "The results above are those of the run's model before it was changed for this site."
QUESTIONS = {
    "personal": "How well does each site's own model do on that site's data?",
    "personal-trained": "The same, before the sites' models are merged.",
    "global": "How well does one model do on the data of every site?",
    "unseen": "How well does one model do at a site that took no part in training?",
    "unseen-adapted": "The same, after adapting to that site's inputs without labels.",
}


def card_of(
    run: RunResult | Path | str,
    *,
    site: str | None = None,
    files: Sequence[Path] = (),
    licence: str = "",
    temperature: Temperature | None = None,
) -> Row:
    """The card of a finished run as JSON.

    Args:
        run: a run directory, or a result that has one.
        site: whose own model the card is of; None: the model for all, or each site's.
        files: exported files, of which sizes and checksums are told.
        licence: under which the model may be used; the card says so if nobody has said it.
        temperature: by which its probabilities are calibrated, see ``calibrate``.
    """
    story = None if isinstance(run, RunResult) else _story(Path(run))
    if story is not None:
        run, site = Path(run) / SOURCE, story["site"]  # type: ignore[arg-type]
    result = run if isinstance(run, RunResult) else load_run(Path(run))
    if result.path is None:
        raise RunError("this run is not on disk, and a card is made from its directory")
    path, scenario = result.path, result.config.scenario
    kept = read_predictions(path)
    return {
        "format": FORMAT,
        "name": result.summary["name"],
        "site": site,
        "method": result.label,
        "licence": licence,
        "task": {"objective": scenario.objective, "classes": list(result.summary["classes"])},
        "data": _data(result, kept),
        "protocol": _protocol(result),
        "results": [_results(result, name, kept) for name in result.summary["protocols"]],
        "calibration": _calibration(result, kept),
        "temperature": None if temperature is None else temperature.to_json(),
        "adapted": story["steps"] if story else [],
        "limits": [*([NOT_THIS] if story else []), *_limits(result)],
        "left": _left(path),
        "privacy": _privacy(result),
        "versions": {"card": __version__, **read_json(path / "config.json")["environment"]},
        "files": [_file(one) for one in files],
        "reproduce": _reproduce(result),
    }


def _story(path: Path) -> Row | None:
    """What ``adapting`` did to a run's model, if the folder holds such a model."""
    found: Row | None = read_json(path / STORY) if (path / STORY).exists() else None
    return found


def _data(result: RunResult, kept: Sequence[KeptPredictions]) -> Row:
    """Sizes of domains and sites, and how many test samples each class has."""
    assert result.path is not None
    roster = result.path / "checkpoints" / "roster.json"
    sites = read_json(roster) if roster.exists() else {}
    return {
        "name": result.config.scenario.data,
        "fingerprint": read_json(result.path / "config.json")["run"].get("data", ""),
        "domains": result.summary.get("samples", {}),
        "test_classes": _class_counts(result, kept),
        "sites": {
            name: {"examples": row["examples"], "domain": row.get("facts", {}).get("domain", "")}
            for name, row in sites.items()
        },
    }


def _class_counts(result: RunResult, kept: Sequence[KeptPredictions]) -> Row:
    """Test samples of each class by domain, where a whole domain's predictions were kept."""
    classes, out = result.summary["classes"], {}
    for one in kept:
        whole = len(one.y) == result.test_samples.get(one.domain)
        if whole and not one.y.is_floating_point():
            found = torch.bincount(one.y.long(), minlength=len(classes)).tolist()
            out[one.domain] = dict(zip(classes, found, strict=True))
    return out


def _protocol(result: RunResult) -> Row:
    scenario = result.config.scenario
    return {
        "scenario": result.config.scenario_label,
        "rounds": result.summary["rounds"],
        "seed": result.config.seed,
        "backbone": scenario.backbone,
        "parameters": result.summary.get("parameters"),
        "unseen": scenario.unseen,
        "selection": scenario.selection,
        "held_equal": dict(result.summary["confounders"]),
    }


def _results(result: RunResult, protocol: str, kept: Sequence[KeptPredictions]) -> Row:
    """The numbers of a protocol, with half-widths of 95 % intervals over test samples."""
    outcome = result.outcome(protocol)
    assert outcome is not None  # the summary names it
    main = result.config.scenario.task.main
    domains = {
        name: {
            main: value,
            "interval": _width(result, protocol, name),
            **{k: v for k, v in outcome.metrics.by_domain.get(name, {}).items() if k != main},
        }
        for name, value in outcome.metrics.domains.items()
    }
    lowest = min(outcome.metrics.domains, key=lambda name: outcome.metrics.domains[name])
    return {
        "protocol": protocol,
        "question": QUESTIONS.get(protocol, ""),
        "round": outcome.round,
        "rule": outcome.rule,
        "measure": main,
        "average": {main: outcome.metrics.avg, "interval": _width(result, protocol, "avg")},
        "domains": domains,
        "sites": _sites(result, protocol, kept),
        "worst": {"name": lowest, main: domains[lowest][main]},
    }


def _width(result: RunResult, protocol: str, key: str) -> float | None:
    """Half of a 95 % interval: of an accuracy from counts, of others from the bootstrap."""
    outcome = result.outcome(protocol)
    assert outcome is not None
    counted = NORMAL * result.error(outcome, key)  # which spares a thousand draws
    return _known(cell_of([result], protocol, key).interval if math.isnan(counted) else counted)


def _sites(result: RunResult, protocol: str, kept: Sequence[KeptPredictions]) -> Row:
    """Each site's own number; of an accuracy with the interval of its test samples."""
    outcome = result.outcome(protocol)
    assert outcome is not None
    found = outcome.metrics.clients
    own = [p for p in kept if (p.protocol, p.round) == (protocol, outcome.round)]
    sizes = dict(zip(sorted(found), own, strict=True)) if len(own) == len(found) else {}
    accuracy = isinstance(result.config.scenario.task, Classification)
    out = {}
    for name, value in found.items():
        n = len(sizes[name].y) if name in sizes else 0
        width = NORMAL * sample_error(value, n) if accuracy and n else math.nan
        out[name] = {result.config.scenario.task.main: value, "interval": _known(width)}
    return out


def _known(width: float) -> float | None:
    return None if math.isnan(width) else width


def _calibration(result: RunResult, kept: Sequence[KeptPredictions]) -> list[Row]:
    """Reliability of each protocol: confidence and accuracy in bins, and their mean gap (ECE)."""
    if not isinstance(result.config.scenario.task, Classification):
        return []
    out = []
    for protocol in dict.fromkeys(p.protocol for p in kept):
        own = [p for p in kept if p.protocol == protocol and p.out.dim() == 2]
        if own:
            p = torch.cat([one.out for one in own]).double().softmax(1).amax(1)
            right = torch.cat([one.out.argmax(1) == one.y for one in own])
            out.append({"protocol": protocol, **reliability(p, right)})
    return out


def reliability(confidence: torch.Tensor, right: torch.Tensor) -> Row:
    """Bins of equal width with their count, mean confidence and accuracy; and the ECE in per cent.

    ECE = sum over bins of |B|/n * |accuracy - mean confidence|; Guo et al., ICML 2017, eq. 3.
    """
    at = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    bins, gap = [], 0.0
    for k in range(BINS):
        chosen = at == k
        n = int(chosen.sum())
        if n:
            mean, share = float(confidence[chosen].mean()), float(right[chosen].double().mean())
            gap += n * abs(share - mean)
            bins.append({"count": n, "confidence": mean, "accuracy": share})
    return {"ece": 100 * gap / len(confidence), "bins": bins}


def _limits(result: RunResult) -> list[str]:
    """What the numbers do not say."""
    scenario = result.config.scenario
    found = [
        "Intervals are over test samples of one seed; they say nothing about another seed.",
        "Scores hold for data like that of the sites above. At a site with another look they may "
        "be much lower" + ("; see the unseen domain." if scenario.unseen else ", and no unseen "
        "site was scored here."),
        "The out-of-distribution score (energy) ranks inputs; it is no probability of an error.",
    ]  # fmt: skip
    if scenario.selection == "validation":
        found.append("The round was chosen on validation data of the same sites.")
    if result.summary.get("lost"):
        found.append("Some sites' replies were lost during training.")
    if len(result.summary["classes"]) > 1:
        found.append("An input of none of the classes is still given one of them.")
    return found


def _left(path: Path) -> list[Row]:
    """What left the sites, by kind: bytes in all, from the ledger."""
    try:
        lines = what_left(path)
    except FedshiftError:  # a run of a Method object, or one without a ledger
        return []
    total: dict[tuple[str, str], int] = defaultdict(int)
    sites: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in lines:
        key = (one.kind, one.declared)
        total[key] += one.bytes
        sites[key].add(one.client)
    return [
        {"kind": kind, "what": what, "bytes": size, "sites": len(sites[kind, what])}
        for (kind, what), size in total.items()
    ]


def _privacy(result: RunResult) -> Row:
    """The guarantees of the run's privacy parts, and how often each site was asked to train."""
    assert result.path is not None
    told = _flat(result.summary.get("privacy", {}))
    visits: dict[str, int] = {}
    if (result.path / SPENDING).exists():
        visits = dict(Spending(result.path).visits())
    return {"guarantees": told, "visits": visits}


def _flat(row: Row, prefix: str = "") -> Row:
    out: Row = {}
    for key, value in row.items():
        name = f"{prefix}{key}"
        out |= _flat(value, f"{name}/") if isinstance(value, dict) else {name: value}
    return out


def _file(path: Path) -> Row:
    blob = path.read_bytes()
    return {"name": path.name, "bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}


def _reproduce(result: RunResult) -> list[str]:
    assert result.path is not None
    if not (result.path / "experiment.toml").exists():
        return []
    return ["fedshift run experiment.toml  # in a folder with a copy of the run's file"]
