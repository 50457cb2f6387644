"""Checks before round 0: every problem that can be known in advance, reported in one line.

``experiment.session``, ``compare`` and deployments call them while a run is prepared. They only
raise; they must never repair a setting, since a silent change would be another experiment.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.nn.modules.batchnorm import _BatchNorm

from fedshift.base.errors import ConfigError, DataError, NotAllowedError
from fedshift.core.aggregate import ByExamples, Mean, Uniform
from fedshift.core.analysis import analysis
from fedshift.core.component import Declares
from fedshift.core.method import Method
from fedshift.core.net import Net, Scope
from fedshift.core.part import Part
from fedshift.core.resource import resource
from fedshift.core.scenario import UNSEEN, Scenario
from fedshift.core.server import Policy, Server
from fedshift.data.federation import Federation


def check_needs(method: Method, scenario: Scenario, clients: int) -> None:
    """Compare what every component declares that it needs with what the scenario allows and has."""
    size = scenario.cohort_size(clients)
    for item in method.declared:
        _check_resources(item, scenario)
        if item.objectives is not None and scenario.objective not in item.objectives:
            raise ConfigError(
                f"{item.name} is for {' and '.join(sorted(item.objectives))}; the objective of "
                f"scenario {scenario.name!r} is {scenario.objective}; use another method, or fedavg"
            )
        if item.needs_full_participation and size < clients:
            raise ConfigError(
                f"{item.name} needs every client in every round, but {size} of {clients} are "
                "sampled; leave out clients_per_round and fraction"
            )
        if clients < item.min_clients:
            raise ConfigError(
                f"{item.name} compares clients and needs at least {item.min_clients}, but scenario "
                f"{scenario.name!r} has {clients}; give it more domains, or another partition"
            )
        _check_optimiser(item, scenario)


def check_policy(method: Method, policy: Policy) -> None:
    """Refuse ``on_loss=skip`` with components that cannot do without a client's update."""
    if policy.on_loss != "skip":
        return
    for item in method.declared:
        if item.needs_full_participation:
            raise ConfigError(
                f"{item.name} needs every client in every round, and on_loss=skip goes on without "
                "those that are lost; use on_loss=wait or fail",
                "on_loss=wait",
            )
        if policy.min_sites < item.min_clients:
            raise ConfigError(
                f"{item.name} compares clients and needs at least {item.min_clients}, but with "
                f"on_loss=skip {policy.min_sites} may be left; set min_sites={item.min_clients}",
                f"min_sites={item.min_clients}",
            )


def _check_resources(item: Declares, scenario: Scenario) -> None:
    """Require that every resource a component needs exists in the scenario and is allowed."""
    for need in map(resource, sorted(item.needs)):
        lacking, allowed = need.missing(scenario), need.granted(scenario)
        remedies = [] if allowed else [(f"add {need.name!r} to its allow", f"allow={need.name}")]
        remedies += [lacking] if lacking else []
        if not remedies:
            continue
        state = "has none" if lacking else "does not allow it"
        text = (
            f"{item.name} needs {need.doc}, and scenario {scenario.name!r} {state}; "
            + " and ".join(remedy for remedy, _ in remedies)
        )
        options = [option for _, option in remedies]
        raise ConfigError(text, *options) if allowed else NotAllowedError(text, *options)


def _check_optimiser(item: Declares, scenario: Scenario) -> None:
    kind = scenario.optimiser_kind
    if item.optimisers is None or kind in item.optimisers or "any_optimiser" in scenario.allow:
        return
    raise ConfigError(
        f"{item.name} holds for {' or '.join(sorted(item.optimisers))}, not for {kind}; change the "
        "optimiser, or add 'any_optimiser' to the scenario's allow to try it all the same",
        "allow=any_optimiser",
    )


def check_data(federation: Federation, scenario: Scenario, net: Net) -> None:
    """Require that every site can train, be scored and take part in selection.

    So no site without training samples, none with a single one under BatchNorm, no missing test or
    validation samples where they are used, and no label outside the classes.
    """
    _check_augmentation(federation, scenario)
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
        if len(site.data.test) == 0 and set(scenario.protocols) - {*UNSEEN}:
            raise DataError(
                f"client {site.id} has no test samples; there is nothing to score; change split"
            )
        if scenario.selection == "validation" and len(site.data.val) == 0:
            raise DataError(
                f"client {site.id} has no validation samples; give it some or set selection=last"
            )
        if problem := scenario.task.wrong_targets(site.data.train.labels, len(federation.classes)):
            raise DataError(f"client {site.id} has {problem}")


def _check_augmentation(federation: Federation, scenario: Scenario) -> None:
    """Refuse to augment vectors: only images are changed, so the option would do nothing."""
    if scenario.augment != "none" and len(federation.shape) != 3:
        raise ConfigError(
            f"augment is {scenario.augment!r}, which changes images, and the inputs are vectors of "
            f"shape {tuple(federation.shape)}; set augment=none, or train on images"
        )


