"""What a part that protects the sites cannot stand beside; said before round 0."""

from __future__ import annotations

from collections.abc import Iterator

from fedshift.aggregate.rules import Mean
from fedshift.aggregate.weightings import ByExamples, Uniform
from fedshift.declare import Declares
from fedshift.errors import ConfigError
from fedshift.method import Method, Part
from fedshift.net import Scope
from fedshift.server import Server

SENDING = ("enrol",)  # what training sends is looked at when it is sealed or vetted
READING = ("merge", "personal")


def check_protection(server: Server) -> None:
    """Refuse by name whatever would leave a site beside what a part protects."""
    guards = [part for part in server.method.parts if part.protects]
    for guard in guards:
        for reason in _objections(server, guard):
            raise ConfigError(f"{guard.name} cannot be used here: {reason}; leave one of them out")
        guard.require(server)
    order = [part.conceals for part in guards]
    if order != sorted(order):
        last = next(part.name for part in guards if part.conceals)
        raise ConfigError(f"{last} hides what the parts after it work on; write it last")


def require_secret(method: Method) -> None:
    """For real machines: refuse noise and keys that follow from a seed which others know."""
    for part in method.parts:
        if part.protects and getattr(part, "randomness", "system") != "system":
            raise ConfigError(
                f"{part.name} draws from the run's seed, which every machine knows; that is for "
                f"simulation: write {part.name}[randomness=system]"
            )


def _objections(server: Server, guard: Part) -> Iterator[str]:
    for item in server.method.declared:
        if item is not guard and (item.needs_individual_updates or not item.protects):
            yield from _beside(guard, item)
    if guard.hides:
        yield from _rule(server)
    if server.keys(Scope.PERSONAL):
        yield f"{min(server.keys(Scope.PERSONAL))} is personal and leaves the site by itself"
    if server.scenario.newcomer == "mean":
        yield "newcomer=mean makes the sites give their private entries away"
    if guard.conceals and server.scenario.bn == "recompute":
        yield "bn=recompute sends the statistics of single sites"


def _beside(guard: Part, item: Declares) -> Iterator[str]:
    """Another part, rule, weighting or optimiser."""
    if item.shares:
        yield f"{item.name} also sends {item.shares}, which it does not cover"
    yield from _hooks(item, "sends more than the weights", SENDING)
    if guard.hides:
        if item.needs_individual_updates:
            yield f"{item.name} needs single updates, and the method sees their mean only"
        yield from _hooks(item, "reads single updates", READING)


def _hooks(item: Declares, what: str, hooks: tuple[str, ...]) -> Iterator[str]:
    for hook in hooks:
        if isinstance(item, Part) and getattr(type(item), hook) is not getattr(Part, hook):
            yield f"{item.name} {what} (its {hook!r})"


def _rule(server: Server) -> Iterator[str]:
    """The rule has to be a plain mean, and nobody may look at its terms."""
    rule = server.method.aggregate
    if type(rule) is not Mean:
        yield f"{rule.name} is not a plain mean"
    if rule.weights is not None and type(rule.weights) not in (ByExamples, Uniform):
        yield f"{rule.weights.name} weighs single updates"
    if server.scenario.analyses:
        yield f"{server.scenario.analyses[0]} looks at single updates"
