"""Reference rows for a comparison: what is reached without federated learning.

``compare(references=True)`` adds them: the most frequent class, each site by itself (the method
``local``), one model on all the sites' data in one place, and for tables the two models that a
statistician would try first, logistic regression and gradient boosting, also on pooled data. They
tell how hard the data are; none of them could be had where data may not be pooled. They are scored
on the same test rows as the methods, and kept as run directories, so that reports show them too.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift.base.files import write_bytes, write_json
from fedshift.core.config import RunConfig
from fedshift.core.objective import Objective, score
from fedshift.core.scenario import Scenario
from fedshift.data.dealing.partitions import Even, Pooled
from fedshift.data.federation import Federation, Splits
from fedshift.data.samples import Samples, union
from fedshift.engine.compute import Compute
from fedshift.engine.federation import data_fingerprint, describe_split, federate
from fedshift.evaluate.metrics import Count, Metrics
from fedshift.experiment.identity import configure_run
from fedshift.experiment.predictions import Predicted, as_reported
from fedshift.experiment.progress import Watch
from fedshift.experiment.run import execute, finished
from fedshift.experiment.session import Options, count_samples
from fedshift.report.results import RunResult
from fedshift.runs.predictions import KeptPredictions, read_predictions, write_predictions
from fedshift.runs.record import Row, config_json
from fedshift.runs.summary import summarise

Array = NDArray[Any]
Probabilities = Callable[[Array], Array]  # inputs (N, D) to probabilities (N, K)
Fit = Callable[[Array, Array, int, int], Probabilities]  # from inputs, labels, classes, seed
PREFIX = "reference: "
FOLDER = "references"  # of the pooled runs, inside the folder of a comparison


def references(
    scenario: Scenario, seed: int, out: Path | None, watch: Watch, workers: int
) -> list[RunResult]:
    """The reference rows of one scenario and seed; those that are on disk are read."""
    found = [_pooled(scenario, seed, out, watch, workers)]
    if scenario.objective != "classification":
        return found  # the others predict classes
    federation = federate(scenario, seed)
    kinds: dict[str, Fit] = {"majority class": majority}
    if len(federation.shape) == 1:
        kinds |= {"logistic regression": logistic, "gradient boosting": boosting}
    for name, fit in kinds.items():
        config = _config(name, scenario, seed)
        done = _read(config, out)
        found.append(done or _played(config, fit, federation, out))
    return found


def _played(config: RunConfig, fit: Fit, federation: Federation, out: Path | None) -> RunResult:
    """Fit a model on all training rows, score it and keep the result."""
    train = union([site.data.train for site in federation.sites.values()])
    x, y = _arrays(train)
    predict = fit(x, y, len(federation.classes), config.seed)
    result = _keep(config, _history(predict, federation, config), federation, out)
    if result.path is not None:
        kept = []
        for protocol in config.scenario.protocols:
            outcome = result.outcome(protocol)
            if outcome is not None:
                made = _predicted(predict, _tested(protocol, config, federation))
                kept += as_reported(made, protocol, outcome, config.scenario.task)
        write_predictions(result.path, kept)
    return result


def _config(name: str, scenario: Scenario, seed: int) -> RunConfig:
    return RunConfig(
        method=PREFIX + name,
        composition={"reference": name},
        replayable=False,
        scenario=scenario,
        seed=seed,
        data=data_fingerprint(scenario),
    )


def _read(config: RunConfig, out: Path | None) -> RunResult | None:
    return finished(config, out / config.name, resume=True) if out is not None else None


def _keep(
    config: RunConfig, history: list[Row], federation: Federation, out: Path | None
) -> RunResult:
    """The result of a reference from its scores, kept in a run directory; its summary is last."""
    scenario = config.scenario
    images = len(federation.shape) == 3
    said = scenario.confounders(images=images) | {"split": describe_split(scenario)}
    nothing = {"up": 0, "down": 0}
    summary = summarise(
        config,
        history,
        confounders=said,
        samples=count_samples(federation, scenario.unseen),
        clients=len(federation.sites),
        parameters=0,
        shares={},
        bytes={"train": nothing, "total": nothing},
        seconds=0.0,
        lost={},
        classes=list(federation.classes),
    )
    path = out / config.name if out is not None else None
    if path is not None:
        write_json(path / "config.json", config_json(config, Compute()))
        text = "".join(json.dumps(row) + "\n" for row in history)
        write_bytes(path / "metrics.jsonl", text.encode())
        write_json(path / "summary.json", summary)
    return RunResult(config, history, summary, path)


def _pooled(
    scenario: Scenario, seed: int, out: Path | None, watch: Watch, workers: int
) -> RunResult:
    """FedAvg with one client that holds everything; one model, so it is also every site's own."""
    config = _config("pooled", scenario, seed)
    if done := _read(config, out):
        return done
    held = scenario.partition
    even = held.model_dump(exclude={"kind"}) if isinstance(held, Even) else {}
    alone = scenario.change(
        partition=Pooled(**even),
        protocols=("global", *(p for p in scenario.protocols if p.startswith("unseen"))),
        clients_per_round=None,
        fraction=None,
        bn="average",
        scored="aggregated",
        analyses=(),
    )
    inner, method = configure_run("fedavg", alone, seed=seed)
    path = out / FOLDER / inner.name if out is not None else None
    options = Options(resume=True, transport="auto", listener=watch(inner), workers=workers)
    played = execute(inner, method, path, options)
    history = [row | {"scores": _as_asked(scenario, row)} for row in played.history]
    result = _keep(config, history, federate(scenario, seed), out)
    if path is not None and result.path is not None:
        write_predictions(result.path, [*_predictions_as_asked(scenario, path)])
    return result


