"""Clipping, noise, what leaves a site, and who is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError, RunError
from fedshift.core.client import Client
from fedshift.core.config import configure
from fedshift.core.message import Lost, Update
from fedshift.core.method import Method
from fedshift.core.part import Part
from fedshift.core.payload import PayloadSpec
from fedshift.core.registry import build, parts
from fedshift.core.server import Policy
from fedshift.engine import replies
from fedshift.engine.preflight import require_secret
from fedshift.experiment.run import execute
from fedshift.experiment.session import Options
from fedshift.privacy.accountant import epsilon
from fedshift.privacy.dp import CentralDP, LocalDP
from fedshift.testing import play, start, tiny_scenario

STILL = {"lr": 1e-12, "steps": 1}  # so small a rate moves no bit


def updates(session, round_):
    seen = [m for m in session.transport.seen if isinstance(m, Update)]
    return [m for m in seen if (m.task, m.round) == ("train", round_)]


def steps(session, theta):
    """Each client's theta_k - theta, flat, in float64."""
    return [
        np.concatenate([(u.shared[k] - theta[k]).double().numpy().ravel() for k in theta])
        for u in updates(session, 1)
    ]


def flat(shared, theta):
    return np.concatenate([(shared[k] - theta[k]).double().numpy().ravel() for k in theta])


def test_with_a_wide_clip_and_no_noise_it_is_the_plain_mean():
    private = play(start("central-dp[clip=1e6, noise=0]"))
    plain = play(start("fedavg", bn="local", weights="uniform"))
    for key, value in plain.server.shared.items():
        torch.testing.assert_close(private.server.shared[key], value, rtol=1e-5, atol=1e-6)
        assert private.server.shared[key].dtype == value.dtype


@pytest.mark.parametrize("clip", [0.05, 0.15])
def test_every_site_is_clipped_over_all_trained_entries_together(clip):
    session = start(f"central-dp[clip={clip}, noise=0]")
    theta = dict(session.server.shared)
    play(session, 1)
    rows = steps(session, theta)
    norms = [np.linalg.norm(row) for row in rows]
    assert max(norms) > clip
    expected = np.mean(
        [row * min(1.0, clip / n) for row, n in zip(rows, norms, strict=True)], axis=0
    )
    np.testing.assert_allclose(flat(session.server.shared, theta), expected, rtol=1e-3, atol=1e-7)


def test_the_noise_of_the_mean_is_sigma_clip_over_n():
    session = start("central-dp[clip=0.5, noise=0.2]", **STILL)
    theta = dict(session.server.shared)
    play(session, 1)
    noise = flat(session.server.shared, theta)
    assert noise.std() == pytest.approx(0.2 * 0.5 / 4, rel=0.05)
    assert abs(noise.mean()) < 4 * noise.std() / len(noise) ** 0.5


def test_the_noise_of_a_site_is_sigma_clip():
    session = start("local-dp[clip=0.5, noise=0.2]", **STILL)
    theta = dict(session.server.shared)
    play(session, 1)
    rows = steps(session, theta)
    for row in rows:
        assert row.std() == pytest.approx(0.2 * 0.5, rel=0.05)
    assert abs(np.corrcoef(rows)[np.triu_indices(4, 1)]).max() < 0.1  # each has its own


def test_a_site_clips_before_anything_leaves():
    session = start("local-dp[clip=0.05, noise=0]")
    theta = dict(session.server.shared)
    play(session, 1)
    for row in steps(session, theta):
        assert np.linalg.norm(row) == pytest.approx(0.05, rel=1e-4)


@pytest.mark.parametrize("method", ["central-dp", "local-dp"])
def test_buffers_stay_at_the_site(method):
    session = play(start(method), 1)
    trained = {name for name, _ in session.server.net.named_parameters()}
    for message in session.transport.seen:
        assert message.shared.keys() <= trained
        assert not message.personal
    assert session.server.shared.keys() == trained


def test_losses_of_a_site_do_not_leave_it_in_the_clear():
    session = play(start("local-dp"), 1)
    assert [u.metrics for u in updates(session, 1)] == [{}] * 4


@pytest.mark.parametrize("method", ["central-dp", "local-dp"])
def test_secret_noise_cannot_be_repeated(method):
    first, second = (play(start(f"{method}[randomness=system]"), 1).server.shared for _ in "ab")
    assert not any(torch.equal(first[k], second[k]) for k in first)


def test_server_optimisers_stand_on_the_noisy_mean():
    session = start("fedavgm + central-dp[clip=0.5, noise=0.2]", **STILL)
    theta = dict(session.server.shared)
    play(session, 1)
    assert flat(session.server.shared, theta).std() == pytest.approx(0.2 * 0.5 / 4, rel=0.05)


