"""From a scenario and a seed to sites with data: load, split and partition the data sets.

Sessions, worker processes and comparisons call :func:`federate`; the command line calls
:func:`holdings`. The outcome must depend on (scenario, seed) alone, because every process computes
its own copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from fedshift.base.errors import UnknownNameError
from fedshift.core.method import Method
from fedshift.core.scenario import Scenario
from fedshift.data.dealing.holdings import Holdings, count_holdings
from fedshift.data.dealing.partitions import deal
from fedshift.data.dealing.splits import VAL, Given, apply_split, describe_rule
from fedshift.data.federation import Federation, hide_labels, pooled, site, whole
from fedshift.data.library.datasets import preparation_of
from fedshift.data.library.loaded import load
from fedshift.data.samples import Domain
from fedshift.data.store import fingerprint


def federate(scenario: Scenario, seed: int) -> Federation:
    """Load the data and distribute it to the sites; deterministic given (scenario, seed)."""
    stores, codes = split_domains(scenario, seed)
    domains = {
        name: whole(stores[name], codes[name], scenario.pixels, number)
        for number, name in enumerate(stores)
    }
    trained = {name: stores[name] for name in scenario.domains}
    shares = deal(scenario.partition, trained, codes, seed)
    first = next(iter(stores.values()))
    sites = {share.client: site(share, domains) for share in shares}
    if scenario.labelled is not None:
        sites = {name: hide_labels(s, scenario.labelled, seed) for name, s in sites.items()}
    return Federation(
        sites,
        {name: domains[name] for name in scenario.domains},
        domains[scenario.unseen] if scenario.unseen else None,
        first.classes,
        first.shape,
    )


def federate_for(method: Method, scenario: Scenario, seed: int) -> Federation:
    """As :func:`federate`, with one site that holds everything if the method pools the sites."""
    made = federate(scenario, seed)
    return pooled(made) if method.pools_sites else made


def holdings(scenario: Scenario, seed: int) -> Holdings:
    """Number of training samples per client, domain and class, without building the sites."""
    stores, codes = split_domains(scenario, seed)
    trained = {name: stores[name] for name in scenario.domains}
    return count_holdings(deal(scenario.partition, trained, codes, seed), trained)


def split_domains(scenario: Scenario, seed: int) -> tuple[dict[str, Domain], dict[str, Tensor]]:
    """The scenario's domains, the unseen one last, and for each row its split (train, val or test).

    A partition with ``same_rows`` applies the first domain's split to all training domains: row i
    is the same example in each, and must not be a training row in one and a test row in another.
    """
    stores = load(scenario.data, options_of(scenario))
    rules = dict.fromkeys(scenario.domains, scenario.split)
    if scenario.unseen:
        rules[scenario.unseen] = scenario.unseen_split or scenario.split
    _require_known(scenario, rules, stores)
    codes = {name: apply_split(rule, stores[name], seed) for name, rule in rules.items()}
    if scenario.partition.same_rows:
        codes |= dict.fromkeys(scenario.domains, codes[scenario.domains[0]])
    return {name: stores[name] for name in rules}, codes


def options_of(scenario: Scenario) -> str:
    """The data set's options in the form that :func:`load` expects."""
    return json.dumps(scenario.data_options, sort_keys=True)


def describe_split(scenario: Scenario) -> str:
    """Where train, validation and test rows come from, as results print it.

    A split that comes with the data is told apart from one that was drawn when the data were
    prepared, and a rule that ignores a given split says so.
    """
    stores = stored(scenario)
    trained = [stores[name] for name in scenario.domains]
    classes = all(domain.objective == "classification" for domain in trained)
    text = describe_rule(scenario.split, classes=classes)
    drawn = [domain.name for domain in trained if domain.drawn]
    if isinstance(scenario.split, Given):
        if len(drawn) == len(trained):
            each = " per class" if classes else ""
            text = f"20 %{each} drawn for the test, as the data mark none"
        elif drawn:
            text = f"given with the data, except 20 % drawn for the test of {', '.join(drawn)}"
        else:
            text = "given with the data"
        if any(len(domain.rows(VAL)) == 0 for domain in trained):
            text += f"; validation {100 * scenario.split.val:g} % of the training rows"
    elif any(domain.drawn is False for domain in trained):
        text += "; the split given with the data is not used"
    if scenario.unseen and scenario.unseen_split:
        text += f"; unseen domain: {describe_rule(scenario.unseen_split, classes=classes)}"
    return text


def data_fingerprint(scenario: Scenario) -> str:
    """A hash of the content of every domain that the scenario uses, the public data included."""
    used = dict(stored(scenario))
    if scenario.public is not None and "public_set" in scenario.allow:
        used |= {f"public/{name}": domain for name, domain in load(scenario.public).items()}
    return fingerprint(used)


def input_preparation(scenario: Scenario, federation: Federation) -> dict[str, Any]:
    """How raw data become a net's inputs, for whoever predicts with the run's model.

    ``domains`` says whose data each client holds; the rest is ``library.prepare``'s.
    """
    found = preparation_of(scenario.data, scenario.data_options)
    return found | {"domains": {name: held.domain for name, held in federation.sites.items()}}


def stored(scenario: Scenario) -> dict[str, Domain]:
    """The domains that the scenario uses, complete, without any split."""
    stores = load(scenario.data, options_of(scenario))
    names = [*scenario.domains, *([scenario.unseen] if scenario.unseen else [])]
    _require_known(scenario, names, stores)
    return {name: stores[name] for name in names}


def _require_known(scenario: Scenario, names: Iterable[str], stores: Mapping[str, Domain]) -> None:
    """Raise if the data set has no domain of one of these names."""
    for name in names:
        if name not in stores:
            raise UnknownNameError.of(f"domain of {scenario.data!r}", name, stores)
