"""Jiang et al., AAAI 2022: Eqs. 2 to 4; its perturbation is FedSAM's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.net import load
from fedshift.core.registry import build
from fedshift.methods.harmofl import AmplitudeNormalisation, CommonAmplitude
from fedshift.methods.shared.amplitude import spectrum
from fedshift.testing import play, start

PART = AmplitudeNormalisation()


def pixels(x):
    """Of inputs that were normalised as "centred"."""
    return x.double().numpy() / 4 + 0.5


def layer_of(session):
    load(session.server.net, session.server.shared)
    return session.server.net.extra[PART.name]


def test_every_image_gets_the_mean_amplitude_of_all_clients():
    """In pixels: |FFT| of what the net sees is the mean over clients of their mean |FFT|."""
    session = play(start("harmofl"), 1)
    means = []
    for site in session.federation.sites.values():
        x, _ = site.data.train.take(torch.arange(len(site.data.train)))
        means.append(np.abs(np.fft.fft2(pixels(x))).mean(0))
    expected = np.mean(means, 0)
    x, _ = session.federation.unseen.test.take(torch.arange(5))
    found = np.abs(np.fft.fft2(pixels(layer_of(session)(x))))
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=1e-3, atol=1e-3)


def test_phases_are_kept():
    session = play(start("harmofl"), 1)
    x, _ = session.federation.unseen.test.take(torch.arange(5))
    before, after = (np.fft.fft2(pixels(t)) for t in (x, layer_of(session)(x)))
    turned = before / np.abs(before) * np.conj(after / np.abs(after))
    np.testing.assert_allclose(turned, 1.0, atol=1e-2)


def test_an_image_with_the_common_amplitude_is_unchanged():
    x = torch.randn(1, 2, 6, 7, generator=torch.Generator().manual_seed(0))
    layer = CommonAmplitude((2, 6, 7))
    assert layer(x) is x  # nothing is known yet
    layer.amplitude.copy_(spectrum(x)[0][0])
    torch.testing.assert_close(layer(x), x, atol=1e-5, rtol=1e-5)


def test_the_amplitude_never_changes_and_belongs_to_the_model():
    session = play(start("harmofl", clients_per_round=2), 1)
    first = session.server.shared[PART.key]
    assert first.any()
    play(session, 2)
    assert torch.equal(session.server.shared[PART.key], first)


def test_clients_have_it_in_round_1(replies):
    session = play(start("harmofl"), 1)
    for update in replies(session, 1):
        assert torch.equal(update.shared[PART.key], session.server.shared[PART.key])


def test_without_amplitudes_it_is_fedsam(same):
    left = play(start(build("harmofl").without(PART.name)), 2)
    same(left.server.shared, play(start("fedsam"), 2).server.shared)


def test_vectors_are_refused_before_round_1():
    given = {"data": "bowls", "domains": ("left", "right"), "unseen": None}
    with pytest.raises(ConfigError, match=r"changes images .* have shape \(4,\)"):
        start("harmofl", backbone="linear", backbone_options={}, protocols=("personal",), **given)