def test_epsilon_is_in_metrics_ledger_and_summary_by_round(tmp_path):
    config, whole = configure("central-dp[noise=3]", tiny_scenario())
    result = execute(config, whole, tmp_path / "run", Options())
    rows = [json.loads(r) for r in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    told = [r["guarantee"]["epsilon"] for r in rows if r["task"] == "privacy"]
    assert told == [epsilon(3.0, t, delta=1e-5) for t in (1, 2, 3)]
    assert [r["privacy"]["central-dp"]["epsilon"] for r in result.history] == told
    assert result.summary["privacy"]["central-dp"]["epsilon"] == told[-1]
    assert result.summary["privacy"]["central-dp"]["delta"] == 1e-5


def test_no_noise_is_told_as_no_bound():
    row = play(start("central-dp[noise=0]"), 1).record.metrics[-1]
    assert row["privacy"]["central-dp"]["epsilon"] is None


def test_local_noise_counts_the_visits_of_the_busiest_site():
    session = play(start("local-dp[noise=3]", clients_per_round=1, rounds=6))
    trained = [u.client for t in range(1, 7) for u in updates(session, t)]
    most = max(trained.count(c) for c in trained)
    assert 1 < most < 6
    told = session.record.metrics[-1]["privacy"]["local-dp"]
    assert told["updates"] == most
    assert told["epsilon"] == epsilon(3.0, most, delta=1e-5)


def test_an_update_that_was_asked_for_twice_is_spent_twice(monkeypatch):
    monkeypatch.setattr(replies, "FIRST_PAUSE", 0.001)
    session = start("local-dp")
    session.server.policy = Policy("wait", timeout=10)
    real, dropped = session.transport.deliver, []

    def once(messages):
        for reply in real(messages):
            if reply.client == "dark-0" and not dropped:
                dropped.append(reply)
                yield Lost(reply.client, reply.task, reply.round, "torn off")
            else:
                yield reply

    monkeypatch.setattr(session.transport, "deliver", once)
    play(session, 1)
    assert session.record.metrics[-1]["privacy"]["local-dp"]["updates"] == 2


REFUSED = {
    "scaffold + central-dp": r"control-variates also sends the change of its control variate",
    "scaffold + local-dp": r"control-variates also sends the change of its control variate",
    "fpl + central-dp": r"also sends class means of features",
    "groupdro + central-dp": r"also sends training loss of the received model",
    "fedheal + central-dp": r"needs single updates",
    "csac + central-dp": r"divergence-fusion needs single updates",
    "fednova + central-dp": r"normalised-mean is not a plain mean",
    "groupdro + local-dp": r"local-dp cannot be used here: loss-probe also sends",
    "fdse + local-dp": r"is personal and leaves the site by itself",
}


@pytest.mark.parametrize("method", REFUSED)
def test_what_is_not_covered_is_refused_by_name_before_round_0(method):
    with pytest.raises(ConfigError, match=REFUSED[method]):
        start(method)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"private_at_new_site": "mean"}, "send their private entries"),
        ({"analyses": ("group-effect",)}, "group-effect looks at single updates"),
    ],
)
def test_so_is_a_scenario_that_asks_for_more(changes, words):
    with pytest.raises(ConfigError, match=words):
        start("central-dp", **changes)


def test_a_sampled_cohort_has_no_zero_out_bound():
    with pytest.raises(ConfigError, match="2 of 4 are sampled"):
        start("central-dp[neighbours=zero-out]", clients_per_round=2)


class Peek(Part):
    """Looks at single updates at the server."""

    def merge(self, server, updates):
        del server, updates


def test_a_part_that_reads_single_updates_is_refused_where_there_are_none():
    with pytest.raises(ConfigError, match=r"peek reads single updates \(its 'merge'\)"):
        start(Method((Peek(), CentralDP())))
    start(Method((Peek(), LocalDP())))


@dataclass(frozen=True)
class Gossip(Part):
    """Does not say what it shares, and sends it all the same."""

    def uploads(self, model):
        return {"train": {"mean": PayloadSpec((), torch.float64)}}

    def finish(self, client: Client):
        return {"mean": client.site.data.train.labels.double().mean()}


def test_payload_that_nobody_declared_does_not_leave_the_site():
    session = start(Method((Gossip(), LocalDP())))
    with pytest.raises(ConfigError, match=r"client dark-0: gossip/mean would leave without noise"):
        play(session)
    assert not updates(session, 1)


def test_nor_does_the_server_take_it():
    with pytest.raises(RunError, match=r"client dark-0 .* 'gossip/mean' is not covered by central"):
        play(start(Method((Gossip(), CentralDP()))))


def test_real_machines_take_secret_noise_only():
    require_secret(build("fedavg + mixup"))
    require_secret(build("central-dp[randomness=system]"))
    for name in ("central-dp", "local-dp", "secure-aggregation"):
        with pytest.raises(ConfigError, match=rf"write {name}\[randomness=system\]"):
            require_secret(build(f"fedavg + {name}"))


def test_what_both_have_in_common_is_no_part_by_itself():
    assert {"central-dp", "local-dp", "secure-aggregation"} <= parts().keys()
    assert "gaussian-noise" not in parts()


def test_private_layers_and_local_losses_stand_beside_it():
    session = play(start("fedbn + proximal + mixup + central-dp[noise=0.1]"), 1)
    assert "block1.1.weight" not in session.server.shared
    assert [p.name for p in build("moon + local-dp").parts][-1] == LocalDP().name
    assert CentralDP().name == "central-dp"
