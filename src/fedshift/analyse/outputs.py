"""What the reported model of a run makes of its test samples: features, logits, labels, domains.

Kinds that look inside a net use it. Models come from the run directory (``experiment.models``),
samples from the data that the run was made with, which must still be the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedshift.base import seeds
from fedshift.base.errors import ConfigError, RunError, UnknownNameError
from fedshift.core.net import Scope
from fedshift.core.scenario import Protocol
from fedshift.data.federation import Federation
from fedshift.data.samples import Samples
from fedshift.engine.federation import federate_for
from fedshift.experiment.identity import require_same_data
from fedshift.experiment.models import Model, load_model
from fedshift.report.results import RunResult

Array = NDArray[Any]


def federation_of(result: RunResult) -> Federation:
    """The sites and domains of a run, from the data that it was made with."""
    config = result.config
    require_same_data(config)
    return federate_for(config.build(), config.scenario, config.seed)


def test_samples(federation: Federation, result: RunResult) -> dict[str, Samples]:
    """Test samples by domain, the unseen one last."""
    found = {name: splits.test for name, splits in federation.domains.items()}
    if federation.unseen is not None:
        found[str(result.config.scenario.unseen)] = federation.unseen.test
    return found


test_samples.__test__ = False  # type: ignore[attr-defined]  # pytest takes the name for a test


def some(samples: Samples, most: int, *names: str) -> Samples:
    """At most ``most`` of the samples, drawn by a generator of that name, in stored order."""
    if len(samples) <= most:
        return samples
    chosen = np.sort(seeds.numpy("analyse", *names).permutation(len(samples))[:most])
    return Samples(
        samples.x,
        samples.y,
        samples.rows[torch.from_numpy(chosen)],
        samples.pixels,
        samples.domains,
    )


def require_on_disk(result: RunResult) -> None:
    """Raise if a run left no directory, and so no model."""
    if result.path is None:
        raise RunError(
            f"run {result.config.name} is not on disk, so there is no model of it; give the run an "
            "out, which keeps it",
            "out=DIR",
        )


@contextmanager
def head_inputs(net: Any) -> Iterator[list[Tensor]]:
    """Collect what reaches the net's head while the block runs, whoever calls it."""
    seen: list[Tensor] = []

    def keep(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0].detach())

    handle = net.head_module.register_forward_pre_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


@torch.no_grad()
def outputs(model: Model, samples: Samples) -> tuple[Tensor, Tensor, Tensor]:
    """Features (n, D), logits (n, K) and labels (n,) of samples, as the method predicts them.

    Features are what reached the head last: of methods that predict with other entries than the
    net's, such as Ditto's personal model, they are those of that model.
    """
    features, logits, labels = [], [], []
    model.net.eval()
    with head_inputs(model.net) as seen:
        for x, y in samples.chunks():
            seen.clear()
            logits.append(model.logits(x))
            features.append(seen[-1].flatten(1))
            labels.append(y)
    return torch.cat(features), torch.cat(logits), torch.cat(labels)


@dataclass(frozen=True)
class FeatureSet:
    """Features of test samples with what is known of each."""

    features: Array  # (N, D)
    logits: Array  # (N, K)
    labels: Array  # (N,)
    domains: Array  # (N,) numbers of ``names``
    names: tuple[str, ...]
    classes: tuple[str, ...]
    note: str = ""  # whose models they are, if not the one for all


def features_of(
    result: RunResult, *, site: str | None = None, domains: str = "", samples: int = 200
) -> FeatureSet:
    """Features of the run's model on test samples of its domains.

    Args:
        result: a run on disk.
        site: whose own model it is; None is the one for all, or where a method has none, for each
            domain the model of its first site.
        domains: names joined by commas; empty means all, the unseen one included.
        samples: the largest number per domain.
    """
    require_on_disk(result)
    federation = federation_of(result)
    held = chosen_domains(test_samples(federation, result), domains)
    parts, note = [], ""
    for number, (name, own) in enumerate(held.items()):
        found = model_for(result, federation, name, site)
        if found is None:
            continue
        model, note = found[0], found[1] or note
        z, logits, y = outputs(model, some(own, samples, name))
        parts.append((z.numpy(), logits.numpy(), y.numpy(), np.full(len(y), number)))
    if not parts:
        raise ConfigError(f"{result.label} has no model for {', '.join(held)}; name a site")
    return FeatureSet(
        features=np.concatenate([part[0] for part in parts]).astype(float),
        logits=np.concatenate([part[1] for part in parts]),
        labels=np.concatenate([part[2] for part in parts]),
        domains=np.concatenate([part[3] for part in parts]),
        names=tuple(held),
        classes=federation.classes,
        note=note,
    )


def chosen_domains(held: dict[str, Samples], wanted: str) -> dict[str, Samples]:
    """The domains that are named, all if none is."""
    names = [word.strip() for word in wanted.split(",") if word.strip()]
    for name in names:
        if name not in held:
            raise UnknownNameError.of("domain of this run", name, held)
    return {name: held[name] for name in names or held}


def model_for(
    result: RunResult, federation: Federation, domain: str, site: str | None
) -> tuple[Model, str] | None:
    """The model that is looked at on a domain, and a note if it is a site's; None if none is."""
    if site is not None:
        return load_model(result, site), f"{result.label}: the model of site {site}"
    try:
        return load_model(result), ""
    except RunError:
        first = next((s for s, held in federation.sites.items() if held.domain == domain), None)
        if first is None:  # the unseen domain has no site
            return None
        note = f"{result.label}: each domain by the model of its first site"
        return load_model(result, first), note


def trained_model(result: RunResult, site: str) -> Model:
    """The model that a site has trained, before aggregation; an error if it was not kept."""
    require_on_disk(result)
    scenario = result.config.scenario
    protocol: Protocol = "personal-trained"
    if scenario.scored == "trained":
        return load_model(result, site, protocol="personal")
    if protocol in result.summary["protocols"]:
        return load_model(result, site, protocol=protocol)
    raise ConfigError(
        f"{result.config.name} did not keep the models that its sites trained, before aggregation; "
        "repeat it with the protocol personal-trained",
        f"scenario.protocols={','.join((*scenario.protocols, protocol))}",
    )


def own_models(result: RunResult, sites: Sequence[str]) -> dict[str, Model]:
    """Each site's own model: the one that it trained if that was kept, else what it has private.

    A run of one model for all, which kept no trained ones, is refused.
    """
    require_on_disk(result)
    scenario = result.config.scenario
    if scenario.scored == "trained" or "personal-trained" in result.summary["protocols"]:
        return {site: trained_model(result, site) for site in sites}
    first = load_model(result, sites[0])
    scopes = first.method.scopes(first.net, bn_local=scenario.bn == "local").values()
    if all(scope is Scope.SHARED for scope in scopes):
        trained_model(result, sites[0])  # says which option keeps them
    return {site: load_model(result, site) for site in sites}
