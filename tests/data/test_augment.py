from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from fedshift.base.errors import DataError
from fedshift.data import augment as aug
from fedshift.data.augment import PRESETS, Augment, apply

OPS = {
    "crop": aug.Crop(),
    "flip": aug.Flip(),
    "resized-crop": aug.ResizedCrop(),
    "colour-jitter": aug.ColourJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4),
    "grey": aug.Grey(p=0.5),
    "rotation": aug.Rotation(),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 6, channels: int = 3, height: int = 8, width: int = 8) -> torch.Tensor:
    return torch.rand(n, channels, height, width, generator=generator(99))


def by_pixel(x, change) -> np.ndarray:
    """A function of (r, g, b), pixel by pixel."""
    pixels = x.permute(0, 2, 3, 1).reshape(-1, 3).double().numpy()
    out = np.array([change(*p) for p in pixels]).reshape(len(x), *x.shape[2:], 3)
    return out.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("shape", [(5, 3, 8, 8), (4, 1, 6, 9)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_crop_is_a_slice_of_the_padded_image(shape, layout):
    x = images(*shape).contiguous(memory_format=layout)
    out = aug.crop(x, generator(), padding=2).numpy()
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    for image, source in zip(out, padded, strict=True):
        windows = [
            source[:, i : i + shape[2], j : j + shape[3]] for i in range(5) for j in range(5)
        ]
        assert sum(np.array_equal(image, w) for w in windows) == 1


def test_every_offset_of_a_crop_is_drawn_equally_often():
    x = torch.zeros(5000, 1, 3, 3)
    x[:, :, 1, 1] = 1
    spots = aug.crop(x, generator(), padding=1)[:, 0].flatten(1)
    assert spots.sum(1).eq(1).all()
    np.testing.assert_allclose(spots.mean(0).numpy(), 1 / 9, atol=0.02)
    assert aug.crop(x, generator(), padding=0) is x


def test_a_flip_reverses_half_of_the_images():
    x = images(400, 3, 4, 5)
    out = aug.flip(x, generator())
    turned = np.array(
        [np.array_equal(a, b[:, :, ::-1]) for a, b in zip(out, x.numpy(), strict=True)]
    )
    same = np.array([np.array_equal(a, b) for a, b in zip(out, x.numpy(), strict=True)])
    assert (turned ^ same).all()
    assert turned.mean() == pytest.approx(0.5, abs=0.08)
    assert np.array_equal(aug.flip(x, generator(), p=1), x.numpy()[..., ::-1])
    assert torch.equal(aug.flip(x, generator(), p=0), x)


@pytest.mark.parametrize("shape", [(8, 8), (6, 10)])
def test_a_resized_crop_of_everything_is_the_image(shape):
    x = images(5, 3, *shape)
    square = shape[1] / shape[0]
    out = aug.resized_crop(x, generator(), scale=(1, 1), ratio=(square, square))
    torch.testing.assert_close(out, x, atol=1e-5, rtol=0)


def test_a_quarter_of_a_ramp_is_a_ramp_of_half_the_slope_and_lies_inside():
    x = torch.arange(16.0).view(1, 1, 1, 16).expand(200, 2, 16, 16).clone()
    x[:, 1] = x[:, 1].mT.clone()
    out = aug.resized_crop(x, generator(), scale=(0.25, 0.25), ratio=(1, 1)).numpy()
    np.testing.assert_allclose(np.diff(out[:, 0], axis=2)[..., 1:-1], 0.5, atol=1e-4)
    np.testing.assert_allclose(np.diff(out[:, 1], axis=1)[:, 1:-1], 0.5, atol=1e-4)
    left = out[:, 0, 8, 8] - 8.5 * 0.5 + 0.5  # edge of the window in pixels, uniform over [0, 8]
    assert left.min() == pytest.approx(0, abs=0.3)
    assert left.max() == pytest.approx(8, abs=0.3)
    assert left.mean() == pytest.approx(4, abs=0.5)


def test_the_window_of_a_resized_crop_has_the_stated_ratio_and_area():
    ramp = torch.arange(64.0)
    x = torch.stack([ramp.expand(64, 64), ramp.expand(64, 64).T]).expand(300, 2, 64, 64)
    out = aug.resized_crop(x, generator(), scale=(0.2, 0.5), ratio=(0.5, 2)).numpy()
    wide = out[:, 0, 32, 40] - out[:, 0, 32, 24]
    high = out[:, 1, 40, 32] - out[:, 1, 24, 32]
    area, ratio = wide * high / 256, wide / high
    assert 0.2 - 1e-3 <= area.min() < 0.22
    assert 0.48 < area.max() <= 0.5 + 1e-3
    assert 0.5 - 1e-3 <= ratio.min() < 0.55
    assert 1.8 < ratio.max() <= 2 + 1e-3
    assert np.log(ratio).mean() == pytest.approx(0, abs=0.07)


def test_a_window_that_does_not_fit_is_drawn_again_and_hardly_ever_clipped():
    ramp = torch.arange(64.0)
    x = torch.stack([ramp.expand(64, 64), ramp.expand(64, 64).T]).expand(300, 2, 64, 64)
    out = aug.resized_crop(x, generator(), scale=(0.8, 1.0)).numpy()
    wide = (out[:, 0, 32, 40] - out[:, 0, 32, 24]) / 16
    high = (out[:, 1, 40, 32] - out[:, 1, 24, 32]) / 16
    assert np.maximum(wide, high).max() <= 1 + 1e-4
    assert (np.maximum(wide, high) > 1 - 1e-4).mean() < 0.05  # 64 % of first draws do not fit


@pytest.mark.parametrize(("degrees", "quarters"), [(90, 1), (180, 2), (-90, 3), (0, 0)])
def test_a_quarter_turn_is_rot90(degrees, quarters):
    x = images(3, 3, 7, 7)
    want = np.rot90(x.numpy(), quarters, axes=(2, 3))
    out = aug.rotation(x, generator(), degrees=(degrees, degrees)).numpy()
    np.testing.assert_allclose(out, want, atol=1e-5)
    stored = (x * 255).to(torch.uint8).permute(0, 2, 3, 1)
    exact = aug.rotate(stored, degrees)
    assert np.array_equal(exact, np.rot90(stored.numpy(), quarters, axes=(1, 2)))
    assert exact.dtype == torch.uint8


def test_rotation_keeps_the_shape_of_oblong_images():
    x = torch.zeros(1, 1, 5, 9)
    x[0, 0, 2, 6] = 1  # two right of the centre; a quarter turn later two above it
    out = aug.rotation(x, generator(), degrees=(90, 90))
    assert out[0, 0, 0, 4] == pytest.approx(1, abs=1e-5)
    assert out.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("degrees", [15, 30, 45, 60, 75, -20])
def test_stored_images_turn_as_pillow_turns_them(degrees):
    x = (images(4, 3, 28, 28) * 255).to(torch.uint8).permute(0, 2, 3, 1)
    want = [np.asarray(Image.fromarray(i.numpy()).rotate(degrees)) for i in x]
    same = (aug.rotate(x, degrees).numpy() == np.stack(want)).mean()
    assert same > (0.97 if degrees == 45 else 0.995)  # on the diagonals, ties round apart


def test_grey_is_the_weighted_sum_of_the_channels():
    x = images()
    out = aug.grey(x, generator(), p=1).numpy()
    want = np.einsum("bchw,c->bhw", x.numpy(), [0.2989, 0.587, 0.114])
    for channel in range(3):
        np.testing.assert_allclose(out[:, channel], want, atol=1e-6)
    some = aug.grey(images(1000, 3, 2, 2), generator(), p=0.1)
    assert (some[:, 0] == some[:, 1]).flatten(1).all(1).float().mean() == pytest.approx(
        0.1, abs=0.03
    )
    assert torch.equal(aug.grey(images(channels=1), generator(), p=1), images(channels=1))


def test_brightness_multiplies_each_image_by_a_factor_in_range():
    x = images(500) * 0.5 + 0.1  # stays below 1
    out = aug.colour_jitter(x, generator(), brightness=0.4)
    factors = (out / x).flatten(1)
    assert (factors.std(1) < 1e-6).all()
    assert 0.6 <= factors.min() < 0.62
    assert 1.38 < factors.max() <= 1.4 + 1e-6
    bright = aug.colour_jitter(torch.ones(50, 3, 2, 2), generator(), brightness=0.4)
    assert bright.max() == 1


@pytest.mark.parametrize("change", ["contrast", "saturation"])
def test_contrast_and_saturation_blend_with_grey(change):
    x = images(200) * 0.2 + 0.4  # far from 0 and 1
    out = aug.colour_jitter(x, generator(), **{change: 0.5}).numpy()
    weighed = np.einsum("bchw,c->bhw", x.numpy(), [0.2989, 0.587, 0.114])[:, None]
    other = weighed.mean((1, 2, 3), keepdims=True) if change == "contrast" else weighed
    apart = x.numpy() - other
    factors = ((out - other) * apart).sum((1, 2, 3)) / (apart**2).sum((1, 2, 3))
    np.testing.assert_allclose(out, other + factors[:, None, None, None] * apart, atol=1e-5)
    assert 0.5 - 1e-3 <= factors.min() < 0.53
    assert 1.47 < factors.max() <= 1.5 + 1e-3


@given(st.floats(-0.5, 0.5))
def test_hue_turns_as_in_the_standard_library(turn):
    x = images(2, 3, 4, 4)
    x[0, :, 0, 0] = 0.3  # grey has no hue
    x[0, :, 0, 1] = torch.tensor([0.7, 0.7, 0.1])  # two channels share the maximum

    def change(r, g, b):
        h, s, v = colorsys.rgb_to_hsv(r, g, b)
        return colorsys.hsv_to_rgb((h + turn) % 1, s, v)

    out = aug.turn_hue(x, torch.full((2,), turn))
    np.testing.assert_allclose(out.numpy(), by_pixel(x, change), atol=1e-5)


def test_the_jitter_of_hue_stays_in_range():
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1).expand(400, 3, 1, 1)
    out = aug.colour_jitter(red, generator(), hue=0.1).flatten(1).numpy()
    hues = np.array([(colorsys.rgb_to_hsv(*p)[0] + 0.5) % 1 - 0.5 for p in out])
    assert -0.1 - 1e-5 <= hues.min() < -0.09
    assert 0.09 < hues.max() <= 0.1 + 1e-5


def test_jitter_is_its_two_changes_in_an_order_that_is_drawn_per_batch():
    x, found = images(3), set()
    for seed in range(12):
        drawn = generator(seed)
        b, c = (0.6 + 0.8 * torch.rand(3, generator=drawn).view(-1, 1, 1, 1) for _ in range(2))

        def contrast(z, c=c):
            mean = np.einsum("bchw,c->bhw", z, [0.2989, 0.587, 0.114]).mean((1, 2))
            return np.clip(c.numpy() * z + (1 - c.numpy()) * mean[:, None, None, None], 0, 1)

        def brightness(z, b=b):
            return np.clip(z * b.numpy(), 0, 1)

        out = aug.colour_jitter(x, generator(seed), brightness=0.4, contrast=0.4).numpy()
        wants = contrast(brightness(x.numpy())), brightness(contrast(x.numpy()))
        fits = [np.allclose(out, want, atol=1e-5) for want in wants]
        assert any(fits)
        found |= set(np.flatnonzero(fits)) if not all(fits) else set()
    assert found == {0, 1}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_the_generator_alone_decides_and_the_input_is_left_alone(op):
    x = images(12)
    before = x.clone()
    state = torch.random.get_rng_state()
    first, again, other = (op(x, generator(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(x, before)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first.shape == x.shape
    assert first.min() >= 0
    assert first.max() <= 1 + 1e-5


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_equal_images_of_a_batch_get_different_draws(op):
    out = op(images(1).expand(16, -1, -1, -1), generator())
    assert len({bytes(image.contiguous().numpy()) for image in out}) > 1


def test_colours_need_one_or_three_channels():
    with pytest.raises(DataError, match="2 channels; colours need 1 or 3"):
        aug.grey(images(channels=2), generator())
    plain = images(channels=1)
    jitter = aug.colour_jitter(plain, generator(), saturation=0.4, hue=0.4)
    torch.testing.assert_close(jitter, plain)


def test_no_operation_is_the_identity():
    x = images()
    assert apply(PRESETS["none"], x, generator()) is x
    assert apply(Augment(), x, generator()) is x


def test_presets_are_those_of_the_papers():
    kinds = {name: [op.kind for op in preset.ops] for name, preset in PRESETS.items()}
    assert kinds == {
        "none": [],
        "f2dc": ["crop", "flip"],
        "f2dc-digits": ["crop"],
        "csac": ["resized-crop", "flip", "colour-jitter", "grey"],
        "feddebias-cifar100": ["crop", "flip"],
    }
    assert PRESETS["csac"].ops[0].scale == (0.8, 1.0)
    assert PRESETS["f2dc"].ops[0].padding == 4


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_runs_and_survives_json(name):
    preset, x = PRESETS[name], images(4, 3, 16, 16)
    assert Augment.model_validate_json(preset.model_dump_json()) == preset
    out = apply(preset, x, generator())
    assert out.isfinite().all()
    assert torch.equal(out, apply(preset, x, generator()))


def test_an_operation_that_cannot_be_is_refused():
    for wrong in ({"kind": "blur"}, {"kind": "flip", "p": 2}, {"kind": "crop", "size": 3}):
        with pytest.raises(ValidationError):
            Augment.model_validate({"ops": [wrong]})
    with pytest.raises(ValidationError, match="range within"):
        aug.ResizedCrop(scale=(0.5, 1.5))
    with pytest.raises(ValidationError, match="positive"):
        aug.ResizedCrop(ratio=(2, 1))
