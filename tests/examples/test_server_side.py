"""What happens between the sites and the server: the rule and the codecs among the examples."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

from fedshift import Update
from fedshift.core.registry import build
from fedshift.testing import play, start

SMALL = {"rounds": 2, "steps": 3}
WIDE = {"backbone": "mlp", "backbone_options": {"hidden": 500, "features": 100}}
RNG = np.random.default_rng(0)


def update_of(shared, payload=None):
    tensors = {k: torch.as_tensor(v, dtype=torch.float32) for k, v in shared.items()}
    return Update("site", "train", 1, tensors, payload=payload or {}, examples=3)


def server_of(shared):
    tensors = {k: torch.as_tensor(v, dtype=torch.float32) for k, v in shared.items()}
    return SimpleNamespace(shared=tensors, parameters=frozenset(tensors))


# trimmed mean


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 0.4])
def test_the_trimmed_mean_is_scipys(fraction):
    rule = build(f"example-trimmed-mean[fraction={fraction}]").aggregate
    values = RNG.normal(size=(7, 3, 2)).astype(np.float32)
    found = rule.combine(server_of({"w": values[0]}), [update_of({"w": v}) for v in values], None)
    np.testing.assert_allclose(found["w"].numpy(), trim_mean(values, fraction, axis=0), atol=1e-6)


def outlier(size: float):
    """A run in which one site sends this number in place of every weight and statistic."""
    session = start("example-trimmed-mean", **SMALL)
    real = session.transport.visit

    def visit(message):
        reply = real(message)
        if message.task != "train" or message.client != "dark-0":
            return reply
        wrong = {
            k: torch.full_like(v, size) if v.is_floating_point() else v
            for k, v in reply.shared.items()
        }
        return dataclasses.replace(reply, shared=wrong)

    session.transport.visit = visit
    return play(session, 1).server.shared


def test_how_far_an_outlier_lies_has_no_effect(same):
    far, farther = outlier(1e6), outlier(1e9)
    same(far, farther)
    honest = play(start("example-trimmed-mean", **SMALL), 1).server.shared
    for key, value in far.items():
        assert torch.allclose(value.float(), honest[key].float(), atol=0.5), key


def test_nothing_trimmed_is_the_uniform_mean():
    ours = play(start("example-trimmed-mean[fraction=0]", **SMALL)).server.shared
    plain = play(start("fedavg", weights="uniform", **SMALL)).server.shared
    for key, value in plain.items():
        assert torch.allclose(value, ours[key], atol=1e-5), key


# codecs


def encoding(stub, theta):
    """A client that received ``theta``."""
    held = {k: torch.as_tensor(v, dtype=torch.float32) for k, v in theta.items()}
    return stub(anchors=lambda: [(k, None, v) for k, v in held.items()])


def test_what_top_k_sent_and_kept_is_the_sum_of_all_steps(part, stub):
    """Error feedback telescopes: sum of sent + e_T = sum of d_t."""
    codec, theta = part("example-top-k[fraction=0.2]"), {"w": RNG.normal(size=(4, 5))}
    client, server = encoding(stub, theta), server_of(theta)
    sent, steps = np.zeros((4, 5)), np.zeros((4, 5))
    for _ in range(10):
        d = RNG.normal(size=(4, 5))
        coded = codec.encode(client, update_of({"w": theta["w"] + d}))
        assert not coded.shared
        found = codec.decode(server, coded).shared["w"].numpy() - theta["w"]
        assert (np.abs(found) > 1e-6).sum() == 4  # a fifth of twenty
        sent, steps = sent + found, steps + d
    left = client.state[codec.name]["w"].view(4, 5).numpy()
    np.testing.assert_allclose(sent + left, steps, atol=1e-5)
    assert np.abs(left).max() > 0.1


def test_top_k_sends_the_largest(part, stub):
    d = np.array([0.1, -3.0, 0.2, 2.0, -0.3])
    codec, theta = part("example-top-k[fraction=0.4]"), {"w": np.zeros(5)}
    coded = codec.encode(encoding(stub, theta), update_of({"w": d}))
    found = codec.decode(server_of(theta), coded).shared["w"]
    assert found.tolist() == [0.0, -3.0, 0.0, 2.0, 0.0]


def test_quantised_steps_are_within_one_level_and_right_on_average(part, stub):
    d = np.array([[0.30, -1.0, 0.123], [0.77, 0.0, -0.456]])
    codec, theta = part("example-quantise"), {"w": RNG.normal(size=(2, 3))}
    client, server = encoding(stub, theta), server_of(theta)
    total, draws, level = np.zeros((2, 3)), 4000, 1.0 / 127
    for _ in range(draws):
        coded = codec.encode(client, update_of({"w": theta["w"] + d}))
        assert coded.shared["w"].dtype is torch.int8
        found = codec.decode(server, coded).shared["w"].numpy() - theta["w"]
        assert np.abs(found - d).max() <= level * (1 + 1e-3)
        total += found
    # the deviation of one rounding is at most half a level; five standard errors
    np.testing.assert_allclose(total / draws, d, atol=5 * 0.5 * level / np.sqrt(draws))


@pytest.mark.parametrize(("codec", "most"), [("example-top-k", 0.05), ("example-quantise", 0.27)])
def test_the_ledger_shows_what_is_saved(codec, most):
    up = {
        method: play(start(method, **WIDE, **SMALL), 1).record.traffic("train")["up"]
        for method in (codec, "fedavg")
    }
    assert up[codec] / up["fedavg"] <= most


@pytest.mark.parametrize(
    ("codec", "far"), [("example-top-k[fraction=1]", 1e-5), ("example-quantise", 0.02)]
)
def test_a_fine_codec_is_nearly_fedavg(codec, far):
    plain, ours = (play(start(m, **SMALL), 1).server.shared for m in ("fedavg", codec))
    assert plain.keys() == ours.keys()
    gaps = [float((plain[k] - ours[k]).abs().max()) for k in plain]
    assert max(gaps) <= far
    moved = [float((plain[k] - ours[k]).abs().max()) for k in plain if "running" in k]
    assert max(moved) <= 1e-6  # buffers travel as they are
