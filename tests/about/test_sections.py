"""What builders say of their methods in sections, and what listings make of it."""

from __future__ import annotations

import math

import pytest

from fedshift.about import card
from fedshift.base.registry import Entry, Equation
from fedshift.cli.catalogue import ORDER
from fedshift.core.method import Method
from fedshift.core.registry import METHODS, build
from fedshift.testing import tiny_scenario

OURS = {
    name: entry
    for name, entry in METHODS.entries().items()
    if entry.build.__module__.startswith("fedshift.")
}


def told(text: str) -> Entry[Method]:
    def builder() -> Method:
        return Method()

    builder.__doc__ = text
    return Entry("mine", builder, "")


@pytest.mark.parametrize("name", OURS)
def test_every_method_says_when_to_use_it_and_where_its_equations_are(name):
    entry = OURS[name]
    assert entry.summary.endswith(".")
    assert len(entry.summary) < 70
    assert entry.idea.endswith(".")
    assert entry.use.endswith(".")
    assert entry.not_for.endswith(".")
    assert entry.group in ORDER
    functions = [f for e in entry.equations for f in e.functions]
    assert functions
    assert [f for f in functions if not card.located(entry, f)] == []


def test_sections_are_read_over_several_lines():
    entry = told(
        """A summary.

        An idea
        in two lines.

        Use it: here, and
        there.
        Not for: anything
        else.
        Equations: Eq. 3: `first`, `Second.method`; Algorithm 1, line 5:
        `third`.
        """
    )
    assert entry.summary == "A summary."
    assert entry.idea == "An idea in two lines."
    assert (entry.use, entry.not_for) == ("here, and there.", "anything else.")
    expected = (
        Equation("Eq. 3", ("first", "Second.method")),
        Equation("Algorithm 1, line 5", ("third",)),
    )
    assert entry.equations == expected


@pytest.mark.parametrize("text", ["", "One line.", "One line.\n\nAnd an idea: with a colon.\n"])
def test_a_builder_without_sections_is_read_too(text):
    entry = told(text)
    assert (entry.use, entry.not_for, entry.equations) == ("", "", ())
    assert entry.summary == text.split("\n")[0]
    assert card.card(entry)["parts"] == []


def test_a_function_of_another_method_does_not_count_as_ones_own():
    """FPL's ``cluster_prototypes`` is not MOON's, though both are in one package."""
    assert card.located(METHODS.get("fpl"), "cluster_prototypes")
    assert not card.located(METHODS.get("moon"), "cluster_prototypes")
    assert not card.located(METHODS.get("moon"), "ModelContrast.nothing")
    assert card.located(METHODS.get("fpl"), "finch").startswith("fedshift.methods.shared.finch:")


# bytes, from numbers of parameters


def sizes():
    """Bytes of all entries of the tiny net, and of its trained ones."""
    with_net = card.opened(Method(), tiny_scenario())
    state = with_net.server.shared
    trained = sum(state[k].nbytes for k in with_net.server.parameters)
    return sum(v.nbytes for v in state.values()), trained


def test_scaffold_sends_a_second_copy_of_the_trained_entries_both_ways():
    whole, trained = sizes()
    found = card.traffic(build("scaffold"), tiny_scenario())
    assert found.totals == (whole + trained, whole + trained)


def test_a_local_method_sends_nothing():
    assert card.traffic(build("local"), tiny_scenario()).totals == (0, 0)


def test_half_precision_halves_the_trained_entries_up():
    whole, trained = sizes()
    assert card.traffic(build("half"), tiny_scenario()).totals == (whole - trained // 2, whole)


def test_class_means_are_counted_at_their_largest():
    """K means (K, D) in float32 and K classes in int64; prototypes come down from round 2 on."""
    found = card.traffic(build("fpl"), tiny_scenario())
    session = card.opened(Method(), tiny_scenario())
    d, k = session.server.model.features, session.server.model.classes
    assert found.up["cluster-prototypes"] == 4 * k * d + 8 * k
    assert found.later == ("cluster-prototypes",)


def test_exchanges_beside_training_count():
    found = card.traffic(build("secure-aggregation"), tiny_scenario())
    assert found.talk[0] > 0
    assert found.talk[1] > 0
    assert math.isclose(found.totals[0], sum(found.up.values()) + found.talk[0])


def test_a_method_that_cannot_run_somewhere_says_why():
    found = card.measured(METHODS.get("f2dc"), tiny_scenario(backbone="mlp", backbone_options={}))
    assert "feature maps" in found["problem"]


def test_settings_are_named_as_they_are_typed():
    """``lr`` of a server optimiser, both ``unit`` of FDSE, and options of builders."""
    rows = {r["key"] for r in card.settings(METHODS.get("fdse"), build("fdse"))}
    assert {"layer-consensus.unit", "similarity-mixing.unit", "G"} <= rows
    for name, entry in OURS.items():
        for row in card.settings(entry, entry.build()):
            build(f"{name}[{row['key']}={row['default']}]")


def test_every_option_of_a_builder_says_what_it_is():
    odd = [
        (name, row["key"])
        for name, entry in OURS.items()
        for row in card.settings(entry, entry.build())
        if row["meaning"] in ("", "an option of the method")
    ]
    assert odd == []
    entry = told("A summary.\n\nOptions: first: what it is; second:\nanother one.")
    assert entry.option_doc("second") == "another one"
    assert entry.option_doc("third") == ""


@pytest.mark.parametrize("name", ["krum", "csac", "scaffold", "moon", "f2dc"])
def test_what_is_declared_is_among_the_needs(name):
    text = "; ".join(card.needs(build(name)))
    expected = {
        "krum": ["at least 3 clients", "single updates"],
        "csac": ["every client in every round", "classification"],
        "scaffold": ["local optimiser: sgd"],
        "moon": ["the received model", "the previous model"],
        "f2dc": ["allow domain_ids"],
    }[name]
    assert all(words in text for words in expected)


def test_a_part_that_no_method_has_is_shown_on_fedavg():
    assert card.card(card.entry_of("adapt-bn"))["parts"][0]["name"] == "adapt-bn"
