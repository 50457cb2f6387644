"""Amplitude and phase of images: the amplitude carries the look, the phase mostly the content.

The two-dimensional Fourier transform of each channel, of which only the half with non-negative
horizontal frequencies is kept (the other half is its mirror image): (B, C, H, W // 2 + 1). The
coefficient of frequency zero, H W times the channel's mean, is kept with its sign in the amplitude,
and its phase is 0. Pixels from 0 to 1 always have that phase, so that mixing or replacing the
amplitude of inputs which were shifted to a mean of about 0 gives what it gives for the pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def spectrum(x: Tensor) -> tuple[Tensor, Tensor]:
    """Amplitude and phase (B, C, H, W // 2 + 1) of images (B, C, H, W)."""
    found = torch.fft.rfft2(x)
    amplitude, phase = found.abs(), found.angle()
    amplitude[..., 0, 0] = found[..., 0, 0].real
    phase[..., 0, 0] = 0.0
    return amplitude, phase


def image_of(amplitude: Tensor, phase: Tensor, width: int) -> Tensor:
    """Images (B, C, H, W) with this amplitude and phase; inverse of :func:`spectrum`."""
    wanted = torch.complex(amplitude * phase.cos(), amplitude * phase.sin())
    return torch.fft.irfft2(wanted, s=(amplitude.shape[-2], width))


def half_width(height: int, width: int, share: float) -> int:
    """Half-width of the window for a ``share`` of the shorter side: at least 1, so 3x3.

    >>> half_width(32, 32, 0.01), half_width(224, 224, 0.01), half_width(8, 8, 0.5)
    (1, 2, 4)
    """
    return max(1, int(share * min(height, width)))


def low_frequencies(amplitude: Tensor, half: int) -> Tensor:
    """The centred window of frequencies up to ``half`` in both directions.

    From (..., H, W // 2 + 1) to (..., h, w) with h = min(H, 2 half + 1), w = min(W // 2 + 1, half +
    1): frequencies 0, 1, ..., half, -half, ..., -1 vertically and 0, ..., half horizontally.
    """
    rows = _window_rows(amplitude.shape[-2], half).to(amplitude.device)
    return amplitude.index_select(-2, rows)[..., : half + 1]


def with_low_frequencies(amplitude: Tensor, window: Tensor, half: int) -> Tensor:
    """A copy of ``amplitude`` whose low frequencies are ``window``, as :func:`low_frequencies`."""
    out = amplitude.clone()
    rows = _window_rows(amplitude.shape[-2], half).to(amplitude.device)
    out[..., rows, : half + 1] = window
    return out


def _window_rows(height: int, half: int) -> Tensor:
    frequency = torch.fft.fftfreq(height, 1 / height)  # 0, 1, ..., -2, -1
    return (frequency.abs() <= half).nonzero().flatten()


def mix_low_frequencies(x: Tensor, window: Tensor, share: Tensor, half: int) -> Tensor:
    """Images whose low-frequency amplitude is (1 - share) A + share A', the phase being kept.

    ``x`` (B, C, H, W), ``window`` (B, C, h, w) the low frequencies of A', ``share`` (B,).
    """
    amplitude, phase = spectrum(x)
    own = low_frequencies(amplitude, half)  # (B, C, h, w)
    mixed = torch.lerp(own, window, share.to(own).view(-1, 1, 1, 1).expand_as(own))
    return image_of(with_low_frequencies(amplitude, mixed, half), phase, x.shape[-1])
