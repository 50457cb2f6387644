from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch

from fedshift.base.errors import ClashError, ConfigError, NotAllowedError, UnknownNameError
from fedshift.core.aggregate import Add, ByExamples, Mean, Uniform
from fedshift.core.component import setting
from fedshift.core.method import Method
from fedshift.core.part import Part, Phase
from fedshift.core.registry import METHODS, build
from fedshift.engine.preflight import check_needs
from fedshift.methods.ditto import PersonalModel
from fedshift.methods.fedavgm import Momentum
from fedshift.methods.feddyn import DynamicDual
from fedshift.methods.fedopt import Adam
from fedshift.methods.fedprox import Proximal
from fedshift.methods.fedrep import HeadThenBody
from fedshift.methods.groupdro import ExponentialWeights
from fedshift.methods.mixup import Mixup
from fedshift.methods.moon import ModelContrast
from fedshift.testing import tiny_scenario


def names(method):
    return [p.name for p in method.parts]


def test_parts_are_added_in_order():
    assert names(Method((Proximal(),)).plus(Mixup(), ModelContrast())) == [
        "proximal",
        "mixup",
        "model-contrast",
    ]


def test_parts_are_taken_away_by_name():
    whole = Method((Proximal(), Mixup(), ModelContrast()), Mean(optimiser=Add(0.5)))
    less = whole.without("mixup", "proximal")
    assert less == Method((ModelContrast(),), Mean(optimiser=Add(0.5)))
    assert names(whole) == ["proximal", "mixup", "model-contrast"]  # methods are frozen


def test_taking_the_aggregator_away_puts_the_plain_mean_back():
    whole = build("fednova").without("normalised-mean")
    assert whole == Method()


def test_taking_away_what_is_not_there_gives_the_nearest_name():
    with pytest.raises(UnknownNameError, match="'mixap'; did you mean mixup"):
        Method((Mixup(),)).without("mixap")


def test_settings_are_found_wherever_they_are():
    whole = build("fedprox + fedadam").set("mu", 0.5).set("b2", 0.9).set("adam.tau", 0.1)
    assert whole.parts == (Proximal(0.5),)
    assert whole.aggregate == Mean(optimiser=Adam(b2=0.9, tau=0.1))


def test_a_weightings_setting_is_found():
    assert build("groupdro").set("eta", 0.5).aggregate == Mean(ExponentialWeights(0.5))


def test_with_changes_settings_and_aggregator():
    whole = Method((Proximal(),)).with_(aggregate=Mean(optimiser=Add(0.5)), mu=0.3)
    assert whole == Method((Proximal(0.3),), Mean(optimiser=Add(0.5)))
    both = Method((Proximal(), ModelContrast())).with_(proximal__mu=0.3)
    assert both.parts == (Proximal(0.3), ModelContrast())


def test_with_reaches_a_part_of_two_words():
    """Python has no hyphen in keywords; the part of two words is ``model-contrast``."""
    whole = Method((Proximal(), ModelContrast())).with_(model_contrast__mu=0.3)
    assert whole.parts == (Proximal(), ModelContrast(mu=0.3))


def test_text_is_read_in_the_type_of_the_setting():
    whole = build("feddyn").set("clip", "none").set("alpha", "1e-2")
    assert whole.parts == (DynamicDual(alpha=0.01, clip=None),)
    assert build("fedrep").set("head_epochs", "3").parts[1] == HeadThenBody(3)
    with pytest.raises(ConfigError, match="mu is 'much'; it takes a float"):
        build("fedprox").set("mu", "much")


def test_an_ambiguous_setting_names_both_owners():
    both = Method((Proximal(), ModelContrast()))
    with pytest.raises(
        ConfigError, match=r"'mu' is ambiguous; say proximal\.mu or model-contrast\.mu"
    ):
        both.set("mu", 1.0)
    assert both.set("model-contrast.mu", 2.0).parts == (Proximal(), ModelContrast(mu=2.0))


def test_an_unknown_setting_gives_the_nearest_one():
    with pytest.raises(UnknownNameError, match="'nu'; did you mean mu"):
        build("fedprox").set("nu", 1.0)


@pytest.mark.parametrize(
    ("words", "key", "value", "message"),
    [
        ("fedprox", "mu", -1.0, "proximal.mu is -1.0; it must be at least 0.0"),
        ("fedadam", "b1", 1.5, "adam.b1 is 1.5; it must be from 0.0 to 1.0"),
        ("mixup", "alpha", 0.0, "mixup.alpha is 0.0; it must be at least 1e-06"),
        ("fedprox", "mu", float("nan"), "proximal.mu is nan; it must be at least 0.0"),
    ],
)
def test_a_setting_out_of_range_is_refused(words, key, value, message):
    with pytest.raises(ConfigError, match=message):
        build(words).set(key, value)


def test_two_providers_of_phases_clash_and_both_are_named():
    with pytest.raises(ClashError, match="personal-model and head-then-body both provide 'phases'"):
        Method((PersonalModel(), HeadThenBody()))


@dataclass(frozen=True)
class MixHeads(Part):
    """Answers ``personal``."""

    def personal(self, server, updates):
        return {}


@dataclass(frozen=True)
class MixBodies(Part):
    """Answers ``personal`` and ``predict``."""

    def personal(self, server, updates):
        return {}

    def predict(self, net, x, client):
        return None


@pytest.mark.parametrize(
    ("parts", "hook"),
    [((MixHeads(), MixBodies()), "personal"), ((PersonalModel(), MixBodies()), "predict")],
)
def test_at_most_one_part_mixes_and_one_predicts(parts, hook):
    with pytest.raises(
        ClashError, match=f"{parts[0].name} and {parts[1].name} both provide {hook!r}"
    ):
        Method(parts)


