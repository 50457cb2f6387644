"""Liu et al., CVPR 2021, Eqs. 2 to 5; the transform itself is in test_amplitude.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.base.errors import ConfigError
from fedshift.core.loop import Batch, Step
from fedshift.core.registry import build
from fedshift.methods.feddg.bank import AmplitudeBank
from fedshift.methods.feddg.method import EpisodicLearning
from fedshift.testing import play, start

NAME, BANK = EpisodicLearning().name, AmplitudeBank().name
LINEAR = {"backbone": "linear", "backbone_options": {}}


def pixels(x):
    """Of inputs that were normalised as "centred"."""
    return x.double().numpy() / 4 + 0.5


@pytest.fixture
def visit(open_client):
    client = open_client(play(start("feddg", **LINEAR), 1), "dark-0")
    x, y = client.site.data.train.take(torch.arange(6))
    return client, Batch(x, y)


def restyled_after(client, part, x, state):
    client.generator(NAME).set_state(state)
    return part.restyled(client, x)


def test_the_bank_holds_low_frequencies_of_an_eighth_of_the_images():
    session = play(start("feddg"), 1)
    kept = session.server.state[BANK]
    for client, site in session.federation.sites.items():
        x, _ = site.data.train.take(torch.arange(len(site.data.train)))
        full = np.abs(np.fft.fft2(pixels(x)))  # (n, C, 8, 8)
        rows = kept[f"windows/{client}"].double().numpy()
        assert rows.shape == (max(1, round(len(x) / 8)), 3, 3, 2)
        for row in rows:  # amplitudes of inputs are four times those of pixels, but the mean's
            gaps = np.abs(full[:, :, [0, 1, -1], 1] - row[:, :, 1] / 4).max((1, 2))
            assert gaps.min() < 1e-4


def test_a_client_gets_the_amplitudes_of_the_others_only(visit):
    client, _ = visit
    kept = play(start("feddg", **LINEAR), 1).server.state[BANK]
    others = [kept[f"windows/{c}"] for c in ("bright-0", "bright-1", "dark-1")]
    assert torch.equal(client.inbox[f"{BANK}/windows"], torch.cat(others))


def test_images_take_amplitudes_of_the_bank_and_keep_their_phase(visit):
    client, batch = visit
    bank = client.inbox[f"{BANK}/windows"]
    state = client.generator(NAME).get_state()
    found = EpisodicLearning().restyled(client, batch.x)
    generator = torch.Generator()
    generator.set_state(state)
    rows = torch.randint(len(bank), (6,), generator=generator)
    share = torch.rand(6, generator=generator).double().numpy()[:, None, None, None]
    f = np.fft.fft2(batch.x.double().numpy())
    theirs = bank[rows].double().numpy()  # (6, 3, 3, 2)
    expected = f.copy()
    for i, v in enumerate((0, 1, -1)):
        for h in (0, 1, -1):
            k = i if h >= 0 else (0, 2, 1)[i]  # the mirror image of (v, -1) is (-v, 1)
            amplitude = np.abs(f[..., v, h])
            if v == h == 0:
                amplitude = f[..., 0, 0].real  # the mean keeps its sign
            new = (1 - share[:, 0, :, 0]) * amplitude + share[:, 0, :, 0] * theirs[..., k, abs(h)]
            phase = 0.0 if v == h == 0 else np.angle(f[..., v, h])
            expected[..., v, h] = new * np.exp(1j * phase)
    mixed = np.fft.ifft2(expected).real.clip(-2, 2)
    np.testing.assert_allclose(found.double().numpy(), mixed, atol=1e-4)


@pytest.mark.parametrize("first_order", [True, False])
def test_the_term_is_the_loss_after_an_inner_step(visit, first_order):
    client, batch = visit
    part = EpisodicLearning(beta=0.1, weight=2.0, first_order=first_order)
    state = client.generator(NAME).get_state()
    out = client.net(batch.x)
    found = part.loss(client, Step(batch, out, "model"))
    x = restyled_after(client, part, batch.x, state).flatten(1)
    head = client.net.head_module
    w, b = head.weight, head.bias

    def meta(w, b, inner):
        moved = [p - 0.1 * g for p, g in zip((w, b), inner, strict=True)]
        return 2.0 * F.cross_entropy(F.linear(x, *moved), batch.y)

    own = F.cross_entropy(F.linear(batch.x.flatten(1), w, b), batch.y)
    inner = torch.autograd.grad(own, (w, b), create_graph=True)
    if first_order:
        inner = [g.detach() for g in inner]
    expected = meta(w, b, inner)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    ours, theirs = (torch.autograd.grad(term, (w, b)) for term in (found, expected))
    for a, e in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-6)


def test_second_order_differs_from_first(visit):
    client, batch = visit
    gradients = []
    state = client.generator(NAME).get_state()
    for first_order in (True, False):
        client.generator(NAME).set_state(state)
        part = EpisodicLearning(beta=0.1, first_order=first_order)
        term = part.loss(client, Step(batch, client.net(batch.x), "model"))
        gradients.append(torch.autograd.grad(term, client.net.head_module.weight)[0])
    assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) > 1e-3


def test_without_weight_it_is_fedavg(same):
    plain, found = play(start("fedavg"), 2), play(start(build("feddg", weight=0.0)), 2)
    same(plain.server.shared, found.server.shared)


def test_episodes_without_a_bank_say_what_to_add():
    with pytest.raises(ConfigError, match=r"add \+ amplitude-bank"):
        play(start(build("feddg").without("amplitude-bank")), 1)
