"""Codecs: fewer bytes, the same mean; what cannot be decoded is refused."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError, RunError
from fedshift.core.registry import build
from fedshift.core.server import Policy
from fedshift.engine.round import streams
from fedshift.methods.codecs.half import Half
from fedshift.methods.codecs.quantise import Quantise
from fedshift.methods.codecs.top_k import TopK
from fedshift.testing import everything, play, start, worker

CODECS = ("half", "quantise", "quantise[bits=4]", "quantise[bits=16]", "top-k")


def client_of(steps, state=None):
    """As much of a client as a codec's ``pack`` sees."""
    generator = torch.Generator().manual_seed(0)
    return SimpleNamespace(generator=lambda name: generator, state=state or {"top-k": {}})


def server_of(shared):
    return SimpleNamespace(shared=shared, parameters=frozenset(shared))


@pytest.mark.parametrize("codec", ["quantise[bits=32]", "top-k[fraction=1]"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedbn"])
def test_with_nothing_to_save_it_is_the_plain_method(codec, method):
    plain, coded = play(start(method)), play(start(f"{method} + {codec}"))
    a, b = everything(plain), everything(coded)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_quantised_steps_are_within_one_level_and_right_on_average(bits):
    d = torch.tensor([[0.30, -1.0, 0.123], [0.77, 0.0, -0.456]])
    codec, client, server = Quantise(bits), client_of({}), server_of({"w": torch.zeros(2, 3)})
    total = np.zeros((2, 3))
    draws, level = 4000, 1.0 / (2 ** (bits - 1) - 1)
    for _ in range(draws):
        found = codec.unpack(server, *codec.pack(client, {"w": d}))["w"].numpy()
        assert np.abs(found - d.numpy()).max() <= level * (1 + 1e-5)
        total += found
    # the deviation of one rounding is at most half a level; five standard errors
    np.testing.assert_allclose(total / draws, d.numpy(), atol=5 * 0.5 * level / np.sqrt(draws))


def test_a_step_of_zero_stays_zero_and_the_largest_is_exact():
    codec = Quantise(8)
    entries, payload = codec.pack(client_of({}), {"w": torch.zeros(5), "v": torch.tensor([2.0])})
    server = server_of({"w": torch.zeros(5), "v": torch.zeros(1)})
    found = codec.unpack(server, entries, payload)
    assert found["w"].tolist() == [0.0] * 5
    assert found["v"].item() == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_two_numbers_of_four_bits_share_a_byte(size):
    codec = Quantise(4)
    d = torch.linspace(-7, 7, size) if size > 1 else torch.tensor([7.0])
    entries, payload = codec.pack(client_of({}), {"w": d})
    assert entries["w"].nbytes == (size + 1) // 2
    found = codec.unpack(server_of({"w": torch.zeros(size)}), entries, payload)["w"]
    assert (found - d).abs().max() <= 1.0  # one level


def test_half_rounds_to_eleven_bits():
    d = torch.tensor([1.0, 1 / 3, -1e-3])
    found = Half().unpack(server_of({"w": torch.zeros(3)}), *Half().pack(client_of({}), {"w": d}))
    np.testing.assert_array_equal(found["w"].numpy(), d.numpy().astype(np.float16))


def test_what_was_sent_and_what_is_left_is_the_sum_of_all_steps():
    """Error feedback telescopes: sum of sent + e_T = sum of d_t."""
    rng = np.random.default_rng(0)
    codec, client = TopK(fraction=0.2), client_of({})
    server = server_of({"w": torch.zeros(4, 5)})
    sent, steps = np.zeros((4, 5)), np.zeros((4, 5))
    for _ in range(12):
        d = rng.normal(size=(4, 5)).astype(np.float32)
        found = codec.unpack(server, *codec.pack(client, {"w": torch.from_numpy(d)}))["w"].numpy()
        assert (found != 0).sum() == 4  # a fifth of twenty
        sent, steps = sent + found, steps + d
    left = client.state["top-k"]["w"].numpy()
    np.testing.assert_allclose(sent + left, steps, atol=1e-5)
    assert np.abs(left).max() > 0


def test_the_largest_are_sent():
    d = torch.tensor([0.1, -3.0, 0.2, 2.0, -0.3])
    _, payload = TopK(fraction=0.4).pack(client_of({}), {"w": d})
    assert payload["positions/w"].tolist() == [1, 3]
    assert payload["values/w"].tolist() == [-3.0, 2.0]


def test_the_residual_stays_at_the_site_and_survives_a_visit():
    session = play(start("top-k[fraction=0.1]"), 2)
    store = worker(session).store
    kept = store.load("dark-0", before=3)["top-k"]
    assert kept.keys() == {k for k, _ in worker(session).net.named_parameters()}
    assert any(bool(v.any()) for v in kept.values())
    for message in session.transport.seen:
        assert not any("residual" in key for key in message.payload)


def upload(method: str, **changes) -> int:
    """Bytes of one round of training, up."""
    session = play(start(method, **changes), 1)
    return session.record.traffic("train")["up"]


@pytest.mark.parametrize(
    ("codec", "most"),
    [("half", 0.52), ("quantise", 0.27), ("quantise[bits=4]", 0.15), ("top-k", 0.05)],
)
def test_the_ledger_shows_what_is_saved(codec, most):
    wide = {"backbone": "mlp", "backbone_options": {"hidden": 500, "features": 100}}
    assert upload(codec, **wide) / upload("fedavg", **wide) <= most


@pytest.mark.parametrize("codec", CODECS)
def test_coded_updates_are_still_summed_as_they_arrive(codec):
    assert streams(start(codec).server)


@pytest.mark.parametrize("codec", CODECS)
def test_summed_as_they_arrive_or_kept_gives_the_same_bits(codec):
    arriving = play(start(codec), 2)
    kept = start(codec)
    kept.server.policy = Policy("skip")
    assert not streams(kept.server)
    a, b = everything(arriving), everything(play(kept, 2))
    for key, value in a.items():
        assert torch.allclose(value, b[key], atol=1e-6), key


@pytest.mark.parametrize("method", ["fedadam", "fednova", "fdse", "csac", "fedheal", "scaffold"])
@pytest.mark.parametrize("codec", ["half", "top-k[fraction=0.5]"])
def test_rules_of_other_papers_see_decoded_weights(method, codec):
    plain, coded = play(start(method), 1), play(start(f"{method} + {codec}"), 1)
    a, b = plain.server.shared, coded.server.shared
    assert a.keys() == b.keys()
    assert all(a[k].dtype is b[k].dtype and a[k].shape == b[k].shape for k in a)
    if codec == "half":
        steps = [(a[k] - b[k]).abs().max() for k in a if a[k].is_floating_point()]
        assert max(map(float, steps)) < 0.02


# what a site may send


def forged(method: str, change):
    """A run whose first site sends something else."""
    session = start(method)
    real = session.transport.visit

    def visit(message):
        reply = real(message)
        if message.task == "train" and message.client == "dark-0":
            return dataclasses.replace(reply, **change(reply))
        return reply

    session.transport.visit = visit
    return session


def payload(**values):
    return lambda reply: {"payload": reply.payload | values}


W = "head.weight"


@pytest.mark.parametrize(
    ("method", "change", "expected"),
    [
        ("quantise", lambda r: {"shared": {k: v.float() for k, v in r.shared.items()}}, "float32"),
        ("half", lambda r: {"shared": {k: v.float() for k, v in r.shared.items()}}, "float32"),
        (
            "quantise",
            payload(**{"quantise/scales": torch.ones(1)}),
            r"quantise/scales has shape \(1,\), not \(11\)",
        ),
        ("quantise", lambda r: {"payload": {}}, "payload quantise/scales is missing"),
        (
            "quantise",
            lambda r: {"payload": {"quantise/scales": -r.payload["quantise/scales"] - 1}},
            r"quantise/scales has -1\S*, and the least is 0",
        ),
        (
            "quantise",
            lambda r: {"payload": {"quantise/scales": r.payload["quantise/scales"] * torch.nan}},
            "not finite",
        ),
        ("half", payload(**{"half/more": torch.ones(1)}), "half/more' is not declared by half"),
        ("top-k", lambda r: {"payload": {}}, "payload top-k/positions/\\S+ is missing"),
        (
            "top-k",
            lambda r: {
                "payload": r.payload
                | {f"top-k/positions/{W}": r.payload[f"top-k/positions/{W}"] + 10**6}
            },
            "positions/head.weight has 1\\S+, and the most is 63",
        ),
        (
            "top-k",
            lambda r: {
                "payload": r.payload
                | {f"top-k/positions/{W}": -1 - r.payload[f"top-k/positions/{W}"]}
            },
            "positions/head.weight has -\\S+, and the least is 0",
        ),
        (
            "top-k",
            payload(**{f"top-k/values/{W}": torch.ones(2**10)}),
            r"values/head.weight has shape \(1024,\), not \(1\)",
        ),
        (
            "top-k",
            lambda r: {
                "payload": r.payload
                | {f"top-k/values/{W}": r.payload[f"top-k/values/{W}"].double()}
            },
            "values/head.weight is torch.float64, not torch.float32",
        ),
    ],
)
def test_what_cannot_be_decoded_is_refused(method, change, expected):
    with pytest.raises(RunError, match=f"client dark-0 is lost: update refused: .*{expected}"):
        play(forged(method, change), 1)


def test_a_step_beyond_float16_is_refused_not_averaged():
    def grown(reply):
        halves = {k: v * 1e9 for k, v in reply.shared.items() if v.dtype is torch.float16}
        return {"shared": reply.shared | halves}

    with pytest.raises(RunError, match="not finite"):
        play(forged("half", grown), 1)


# beside privacy


@pytest.mark.parametrize("codec", ["half", "quantise", "top-k[fraction=0.5]"])
@pytest.mark.parametrize("privacy", ["local-dp[noise=0.1]", "central-dp[noise=0.1]"])
def test_a_codec_after_noise_is_post_processing(privacy, codec):
    session = play(start(f"fedavg + {privacy} + {codec}", protocols=("personal",)), 1)
    assert all(bool(v.isfinite().all()) for v in session.server.shared.values())
    assert session.record.metrics[0]["privacy"]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("fedavg + quantise + local-dp", "local-dp needs the weights .* quantise .* after it"),
        ("fedavg + half + central-dp", "central-dp needs the weights .* half encodes"),
        ("fedavg + secure-aggregation + top-k", "secure-aggregation moves .* top-k encodes"),
        ("fedavg + quantise + secure-aggregation", "secure-aggregation moves .* quantise encodes"),
        ("fedavg + half + top-k", "half and top-k both encode"),
    ],
)
def test_what_does_not_stack_is_refused_by_name(method, expected):
    with pytest.raises(ConfigError, match=expected):
        start(method)


def test_settings_outside_their_range_are_refused():
    with pytest.raises(ConfigError, match=r"quantise\.bits is 7"):
        build("quantise[bits=7]")
    with pytest.raises(ConfigError, match=r"top-k\.fraction is 1\.5"):
        build("top-k[fraction=1.5]")


def test_a_lost_reply_of_a_codec_does_not_end_a_lenient_run():
    session = forged("top-k", lambda r: {"payload": {}})
    session.server.policy = Policy("skip")
    play(session, 1)
    assert session.record.losses().keys() == {"dark-0"}
