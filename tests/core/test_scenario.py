from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.core.optimiser import Optimisation
from fedshift.core.scenario import Scenario
from fedshift.testing import start, tiny_scenario

CLIENTS = [f"c{i}" for i in range(10)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 2, "steps": 3}, "epochs and steps are both set"),
        ({"clients_per_round": 2, "fraction": 0.5}, "clients_per_round and fraction are both set"),
        ({"momentum": 0.9, "optimiser": "adam"}, "momentum is for sgd; the optimiser is adam"),
        ({"domains": ("dark", "dark")}, "each once"),
        ({"domains": ()}, "at least one domain"),
        ({"protocols": "none,global"}, "protocols.0 is 'none'"),
        ({"unseen": "dark", "domains": ("dark",)}, "domain 'dark' is both trained on and unseen"),
        ({"unseen": None}, "an unseen protocol needs the name of the unseen domain"),
        ({"allow": ("the-moon",)}, "the-moon.* known: any_optimiser"),
        ({"lr": 0.0}, "lr is 0.0: .*greater than 0"),
        ({"momentum": 1.0}, "momentum is 1.0: .*less than 1"),
        ({"rounds": 0}, "rounds is 0: .*greater than or equal to 1"),
        ({"bn": "sometimes"}, "bn is 'sometimes'"),
        ({"partition": {"kind": "per-domain", "clients": 3}}, "partition.per-domain.clients is 3"),
        ({"fraction": 1.5}, "fraction is 1.5"),
    ],
)
def test_values_that_do_not_fit_are_refused_in_one_line(changes, message):
    with pytest.raises(ConfigError, match=message) as error:
        tiny_scenario(**changes)
    assert "\n" not in str(error.value)


def test_an_unknown_option_gives_the_nearest():
    with pytest.raises(UnknownNameError, match="'epoch'; did you mean epochs"):
        tiny_scenario(epoch=3)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("personal", ("personal",)),
        ("personal, global", ("personal", "global")),
        ("global,", ("global",)),
    ],
)
def test_lists_are_typed_with_commas(typed, meant):
    assert tiny_scenario(protocols=typed).protocols == meant


def test_a_list_can_be_taken_away():
    assert tiny_scenario(allow=None).allow == ()
    assert tiny_scenario(analyses="").analyses == ()


def test_a_scenario_does_not_change():
    scenario = tiny_scenario()
    with pytest.raises(ValidationError, match="frozen"):
        scenario.lr = 3.0
    assert scenario.change(lr=0.5).lr == 0.5
    assert scenario.lr == 0.05


def test_asking_for_steps_replaces_epochs_and_a_fraction_replaces_a_number():
    scenario = tiny_scenario(epochs=2, clients_per_round=2)
    assert (scenario.change(steps=3).epochs, scenario.change(steps=3).steps) == (None, 3)
    assert scenario.change(fraction=0.5).clients_per_round is None


def test_asking_for_epochs_replaces_steps_and_a_number_replaces_a_fraction():
    """The same courtesy the other way round."""
    scenario = tiny_scenario(steps=2, fraction=0.5)
    assert (scenario.change(epochs=3).epochs, scenario.change(epochs=3).steps) == (3, None)
    assert scenario.change(clients_per_round=2).fraction is None


def test_a_scenario_survives_json():
    scenario = tiny_scenario(clip=1.0, fraction=0.5)
    assert Scenario.model_validate_json(scenario.model_dump_json()) == scenario


@given(st.integers(0, 5), st.integers(1, 20), st.integers(1, 10), st.randoms())
def test_a_cohort_is_drawn_without_replacement_from_seed_and_round_alone(seed, round_, size, order):
    scenario = tiny_scenario(clients_per_round=size)
    cohort = scenario.cohort(seed, round_, CLIENTS)
    assert len(cohort) == len(set(cohort)) == size
    assert set(cohort) <= set(CLIENTS)
    shuffled = list(CLIENTS)
    order.shuffle(shuffled)
    assert scenario.cohort(seed, round_, shuffled) == cohort


def test_rounds_and_seeds_have_cohorts_of_their_own():
    scenario = tiny_scenario(clients_per_round=5)
    by_round = {tuple(scenario.cohort(0, r, CLIENTS)) for r in range(1, 9)}
    by_seed = {tuple(scenario.cohort(s, 1, CLIENTS)) for s in range(8)}
    assert len(by_round) > 5
    assert len(by_seed) > 5


def test_over_many_rounds_every_client_is_drawn_equally_often():
    """Binomial(1000, 0.3): 300 with a deviation of 14.5; four of them."""
    scenario = tiny_scenario(clients_per_round=3)
    drawn = [c for r in range(1, 1001) for c in scenario.cohort(0, r, CLIENTS)]
    assert all(abs(drawn.count(c) - 300) < 58 for c in CLIENTS)


def test_a_cohort_of_all_is_everybody():
    assert tiny_scenario().cohort(0, 1, CLIENTS[::-1]) == CLIENTS


@pytest.mark.parametrize(
    ("changes", "size"),
    [({}, 10), ({"clients_per_round": 4}, 4), ({"fraction": 0.3}, 3), ({"fraction": 0.01}, 1)],
)
def test_the_size_of_a_cohort(changes, size):
    assert tiny_scenario(**changes).cohort_size(10) == size


def test_more_participants_than_clients_is_refused_before_round_1():
    with pytest.raises(
        ConfigError, match="clients_per_round is 9, but scenario 'tiny' has 4 clients"
    ):
        start("fedavg", clients_per_round=9)


def test_the_schedule_multiplies_by_the_decay_each_round():
    scenario = tiny_scenario(lr=0.8, lr_decay=0.5, momentum=0.9, weight_decay=0.1, clip=3.0)
    assert scenario.optimisation(1) == Optimisation("sgd", 0.8, 0.9, 0.1, 3.0)
    assert [scenario.optimisation(r).lr for r in (1, 2, 3)] == pytest.approx([0.8, 0.4, 0.2])


def test_momentum_is_an_optimiser_kind_of_its_own():
    assert tiny_scenario().optimiser_kind == "sgd"
    assert tiny_scenario(momentum=0.5).optimiser_kind == "momentum"
    assert tiny_scenario(optimiser="adam").optimiser_kind == "adam"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 1}, "1 epoch of 32"),
        ({"epochs": None}, "1 epoch of 32"),
        ({"epochs": 2}, "2 epochs of 32"),
        ({"steps": 1}, "1 step of 32"),
        ({"steps": 5}, "5 steps of 32"),
    ],
)
def test_one_epoch_is_singular(changes, words):
    assert tiny_scenario(batch_size=32, **changes).confounders()["local work"] == words


def test_the_confounders_tell_what_moves_numbers():
    """Whatever of these is changed, the printed choices change with it."""
    plain = tiny_scenario().confounders()
    for changes in (
        {"epochs": 5},
        {"steps": 5},
        {"batch_size": 8},
        {"optimiser": "adam"},
        {"lr": 0.5},
        {"lr_decay": 0.9},
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"clip": 1.0},
        {"optimiser_state": "keep"},
        {"bn": "local"},
        {"weights": "uniform"},
        {"clients_per_round": 2},
        {"fraction": 0.5},
        {"selection": "last"},
        {"scored": "trained"},
        {"evaluate_every": 3},
        {"private_at_new_site": "mean"},
    ):
        assert tiny_scenario(**changes).confounders() != plain, changes
