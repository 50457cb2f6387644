"""Everything that can be known to fail before round 0, said in one line."""

from __future__ import annotations

from collections.abc import Iterable

from torch.nn.modules.batchnorm import _BatchNorm

from fedshift.data.federation import Federation
from fedshift.declare import RESOURCES, Declares
from fedshift.errors import ConfigError, DataError, GrantError
from fedshift.faults import Policy
from fedshift.method import Method
from fedshift.net import Net
from fedshift.scenario import Scenario


def check_needs(method: Method, scenario: Scenario, clients: int) -> None:
    """Every declared need against what the scenario grants."""
    size = scenario.cohort_size(clients)
    for item in method.declared:
        _check_target(item, scenario)
        for need in sorted(item.needs - set(scenario.grants)):
            unnamed = need == "public_set" and scenario.public is None
            raise GrantError(
                f"{item.name} needs {RESOURCES[need]}, which scenario {scenario.name!r} does not "
                f"grant; add --grant {need}"
                + (" and name one with --set scenario.public=DATASET" if unnamed else "")
            )
        _check_present(item, scenario)
        if item.needs_full_participation and size < clients:
            raise ConfigError(
                f"{item.name} needs every client in every round, but {size} of {clients} are "
                "sampled; leave out --clients-per-round"
            )
        if clients < item.min_clients:
            raise ConfigError(
                f"{item.name} compares clients and needs at least {item.min_clients}, but scenario "
                f"{scenario.name!r} has {clients}; give it more domains, or another partition"
            )
        _check_optimiser(item, scenario)


def check_policy(method: Method, policy: Policy) -> None:
    """Rounds that may go on without a client against parts that cannot."""
    if policy.on_loss != "skip":
        return
    for item in method.declared:
        if item.needs_full_participation:
            raise ConfigError(
                f"{item.name} needs every client in every round, and on_loss=skip goes on without "
                "those that are lost; use --on-loss wait or fail"
            )
        if policy.min_sites < item.min_clients:
            raise ConfigError(
                f"{item.name} compares clients and needs at least {item.min_clients}, but with "
                f"on_loss=skip {policy.min_sites} may be left; add --min-sites {item.min_clients}"
            )


def _check_target(item: Declares, scenario: Scenario) -> None:
    """A target domain first: its grant alone would not help."""
    target = item.needs & {"server_unlabelled", "client_target_unlabelled"}
    if target and scenario.unseen is None:
        grants = "".join(f" --grant {need}" for need in sorted(target - set(scenario.grants)))
        raise ConfigError(
            f"{item.name} needs a target domain, and scenario {scenario.name!r} has none; name one "
            f"with --set scenario.unseen=DOMAIN{grants}"
        )


def _check_present(item: Declares, scenario: Scenario) -> None:
    """What is granted has to exist as well."""
    if "public_set" in item.needs and scenario.public is None:
        raise ConfigError(
            f"{item.name} needs a public data set, and scenario {scenario.name!r} has none; name "
            "one with --set scenario.public=DATASET"
        )


def _check_optimiser(item: Declares, scenario: Scenario) -> None:
    kind = scenario.optimiser_kind
    if item.optimisers is None or kind in item.optimisers or "any_optimiser" in scenario.grants:
        return
    raise ConfigError(
        f"{item.name} holds for {' or '.join(sorted(item.optimisers))}, not for {kind}; change the "
        "optimiser, or add --grant any_optimiser to try it all the same"
    )


def check_data(federation: Federation, scenario: Scenario, net: Net) -> None:
    """No empty client, no single sample under BatchNorm, something to select on."""
    normalised = any(isinstance(m, _BatchNorm) for m in net.modules())
    if normalised and scenario.batch_size == 1:
        raise ConfigError(
            "batch_size is 1 and the backbone has BatchNorm, which needs 2; raise it, or use "
            "a backbone with norm=group"
        )
    for site in federation.sites.values():
        n = len(site.data.train)
        if n == 0:
            raise DataError(f"client {site.id} has no training samples; drop it or give it some")
        if n == 1 and normalised:
            raise DataError(
                f"client {site.id} has 1 training sample and the backbone has BatchNorm, which "
                "needs 2; give it more, or use a backbone with norm=group"
            )
        if len(site.data.test) == 0 and {"personal", "global"} & set(scenario.protocols):
            raise DataError(
                f"client {site.id} has no test samples; there is nothing to score; change split"
            )
        if scenario.selection == "validation" and len(site.data.val) == 0:
            raise DataError(
                f"client {site.id} has no validation samples; give it some or set selection=last"
            )
        _check_labels(site.id, site.data.train.labels.tolist(), len(federation.classes))


def _check_labels(client: str, labels: Iterable[int], classes: int) -> None:
    odd = sorted({label for label in labels if not 0 <= label < classes})
    if odd:
        raise DataError(f"client {client} has label {odd[0]}; labels go from 0 to {classes - 1}")
