"""Hostile sites: the algebra of each attack, who attacks, and that it is a simulation only."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.cli.main import main
from fedshift.core.config import configure
from fedshift.core.message import Update
from fedshift.core.registry import build
from fedshift.engine import attacks
from fedshift.engine.attacks import hostile_sites, little_z, refuse_attack, with_trigger
from fedshift.experiment.session import Options, prepare
from fedshift.testing import everything, play, require_same, start, tiny_scenario, worker

SITES = [f"s{i}" for i in range(10)]
STEP = {"a": torch.tensor([[1.0, -2.0]]), "b": torch.tensor([3.0])}
GONE = {"a": torch.tensor([[0.0, 2.0]]), "b": torch.tensor([0.0])}


def forged(name, strength=2.0, step=STEP, gone=GONE):
    return attacks.FORGERIES[name](step, gone, strength, torch.Generator().manual_seed(0))


def test_sign_flip_and_model_replacement_scale_the_step():
    assert torch.equal(forged("sign-flip")["a"], torch.tensor([[-2.0, 4.0]]))
    assert torch.equal(forged("backdoor")["b"], torch.tensor([6.0]))


def test_a_little_is_enough_moves_every_coordinate_by_z_spreads():
    spread = np.std([1.0, -2.0])
    expected = np.array([[1.0, -2.0]]) - 2.0 * spread
    np.testing.assert_allclose(forged("a-little-is-enough")["a"].numpy(), expected, rtol=1e-6)


def test_inner_product_opposes_the_way_so_far_at_the_length_of_the_step():
    found = forged("inner-product")
    length = (1 + 4 + 9) ** 0.5  # of the honest step; the way points along (0, 1, 0)
    np.testing.assert_allclose(found["a"].numpy(), [[0.0, -2 * length]], rtol=1e-6)
    assert float(found["b"]) == 0.0
    still = {k: torch.zeros_like(v) for k, v in GONE.items()}
    first = forged("inner-product", gone=still)
    assert torch.equal(first["b"], torch.tensor([-6.0]))  # round 1: against the own step


def test_noise_has_the_strength_asked_for():
    step = {"w": torch.tensor([3.0, -4.0]).repeat(50_000)}
    noise = forged("scaled-noise", 10.0, step)["w"]
    assert float(noise.std()) == pytest.approx(10 * (12.5**0.5), rel=0.02)
    assert abs(float(noise.mean())) < 0.5


def test_noise_is_measured_by_the_root_mean_square_of_a_step_that_is_mostly_zero():
    step = {"w": torch.tensor([0.0, 0.0, 0.0, 4.0]).repeat(25_000)}  # mean of |w| is 1, its root 2
    assert float(forged("scaled-noise", 10.0, step)["w"].std()) == pytest.approx(20.0, rel=0.02)


def test_labels_are_mirrored():
    _, y = attacks.flip_labels(torch.zeros(3, 1), torch.tensor([0, 1, 3]), 4)
    assert y.tolist() == [3, 2, 0]


def test_every_second_input_carries_the_trigger_and_its_label():
    x, y = torch.zeros(4, 3, 8, 8), torch.tensor([1, 2, 3, 1])
    x[0, 0, 0, 0] = 5.0
    planted, labels = attacks.plant_trigger(x, y, 4)
    assert labels.tolist() == [0, 2, 0, 1]
    assert bool((planted[0, :, -3:, -3:] == 5.0).all())
    assert float(planted[0].sum()) == 5.0 + 3 * 9 * 5.0
    assert torch.equal(planted[1::2], x[1::2])
    assert float(x.sum()) == 5.0  # the stored inputs are as they were


def test_vectors_carry_the_trigger_in_their_last_coordinates():
    x = torch.arange(10.0).view(2, 5)
    assert with_trigger(x).tolist() == [[0, 1, 9, 9, 9], [5, 6, 9, 9, 9]]


def test_z_is_the_quantile_of_the_honest_sites_that_may_stay_inside():
    """n = 50, m = 24: s = 26 - 24 = 2, and a table of the normal law has 24 / 26 at 1.43."""
    assert little_z(50, 24) == pytest.approx(1.43, abs=0.005)


@pytest.mark.parametrize(("fraction", "members"), [(0.2, 2), (0.3, 3), (0.01, 1)])
def test_a_fraction_of_the_sites_attacks_drawn_by_the_seed(fraction, members):
    scenario = tiny_scenario(attack="sign-flip", attackers=fraction)
    drawn = [hostile_sites(scenario, seed, SITES).members for seed in range(5)]
    assert {len(one) for one in drawn} == {members}
    assert len(set(drawn)) > 1
    assert drawn[0] == hostile_sites(scenario, 0, SITES[::-1]).members
    assert hostile_sites(tiny_scenario(), 0, SITES) is None


def test_an_attack_without_attackers_is_an_error():
    with pytest.raises(ConfigError, match="an attack needs the fraction of sites"):
        tiny_scenario(attack="sign-flip")
    with pytest.raises(ConfigError, match="attackers an attack"):
        tiny_scenario(attackers=0.1)


def test_runs_without_an_attack_keep_their_names():
    plain = tiny_scenario().model_dump(mode="json")
    assert not [key for key in plain if key.startswith("attack")]
    hostile = tiny_scenario(attack="label-flip", attackers=0.25)
    assert hostile.model_dump(mode="json")["attack"] == "label-flip"
    assert type(hostile).model_validate(hostile.model_dump(mode="json")) == hostile
    names = {configure("fedavg", one)[0].fingerprint for one in (tiny_scenario(), hostile)}
    assert len(names) == 2
    assert hostile.confounders()["attack"] == "label-flip by 0.25 of the sites"


def train_updates(session):
    seen = session.transport.seen
    return {m.client: m for m in seen if isinstance(m, Update) and m.task == "train"}


def test_hostile_sites_send_the_opposite_step_and_honest_ones_their_own(same_bits):
    """Round 1 of FedAvg with and without a sign flip: theta - (theta_k - theta) = 2 theta - y."""
    plain, attacked = start("fedavg"), start("fedavg", attack="sign-flip", attackers=0.25)
    (hostile,) = worker(attacked).hostile.members
    initial = dict(worker(plain).initial)
    honest, sent = train_updates(play(plain, 1)), train_updates(play(attacked, 1))
    for client, update in sent.items():
        if client != hostile:
            same_bits(update.shared, honest[client].shared)
            continue
        for key, value in update.shared.items():
            trained = key in attacked.server.parameters
            y = honest[client].shared[key]
            expected = 2 * initial[key] - y if trained else y
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("attack", ["label-flip", "backdoor"])
def test_hostile_sites_train_on_changed_batches(attack):
    """Honest replies of round 1 stay the same bits; the hostile one differs."""
    plain, attacked = start("fedavg"), start("fedavg", attack=attack, attackers=0.25)
    members = worker(attacked).hostile.members
    honest, sent = train_updates(play(plain, 1)), train_updates(play(attacked, 1))
    differ = {
        client
        for client, update in sent.items()
        if any(not torch.equal(v, honest[client].shared[k]) for k, v in update.shared.items())
    }
    assert differ == members


def test_the_pool_and_bytes_know_the_same_attackers(tmp_path):
    scenario = tiny_scenario(attack="scaled-noise", attackers=0.5, rounds=2)
    config, method = configure("multi-krum", scenario)
    here = play(prepare(config, method, None))
    for transport in ("wire", "pool"):
        there = prepare(config, method, None, Options(transport=transport, workers=2))
        try:
            require_same(here, play(there), f"in process and {transport}")
        finally:
            there.transport.close()
    assert everything(here)


def test_forged_updates_pass_the_channels_and_the_checks():
    """A hostile site's update is encoded like any other, and nothing of it is kept at the site."""
    session = play(start("fedavg + half", attack="a-little-is-enough", attackers=0.25))
    assert all(bool(v.isfinite().all()) for v in session.server.shared.values())


