"""Amplitude, phase and low-frequency windows against NumPy's full transform."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.methods.shared.amplitude import (
    clip_to_pixels,
    half_width,
    image_of,
    low_frequencies,
    mix_low_frequencies,
    spectrum,
    with_low_frequencies,
)

SIZES = [(8, 8), (7, 7), (6, 9)]


def images(height, width, seed=0, n=3):
    """Pixels from 0 to 1."""
    return np.random.default_rng(seed).uniform(0, 1, (n, 2, height, width))


def window(height, width, half):
    """1 at frequencies up to ``half`` in both directions, as numpy.fft.fft2 orders them."""
    near = [np.abs(np.fft.fftfreq(n, 1 / n)) <= half for n in (height, width)]
    return near[0][:, None] & near[1][None, :]


def mixed(x, other, share, half):
    """The mixed image by the full transform of NumPy, in pixels."""
    f, g = np.fft.fft2(x), np.fft.fft2(other)
    amplitude, phase = np.abs(f), np.angle(f)
    new = (1 - share)[:, None, None, None] * amplitude + share[:, None, None, None] * np.abs(g)
    amplitude = np.where(window(*x.shape[2:], half), new, amplitude)
    back = np.fft.ifft2(amplitude * np.exp(1j * phase))
    np.testing.assert_allclose(back.imag, 0, atol=1e-12)  # the window is symmetric
    return back.real


@pytest.mark.parametrize("size", SIZES)
def test_amplitude_and_phase_give_the_image_back(size):
    x = torch.from_numpy(images(*size)) - 0.6  # means of both signs
    torch.testing.assert_close(image_of(*spectrum(x), size[1]), x)


@pytest.mark.parametrize("size", SIZES)
def test_the_amplitude_is_numpys_and_the_mean_keeps_its_sign(size):
    x = images(*size) - 0.7
    amplitude, phase = (t.numpy() for t in spectrum(torch.from_numpy(x)))
    full = np.fft.fft2(x)[..., : size[1] // 2 + 1]
    np.testing.assert_allclose(amplitude[..., 0, 0], size[0] * size[1] * x.mean((2, 3)), rtol=1e-9)
    assert (amplitude[..., 0, 0] < 0).any()
    amplitude[..., 0, 0] = np.abs(amplitude[..., 0, 0])
    np.testing.assert_allclose(amplitude, np.abs(full), atol=1e-12)
    assert not phase[..., 0, 0].any()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("half", [1, 2, 4])
def test_mixing_in_a_window_is_that_of_the_full_transform(size, half):
    x, other, share = images(*size), images(*size, seed=1), np.array([0.0, 0.3, 1.0])
    theirs = low_frequencies(spectrum(torch.from_numpy(other))[0], half)
    found = mix_low_frequencies(torch.from_numpy(x), theirs, torch.from_numpy(share), half)
    np.testing.assert_allclose(found.numpy(), mixed(x, other, share, half), atol=1e-12)


def test_shifted_inputs_are_mixed_as_their_pixels_are():
    """(p - m) / s commutes with it, although |mean| of the shifted inputs is another one."""
    x, other, share = images(8, 8), images(8, 8, seed=1), np.array([0.2, 0.5, 0.9])
    m, s = 0.5, 0.25
    shifted, theirs = ((torch.from_numpy(p) - m) / s for p in (x, other))
    bank = low_frequencies(spectrum(theirs)[0], 1)
    found = mix_low_frequencies(shifted, bank, torch.from_numpy(share), 1)
    np.testing.assert_allclose(found.numpy(), (mixed(x, other, share, 1) - m) / s, atol=1e-11)


@pytest.mark.parametrize("size", SIZES)
def test_a_window_taken_out_and_put_back_changes_nothing_else(size):
    amplitude, _ = spectrum(torch.from_numpy(images(*size)))
    taken = low_frequencies(amplitude, 1)
    assert taken.shape[-2:] == (3, 2)
    assert torch.equal(with_low_frequencies(amplitude, taken, 1), amplitude)
    changed = with_low_frequencies(amplitude, torch.full_like(taken, -1.0), 1) == -1.0
    expected = window(*size, 1)[:, : size[1] // 2 + 1]
    assert (changed.numpy() == expected).all()


def test_a_window_of_one_half_is_the_whole_spectrum():
    for height, width in ((8, 8), (7, 7), (12, 9)):
        amplitude, _ = spectrum(torch.from_numpy(images(height, width)))
        half = max(half_width(height, width, 0.5), height // 2, width // 2)
        assert low_frequencies(amplitude, half).shape == amplitude.shape


def test_inputs_are_clipped_to_what_pixels_can_be():
    x = torch.tensor([-9.0, -2.0, 0.0, 2.0, 9.0]).view(1, 1, 1, 5)
    assert clip_to_pixels(x, "centred").flatten().tolist() == [-2.0, -2.0, 0.0, 2.0, 2.0]
    red, _, blue = clip_to_pixels(torch.full((1, 3, 1, 1), 9.0), "imagenet").flatten().tolist()
    assert red == pytest.approx((1 - 0.485) / 0.229)
    assert blue == pytest.approx((1 - 0.406) / 0.225)