def _as_asked(scenario: Scenario, row: Row) -> Row:
    """Scores of one model under the protocols of the scenario; ``personal`` is ``global``."""
    found = row.get("scores")
    if not found:
        return {}
    return {p: found["global" if p.startswith("personal") else p] for p in scenario.protocols}


def _predictions_as_asked(scenario: Scenario, path: Path) -> Iterable[KeptPredictions]:
    """The predictions of the pooled model under the protocols of the scenario."""
    kept = read_predictions(path)
    for protocol in scenario.protocols:
        source = "global" if protocol.startswith("personal") else protocol
        yield from (replace(p, protocol=protocol) for p in kept if p.protocol == source)


def _history(predict: Probabilities, federation: Federation, config: RunConfig) -> list[Row]:
    """One row of metrics: a fitted model scored on every domain."""
    task = config.scenario.task
    val = _metrics(predict, federation.domains, "val", task)
    scores: Row = {
        p: {"val": val, "test": _metrics(predict, _tested(p, config, federation), "test", task)}
        for p in config.scenario.protocols
    }
    return [{"round": 1, "losses": {}, "scores": scores, "seconds": 0.0, "seconds_scoring": 0.0}]


def _tested(protocol: str, config: RunConfig, federation: Federation) -> Mapping[str, Splits]:
    """The domains on which a protocol scores."""
    if protocol.startswith("unseen") and federation.unseen is not None:
        return {str(config.scenario.unseen): federation.unseen}
    return federation.domains


def _arrays(samples: Samples) -> tuple[Array, Array]:
    """Inputs (N, D) and labels (N,) of some samples."""
    x, y = samples.take(torch.arange(len(samples)))
    return x.flatten(1).numpy(), y.numpy()


def _metrics(
    predict: Probabilities, domains: Mapping[str, Splits], part: str, task: Objective
) -> Row:
    """Every measure of the objective on one split of each domain."""
    outputs = partial(_outputs, predict)
    counts = []
    for name, splits in domains.items():
        samples: Samples = getattr(splits, part)
        counts.append(Count.of(score(outputs, samples, task), task.main, name, name, len(samples)))
    return Metrics.of(counts).to_json()


def _outputs(predict: Probabilities, x: Tensor) -> Tensor:
    """Logarithms of probabilities (B, K), which stand for a net's outputs."""
    p = np.clip(predict(x.flatten(1).numpy()), 1e-12, 1)
    return torch.from_numpy(np.log(p)).float()


def _predicted(predict: Probabilities, domains: Mapping[str, Splits]) -> list[Predicted]:
    """What a fitted model predicts for the test samples of each domain."""
    found = []
    for name, splits in domains.items():
        x, y = splits.test.take(torch.arange(len(splits.test)))
        found.append((name, name, y, _outputs(predict, x)))
    return found


def majority(x: Array, y: Array, classes: int, seed: int) -> Probabilities:  # noqa: ARG001
    """Always the most frequent class of the training rows; frequencies are its probabilities."""
    shares = np.bincount(y, minlength=classes) / len(y)
    return lambda inputs: np.tile(shares, (len(inputs), 1))


def logistic(x: Array, y: Array, classes: int, seed: int) -> Probabilities:
    """Logistic regression on standardised inputs."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415  slow to import
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, random_state=seed))
    return _fitted(model, x, y, classes)


def boosting(x: Array, y: Array, classes: int, seed: int) -> Probabilities:
    """Gradient-boosted trees, by histograms, with scikit-learn's defaults."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415  slow to import

    return _fitted(HistGradientBoostingClassifier(random_state=seed), x, y, classes)


def _fitted(model: Any, x: Array, y: Array, classes: int) -> Probabilities:
    """A fitted scikit-learn classifier; its probabilities cover the classes it has not seen too."""
    known = np.unique(y)
    if len(known) < 2:  # nothing to separate
        return majority(x, y, classes, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged after 1,000 steps: a reference all the same
        model.fit(x, y)

    def probabilities(inputs: Array) -> Array:
        out = np.zeros((len(inputs), classes))
        out[:, known] = model.predict_proba(inputs)
        return out

    return probabilities


def with_local(methods: Sequence[Any]) -> list[Any]:
    """The methods, and ``local`` first if it is not among them."""
    return [*methods] if "local" in methods else ["local", *methods]