def test_a_real_deployment_refuses_an_attack():
    with pytest.raises(ConfigError, match="the attack 'backdoor', which is for simulation"):
        refuse_attack(tiny_scenario(attack="backdoor", attackers=0.1))
    refuse_attack(tiny_scenario())


def test_a_site_of_a_deployment_does_not_attack_because_a_server_says_so():
    pytest.importorskip("flwr")
    from fedshift.deploy.flower import apps

    config, _ = configure("fedavg", tiny_scenario(attack="sign-flip", attackers=0.25))
    with pytest.raises(ConfigError, match="for simulation"):
        apps._worker(config, None, None)


def test_the_commands_of_the_page_on_hostile_sites(tmp_path, capsys):
    words = "run --method median --set scenario.attack=sign-flip --set scenario.attackers=0.2"
    small = "--rounds 1 --set scenario.steps=1 --transport inprocess --set backbone.width=2"
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), *small.split(), "--out", str(tmp_path / "run")])
    assert ended.value.code == 0, capsys.readouterr().err
    assert "attack: sign-flip by 0.2 of the sites" in " ".join(capsys.readouterr().out.split())
    assert build("fedbn + trimmed-mean").aggregate.name == "trimmed-mean"
    assert build("krum[attackers=0.25]").aggregate.attackers == 0.25
