"""Zhang et al., CVPR 2023."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.message import Update
from fedshift.core.net import load
from fedshift.core.registry import build
from fedshift.methods.feddg_ga.method import adjusted
from fedshift.methods.feddg_ga.probe import GapProbe
from fedshift.testing import play, start

CLIENTS = ("bright-0", "bright-1", "dark-0", "dark-1")


def told(received, trained, metric="loss"):
    """Updates that carry these numbers and nothing else."""
    rows = zip(received.items(), trained.values(), strict=True)
    return [
        Update(
            client,
            "train",
            1,
            payload={
                f"gap-probe/received/{metric}": torch.tensor(r, dtype=torch.float64),
                f"gap-probe/trained/{metric}": torch.tensor(t, dtype=torch.float64),
            },
        )
        for (client, r), t in rows
    ]


def by_client(*values):
    return dict(zip(CLIENTS, values, strict=True))


def weights_of(whole, server, received, trained, metric="loss"):
    server.round += 1
    return whole.aggregate.weights(server, told(received, trained, metric)).numpy()


def test_the_first_round_is_the_uniform_mean(same):
    uniform = play(start("fedavg", weights="uniform"), 1)
    same(uniform.server.shared, play(start("feddg-ga"), 1).server.shared)


def test_with_zero_step_it_is_the_uniform_mean(same):
    uniform = play(start("fedavg", weights="uniform"), 3)
    same(uniform.server.shared, play(start(build("feddg-ga", step=0.0)), 3).server.shared)


def test_the_step_is_centred_and_as_long_as_step_for_the_client_farthest_from_the_mean():
    """Gaps 1, 2, 3, 6: mean 3, largest distance 3; 0.25 + 0.1 (G - 3) / 3 sums to one."""
    a = torch.full((4,), 0.25, dtype=torch.float64)
    gaps = torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64)
    expected = 0.25 + 0.1 * np.array([-2, -1, 0, 3]) / 3
    np.testing.assert_allclose(adjusted(a, gaps, 0.1).numpy(), expected, rtol=1e-12)
    below = torch.tensor([0.0, 4.0, 4.0, 4.0], dtype=torch.float64)  # mean 3, farthest -3
    expected = 0.25 + 0.1 * np.array([-3, 1, 1, 1]) / 3
    np.testing.assert_allclose(adjusted(a, below, 0.1).numpy(), expected, rtol=1e-12)
    released = 0.25 + 0.1 * np.array([1, 2, 3, 6]) / 6
    found = adjusted(a, gaps, 0.1, centred=False).numpy()
    np.testing.assert_allclose(found, released / released.sum(), rtol=1e-12)


def test_weights_do_not_fall_below_zero_and_equal_gaps_leave_them_alone():
    a = torch.tensor([0.05, 0.95], dtype=torch.float64)
    found = adjusted(a, torch.tensor([0.0, 1.0], dtype=torch.float64), 0.2)
    assert found.tolist() == [0.0, 1.0]
    assert torch.equal(adjusted(a, torch.full((2,), 3.0).double(), 0.2), a)


def test_the_gap_is_the_received_models_loss_less_the_clients_own_of_the_round_before():
    whole = build("feddg-ga", step=0.2)
    server = start(whole, rounds=10).server
    first = weights_of(whole, server, by_client(9, 9, 9, 9), by_client(1.0, 2.0, 3.0, 4.0))
    assert first.tolist() == [0.25] * 4
    found = weights_of(whole, server, by_client(2.0, 3.0, 4.0, 9.0), by_client(0, 0, 0, 0))
    gaps = np.array([1.0, 1.0, 1.0, 5.0])
    step = 0.2 * (1 - 1 / 10)  # one of ten rounds is over
    np.testing.assert_allclose(found, 0.25 + step * (gaps - 2) / 3, rtol=1e-12)


def test_a_fall_in_the_score_counts_as_a_rise_in_the_loss():
    whole = build("feddg-ga", step=0.2, metric="score")
    server = start(whole, rounds=10).server
    weights_of(whole, server, by_client(0, 0, 0, 0), by_client(90, 90, 90, 90), "score")
    found = weights_of(whole, server, by_client(80, 90, 90, 90), by_client(1, 1, 1, 1), "score")
    gaps = np.array([10.0, 0, 0, 0])
    np.testing.assert_allclose(found, 0.25 + 0.18 * (gaps - 2.5) / 7.5, rtol=1e-12)


def test_absent_clients_keep_their_weights():
    whole = build("feddg-ga", step=0.1)
    server = start(whole, rounds=10).server
    weights_of(whole, server, by_client(9, 9, 9, 9), by_client(1.0, 1.0, 1.0, 1.0))
    pair = weights_of(
        whole, server, {"bright-0": 3.0, "dark-1": 1.0}, {"bright-0": 1.0, "dark-1": 1.0}
    )
    np.testing.assert_allclose(pair, [0.5 + 0.09, 0.5 - 0.09], rtol=1e-12)
    kept = server.state["gap-weights"]
    expected = by_client(0.295, 0.25, 0.25, 0.205)  # the pair shares what it had, one half
    for client, weight in expected.items():
        assert float(kept[f"weight/{client}"]) == pytest.approx(weight)


def test_both_models_are_scored_on_the_validation_samples_in_eval_mode(replies):
    session = play(start("feddg-ga"), 1)
    received = session.server.shared
    play(session, 1)
    for update in replies(session, 2):
        x, y = session.federation.sites[update.client].data.val.take(torch.arange(12))
        for name, entries in (("received", received), ("trained", update.shared)):
            load(session.server.net, entries)
            logits = session.server.net.eval()(x).logits.detach().double().numpy()
            loss = (np.log(np.exp(logits).sum(1)) - logits[np.arange(12), y.numpy()]).mean()
            told_ = {k: float(update.payload[f"gap-probe/{name}/{k}"]) for k in ("loss", "score")}
            assert told_["loss"] == pytest.approx(loss, rel=1e-4)
            assert told_["score"] == pytest.approx(100 * (logits.argmax(1) == y.numpy()).mean())


def test_the_probe_leaves_the_training_alone(replies):
    plain, probed = play(start("fedavg"), 1), play(start("feddg-ga"), 1)
    for a, b in zip(replies(plain, 1), replies(probed, 1), strict=True):
        assert all(torch.equal(a.shared[k], b.shared[k]) for k in a.shared)


def test_a_client_without_validation_samples_is_refused_when_it_enrols(open_client):
    client = open_client(start("feddg-ga"), "dark-0")
    assert GapProbe().enrol(client) == {}
    val = replace(client.site.data.val, rows=torch.empty(0, dtype=torch.long))
    client.site = replace(client.site, data=replace(client.site.data, val=val))
    with pytest.raises(ConfigError, match="dark-0 has no validation samples, and gap-probe"):
        GapProbe().enrol(client)
