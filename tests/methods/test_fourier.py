"""Xu et al., CVPR 2021, Eqs. 3 and 4; the transform itself is in test_amplitude.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.loop import Batch
from fedshift.core.registry import build
from fedshift.methods.fourier import AmplitudeMixing
from fedshift.testing import play, start

NAME = AmplitudeMixing().name


@pytest.fixture
def visit(open_client):
    client = open_client(start("fourier"), "dark-0")
    x, y = client.site.data.train.take(torch.arange(5))
    return client, Batch(x, y)


def draws(client, rows):
    """What the part draws next: partner and uniform number of each row."""
    generator = torch.Generator()
    generator.set_state(client.generator(NAME).get_state())
    return torch.randperm(rows, generator=generator).numpy(), torch.rand(rows, generator=generator)


def test_amplitudes_are_mixed_over_the_whole_spectrum_and_phases_kept(visit):
    client, batch = visit
    other, uniform = draws(client, 5)
    found = AmplitudeMixing(eta=0.6, both=False).batch(client, batch).x.double().numpy()
    pixels = batch.x.double().numpy() / 4 + 0.5  # "centred": (p - 0.5) / 0.25
    f = np.fft.fft2(pixels)
    share = 0.6 * uniform.double().numpy()[:, None, None, None]
    amplitude = (1 - share) * np.abs(f) + share * np.abs(f)[other]
    mixed = np.fft.ifft2(amplitude * np.exp(1j * np.angle(f))).real.clip(0, 1)
    np.testing.assert_allclose(found / 4 + 0.5, mixed, atol=1e-5)


def test_the_whole_spectrum_is_that_of_the_longer_side(visit):
    client, batch = visit
    x = torch.randn(5, 3, 6, 12, generator=torch.Generator().manual_seed(0)) * 0.05
    found = AmplitudeMixing(both=False).batch(client, batch.replace(x=x)).x.double().numpy()
    before, after = (np.abs(np.fft.fft2(p / 4 + 0.5)) for p in (x.double().numpy(), found))
    assert (np.abs(after - before).max((0, 1)) > 1e-4).all()


def test_a_small_window_leaves_the_other_frequencies(visit):
    client, batch = visit
    part = AmplitudeMixing(window=0.125, both=False)  # one of eight pixels: 3x3
    found = part.batch(client, batch).x.double().numpy() / 4 + 0.5
    assert found.min() > 0  # else clipping would touch all frequencies
    assert found.max() < 1
    before, after = (np.abs(np.fft.fft2(p)) for p in (batch.x.double().numpy() / 4 + 0.5, found))
    changed = np.abs(after - before).max((0, 1)) > 1e-4
    near = np.abs(np.fft.fftfreq(8, 1 / 8)) <= 1
    assert (changed == (near[:, None] & near[None, :])).all()


def test_both_keeps_the_originals_first(visit):
    client, batch = visit
    out = AmplitudeMixing().batch(client, batch)
    assert torch.equal(out.x[:5], batch.x)
    assert torch.equal(out.y, batch.y.repeat(2))
    assert not torch.equal(out.x[5:], batch.x)


def test_nothing_leaves_the_range_of_pixels(visit):
    client, batch = visit
    out = AmplitudeMixing(both=False).batch(client, batch.replace(x=batch.x.sign() * 2))
    assert float(out.x.abs().max()) <= 2 + 1e-6


def test_with_zero_share_it_is_fedavg(same):
    plain, found = play(start("fedavg"), 2), play(start(build("fourier", eta=0.0)), 2)
    same(plain.server.shared, found.server.shared)


def test_vectors_are_refused_before_round_1():
    with pytest.raises(ConfigError, match=r"changes images .* have shape \(4,\)"):
        start(
            "fourier",
            data="bowls",
            domains=("left", "right"),
            unseen=None,
            backbone="linear",
            backbone_options={},
            protocols=("personal",),
        )