def test_a_part_twice_is_refused():
    with pytest.raises(ClashError, match="part 'proximal' is used twice"):
        Method((Proximal(0.1), Mixup(), Proximal(0.2)))


@pytest.mark.parametrize("name", METHODS.entries())
def test_a_description_is_json_and_tells_every_value(name):
    whole = build(name)
    text = json.loads(json.dumps(whole.describe()))
    assert [p["name"] for p in text["parts"]] == names(whole)
    for owner, key, value in whole.settings():
        rows = [
            *text["parts"],
            text["aggregate"],
            *map(text["aggregate"].get, ("weights", "optimiser")),
        ]
        (row,) = (r for r in rows if r["name"] == owner)
        assert row[key] == value


def test_methods_that_differ_describe_themselves_differently():
    variants = [
        Method(),
        Method((Proximal(),)),
        Method((Proximal(0.5),)),
        Method((Proximal(), Mixup())),
        Method((Mixup(), Proximal())),
        Method(aggregate=Mean(Uniform())),
        Method(aggregate=Mean(ByExamples())),
        Method(aggregate=Mean(optimiser=Add(0.5))),
        Method(aggregate=Mean(optimiser=Momentum())),
    ]
    assert len({json.dumps(m.describe()) for m in variants}) == len(variants)


def test_methods_are_values():
    """Hyper-parameters only: built twice from the same words, they are equal."""
    odd = [name for name in METHODS.entries() if build(name) != build(name)]
    assert odd == []


def test_the_same_aggregator_twice_is_no_clash():
    """Two methods may ask for the same uniform mean."""
    assert Mean(Uniform()) == Mean(Uniform())
    assert Mean(Uniform()) != Mean(ByExamples())


def test_words_make_a_method():
    assert build("fedprox + fedadam") == Method((Proximal(),), Mean(optimiser=Adam()))
    assert build("fedadam + fedprox") == build("fedprox + fedadam")
    assert names(build("fedavg + mixup + proximal")) == ["mixup", "proximal"]
    assert build("fedprox", mu=0.2) == Method((Proximal(0.2),))


def test_two_aggregators_clash():
    with pytest.raises(ClashError, match="are both aggregators, and a method has one"):
        build("feddyn + fedadam")
    assert build("fedavgm + fedprox").aggregate == Mean(optimiser=Momentum())


@pytest.mark.parametrize(
    ("words", "near"),
    [("fedprx", "fedprox"), ("fedavg + mixupp", "mixup"), ("fedavg + proximl", "proximal")],
)
def test_an_unknown_name_gives_the_nearest(words, near):
    with pytest.raises(UnknownNameError, match=f"did you mean .*{near}"):
        build(words)


def test_a_setting_goes_to_the_builder_or_to_the_part():
    whole = build("moon", projector="true", tau=0.1)
    assert names(whole) == ["projector", "model-contrast"]
    assert whole.parts[1] == ModelContrast(tau=0.1)


@dataclass(frozen=True)
class Hungry(Part):
    """Needs what few scenarios grant."""

    needs = frozenset({"public_set"})


@dataclass(frozen=True)
class Aimed(Part):
    needs = frozenset({"server_unlabelled"})


class Comparing(Part):
    min_clients = 2


class Everyone(Part):
    """Needs every client in every round."""

    needs_full_participation = True


def test_what_is_not_allowed_stops_the_run_and_says_how_to_allow_it():
    with pytest.raises(NotAllowedError, match=r"hungry needs a public data set .*add 'public_set'"):
        check_needs(Method((Hungry(),)), tiny_scenario(), 4)
    check_needs(Method((Hungry(),)), tiny_scenario(allow=("public_set",), public="tiny"), 4)


def test_what_is_allowed_has_to_exist():
    with pytest.raises(ConfigError, match=r"hungry needs a public data set.*public='DATASET'"):
        check_needs(Method((Hungry(),)), tiny_scenario(allow=("public_set",)), 4)
    alone = tiny_scenario(unseen=None, protocols=("personal",))
    with pytest.raises(ConfigError, match=r"aimed needs .*the target.*unseen='DOMAIN'"):
        check_needs(Method((Aimed(),)), alone, 4)


def test_a_part_that_compares_clients_refuses_too_few():
    check_needs(Method((Comparing(),)), tiny_scenario(), 2)
    with pytest.raises(ConfigError, match=r"needs at least 2, but .* has 1"):
        check_needs(Method((Comparing(),)), tiny_scenario(), 1)


def test_full_participation_is_checked_against_the_cohort():
    with pytest.raises(ConfigError, match="everyone needs every client in every round, but 2 of 4"):
        check_needs(Method((Everyone(),)), tiny_scenario(clients_per_round=2), 4)
    check_needs(Method((Everyone(),)), tiny_scenario(), 4)


def test_without_a_provider_there_is_one_phase_of_one_player():
    (phase,) = Method((Proximal(),)).phases(None)
    assert phase == Phase()
    assert [(p.name, p.objective) for p in phase.players] == [("model", None)]


def test_payload_is_kept_apart_by_part():
    both = Method((Proximal(), Mixup()))
    found = both.gather(lambda part: {"c": torch.ones(1)} if part.name == "mixup" else {})
    assert list(found) == ["mixup/c"]


@dataclass(frozen=True)
class Bounded(Part):
    """A setting with choices."""

    way: str = setting("near", "which", choices=("near", "far"))


def test_choices_are_checked_when_the_part_is_made():
    with pytest.raises(ConfigError, match=r"bounded\.way is 'up'; it takes one of near, far"):
        Bounded("up")