SENDING = ("enrol",)  # hooks whose payload does not pass through ``encode``
READING = ("merge", "personal")  # hooks that read the updates of single clients


def check_protection(server: Server) -> None:
    """Refuse anything that would leave a site outside the protection of a privacy part.

    The message names both. Each privacy part then checks its own conditions (``require``). A part
    that moves the weights into its payload must come last, since later ones would see no weights.
    """
    privacy_parts = [c for c in server.method.channels if c.gives_privacy]
    for privacy_part in privacy_parts:
        for reason in _conflicts(server, privacy_part):
            raise ConfigError(
                f"{privacy_part.name} cannot be used here: {reason}; leave one of them out"
            )
        privacy_part.require(server)
    _check_codecs(server.method)
    order = [part.weights_in_payload for part in privacy_parts]
    if order != sorted(order):
        last = next(part.name for part in privacy_parts if part.weights_in_payload)
        raise ConfigError(
            f"{last} moves the weights into its payload, which the parts after it need; put it last"
        )


def _check_codecs(method: Method) -> None:
    """One codec at most, after the privacy parts: it changes the numbers that they work on."""
    codecs = [channel.name for channel in method.channels if not channel.gives_privacy]
    if len(codecs) > 1:
        raise ConfigError(f"{codecs[0]} and {codecs[1]} both encode the weights; leave one out")
    for i, channel in enumerate(method.channels):
        if channel.weights_in_payload and codecs:
            raise ConfigError(
                f"{channel.name} moves the weights into its payload, and {codecs[0]} encodes "
                "weights; leave one of them out"
            )
        before = [c.name for c in method.channels[:i] if not c.gives_privacy]
        if channel.gives_privacy and before:
            raise ConfigError(
                f"{channel.name} needs the weights as they are, and {before[0]} encodes them "
                f"before; put {before[0]} after it"
            )


def require_secret(method: Method) -> None:
    """For real deployments: refuse noise and keys that are derived from the run's seed.

    Every machine knows the seed; only simulations may draw from it. Only they may pool data, too.
    """
    for part in method.parts:
        if part.pools_sites:
            raise ConfigError(
                f"{part.name} needs the data of all sites in one place, and in a deployment they "
                "stay where they are; it is for simulation: use another method"
            )
        if part.gives_privacy and getattr(part, "randomness", "system") != "system":
            raise ConfigError(
                f"{part.name} draws from the run's seed, which every machine knows; that is for "
                f"simulation: write {part.name}[randomness=system]"
            )


def _conflicts(server: Server, privacy_part: Part) -> Iterator[str]:
    """Everything in this run that contradicts the promise of ``privacy_part``."""
    for item in server.method.declared:
        if item is not privacy_part and (item.needs_individual_updates or not item.gives_privacy):
            yield from _conflicts_with(privacy_part, item)
    if privacy_part.aggregate_only:
        yield from _rule(server)
    if server.keys(Scope.PERSONAL):
        yield f"{min(server.keys(Scope.PERSONAL))} is personal and leaves the site by itself"
    if server.scenario.private_at_new_site == "mean":
        yield "private_at_new_site=mean makes the sites send their private entries"
    if privacy_part.weights_in_payload and server.scenario.bn == "recompute":
        yield "bn=recompute sends the statistics of single sites"


def _conflicts_with(privacy_part: Part, item: Declares) -> Iterator[str]:
    """What another component of the method sends or reads that ``privacy_part`` does not cover."""
    if item.shares:
        yield f"{item.name} also sends {item.shares}, which it does not cover"
    yield from _hooks(item, "sends more than the weights", SENDING)
    if privacy_part.aggregate_only:
        if item.needs_individual_updates:
            yield f"{item.name} needs single updates, and the method sees their mean only"
        yield from _hooks(item, "reads single updates", READING)


def _hooks(item: Declares, what: str, hooks: tuple[str, ...]) -> Iterator[str]:
    """One objection per hook of ``hooks`` that the part overrides."""
    for hook in hooks:
        if isinstance(item, Part) and getattr(type(item), hook) is not getattr(Part, hook):
            yield f"{item.name} {what} (its {hook!r})"


def _rule(server: Server) -> Iterator[str]:
    """Aggregation must be a plain mean, and nothing may read the single updates."""
    rule = server.method.aggregate
    if type(rule) is not Mean:
        yield f"{rule.name} is not a plain mean"
    if rule.weights is not None and type(rule.weights) not in (ByExamples, Uniform):
        yield f"{rule.weights.name} weighs single updates"
    for name in server.scenario.analyses:
        if analysis(name).reads_updates:
            yield f"{name} looks at single updates"
