"""What stacks: every refused pair says why with both names, every other one can be trained.

A sample here, in a fixed order; all pairs where every case is asked for. Training a pair takes
longer than building it, so even there only some are trained.
"""

from __future__ import annotations

import functools
from itertools import islice

import pytest

from fedshift.about import stacks
from fedshift.base import seeds
from fedshift.base.errors import FedshiftError
from fedshift.core.aggregate import Mean
from fedshift.core.method import Method
from fedshift.core.registry import METHODS, build, join
from fedshift.testing import begin

BUILT, TRAINED = 60, 6  # pairs of a quick run
MORE_TRAINED = 150  # where every case is asked for
RULES = (
    *("median", "trimmed-mean", "krum", "multi-krum", "norm-clip", "geometric-median"),
    *("f2dc", "fdse", "csac"),  # domain-aware weights, layer consensus, divergence fusion
)
OBJECTIVE = ("batch", "loss", "task_loss", "phases", "edit_gradients")


@functools.cache
def known() -> dict[str, stacks.Unit]:
    return stacks.units(ours=True)


@functools.cache
def free() -> dict[str, stacks.Unit]:
    needy = stacks.alone(known().values())
    return {name: unit for name, unit in known().items() if name not in needy}


def in_some_order():
    """All pairs in an order that is the same on every machine and mixes the groups."""
    pairs = list(stacks.pairs(free()))
    return sorted(pairs, key=lambda p: seeds.derive("pairs", p[0].name, p[1].name))


def named(unit: stacks.Unit, reason: str) -> bool:
    return any(name in reason for name in unit.names)


def check(left: stacks.Unit, right: stacks.Unit) -> bool:
    """Whether a pair stacks; a refused one has to say why."""
    refused = stacks.refusal(left, right)
    if refused is None:
        return True
    told = f"{left.name} + {right.name}: {refused.reason}"
    assert named(left, refused.reason), f"{told} does not name {left.name}"
    assert named(right, refused.reason), f"{told} does not name {right.name}"
    assert ";" in refused.reason, f"{told} does not say what to do"
    return False


def train(method: Method) -> None:
    """One tiny round, scored."""
    session = begin(method, rounds=1, steps=1)
    try:
        assert session.advance()["scores"]
    finally:
        session.transport.close()


def joined(left: stacks.Unit, right: stacks.Unit) -> Method:
    """Both in an order that works."""
    method = join(left.method, right.method, right.name)
    return join(right.method, left.method, left.name) if stacks.why_refused(method) else method


def test_a_refused_pair_names_both_and_says_what_to_do():
    found = [check(*pair) for pair in islice(in_some_order(), BUILT)]
    assert True in found
    assert False in found


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_every_refused_pair_names_both_and_says_what_to_do():
    for pair in in_some_order():
        check(*pair)


def stacking(count: int):
    pairs = (p for p in in_some_order() if p[0].method.parts or p[1].method.parts)
    return list(islice((p for p in pairs if stacks.refusal(*p) is None), count))


def test_pairs_that_stack_can_be_trained():
    for pair in stacking(TRAINED):
        train(joined(*pair))


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_many_more_pairs_that_stack_can_be_trained():
    for pair in stacking(MORE_TRAINED):
        train(joined(*pair))


def test_a_part_that_needs_another_one_names_it():
    reasons = {name: stacks.why_refused(known()[name].method) for name in known() - free().keys()}
    assert "decompose-layers" in reasons["statistics-consistency"]
    assert all(";" in reason for reason in reasons.values())


def test_a_rule_without_the_parts_of_its_method_is_refused_or_trains():
    """GroupDRO's weights read what ``loss-probe`` sends; layer consensus needs no part."""
    rules = [u for u in known().values() if not u.method.parts and build(u.home).parts]
    refused = {u.name: stacks.why_refused(u.method) for u in rules}
    assert "add + loss-probe" in refused["exponential-weights"]
    for unit in rules:
        if not refused[unit.name]:
            train(unit.method)


def test_an_order_that_does_not_work_is_told():
    central, half = known()["central-dp"], known()["half"]
    found = stacks.order(central, half)
    assert found is not None
    assert (found.left, found.right) == ("half", "central-dp")
    assert "put half after it" in found.reason
    assert stacks.order(known()["mixup"], known()["proximal"]) is None


@pytest.mark.parametrize("method", ["fedavg", "fpl", "fedheal", "fdse"])
def test_decouple_and_correct_trains_on_the_methods_of_its_table_3(method):
    train(build(f"{method} + decouple-and-correct"))


def objectives() -> list[str]:
    """Methods of the project whose clients do something of their own."""
    return [
        name
        for name, entry in METHODS.entries().items()
        if entry.build.__module__.startswith("fedshift.methods")
        and any(entry.build().overriding(hook) for hook in OBJECTIVE)
    ]


def under(method: Method, rule: str) -> Method:
    """The method's parts with the aggregator of another one."""
    return Method(method.parts, build(rule).aggregate)


def test_rules_stand_under_local_objectives_and_mixup_beside_them():
    """Each objective with one rule in turn, and with mixup."""
    for i, name in enumerate(objectives()):
        method = build(name)  # its aggregator may need its parts, which stay
        assert stacks.why_refused(under(method, RULES[i % len(RULES)])) == "", name
        assert name == "mixup" or stacks.why_refused(build(f"{name} + mixup")) == "", name


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_stands_under_every_local_objective(rule):
    for name in objectives():
        assert stacks.why_refused(under(build(name), rule)) == "", name


def test_two_aggregators_are_refused_with_what_each_is():
    with pytest.raises(FedshiftError, match="domain-aware and consistent-mean, distance-weights"):
        build("f2dc + fedheal")
    assert build("f2dc - mean + fedheal").aggregate == build("fedheal").aggregate
    assert Mean().label == ""
