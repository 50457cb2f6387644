"""Images as people have them: every kind and depth, turned upright, bounded, and never outside."""

from __future__ import annotations

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fedshift.base.errors import ConfigError, DataError
from fedshift.data.sources import images, pixels
from fedshift.data.sources.images import Item, decode_items, tree_source
from fedshift.data.sources.limits import Limits, estimate, require_room
from fedshift.data.sources.pixels import Decoder, Deep, Span, common_span, decode, peek


def grey(values, path, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values)).save(path, **options)
    return path


def items(*paths):
    return [Item(p.name, "a", -1, p) for p in paths]


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bits_are_scaled_by_range_and_not_cut_off(suffix, tmp_path):
    values = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    path = grey(values, tmp_path / f"x{suffix}")
    expected = np.rint(values.astype(np.float64) * 255 / 65535)
    np.testing.assert_array_equal(decode(path, None)[..., 1], expected)


def test_12_bits_in_16_use_the_range_of_12_in_all_images_of_a_domain(tmp_path):
    bright = grey(np.full((4, 4), 4000, np.uint16), tmp_path / "bright.png")
    dark = grey(np.full((4, 4), 100, np.uint16), tmp_path / "dark.png")
    plain = grey(np.full((4, 4), 77, np.uint8), tmp_path / "plain.png")
    found = decode_items("d", items(bright, dark, plain), None, Limits())
    assert found.x[:, 0, 0, 0].tolist() == [round(4000 * 255 / 4095), round(100 * 255 / 4095), 77]
    assert found.notes == (
        "domain 'd' has 2 images of more than 8 bits; their values 0 to 4095 became 0 to 255",
    )


@pytest.mark.parametrize(
    ("low", "high", "whole", "expected"),
    [
        (0, 255, True, Span(0, 255)),
        (0, 256, True, Span(0, 1023)),
        (5, 65535, True, Span(0, 65535)),
        (-1000, 3000, True, Span(-1000, 3000)),
        (0.25, 0.5, False, Span(0, 1)),
        (-3.5, 80.0, False, Span(-3.5, 80)),
    ],
)
def test_the_range_is_the_depth_that_holds_all_values(low, high, whole, expected):
    assert common_span([Deep(low, high, whole, ()), Deep(low, low, whole, ())]) == expected


def test_fractions_and_numbers_that_are_none(tmp_path):
    path = grey(np.array([[0, 0.5], [1, 0.25]], np.float32), tmp_path / "x.tif")
    assert decode(path, None)[..., 0].tolist() == [[0, 128], [255, 64]]
    path = grey(np.array([[0, np.nan]], np.float32), tmp_path / "y.tif")
    assert decode(path, None) == "holds nan or inf"


def test_a_camera_that_was_turned_gives_an_upright_image(tmp_path):
    values = np.zeros((6, 10, 3), np.uint8)
    values[:, :5] = 200  # left half bright
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees clockwise
    Image.fromarray(values).save(tmp_path / "x.png", exif=exif)
    np.testing.assert_array_equal(decode(tmp_path / "x.png", None), np.rot90(values, -1))
    Image.fromarray(values).save(tmp_path / "y.jpg", exif=exif, quality=95)
    assert decode(tmp_path / "y.jpg", None).shape == (10, 6, 3)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_lies_on_white(mode, tmp_path):
    if mode == "P":
        image = Image.new("P", (4, 4), 0)
        image.putpalette([10, 20, 30, 40, 50, 60])
        image.putpixel((0, 0), 1)
        image.save(tmp_path / "x.png", transparency=0)
        opaque = [40, 50, 60]
    else:
        image = Image.new(mode, (4, 4), (0,) * len(mode))  # black, and nothing of it to be seen
        image.putpixel((0, 0), (90, 255) if mode == "LA" else (90, 90, 90, 255))
        image.save(tmp_path / "x.png")
        opaque = [90, 90, 90]
    found = decode(tmp_path / "x.png", None)
    assert found[0, 0].tolist() == opaque
    assert found[3, 3].tolist() == [255, 255, 255]


def test_half_transparent_is_half_white(tmp_path):
    Image.new("RGBA", (2, 2), (0, 0, 0, 128)).save(tmp_path / "x.png")
    assert abs(int(decode(tmp_path / "x.png", None)[0, 0, 0]) - 127) <= 1


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp"])
def test_every_common_format_is_read_from_a_tree(suffix, tmp_path):
    values = np.full((8, 8, 3), (200, 100, 50), np.uint8)
    (tmp_path / "d" / "a").mkdir(parents=True)
    Image.fromarray(values).save(tmp_path / "d" / "a" / f"x{suffix.upper()}")
    read = tree_source(tmp_path / "d", "d").read(("a",), 4)
    assert read.left_out == ()
    assert np.abs(read.domain.x.numpy().astype(int) - [200, 100, 50]).max() <= 5


def test_of_a_gif_the_first_frame_is_taken(tmp_path):
    frames = [Image.new("RGB", (4, 4), (value, 0, 0)) for value in (250, 10)]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert decode(tmp_path / "x.gif", None)[0, 0].tolist() == [250, 0, 0]


def dicom(path, values, **entries):
    pydicom = pytest.importorskip("pydicom")
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset(path, {}, file_meta=meta, preamble=b"\0" * 128)
    values = np.asarray(values)
    colour = values.ndim == 3
    file.Rows, file.Columns = values.shape[:2]
    file.SamplesPerPixel = 3 if colour else 1
    if colour:
        file.PlanarConfiguration = 0
    file.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
    file.BitsAllocated = 8 * values.dtype.itemsize
    file.BitsStored = file.BitsAllocated
    file.HighBit = file.BitsStored - 1
    file.PixelRepresentation = int(values.dtype.kind == "i")
    file.SOPClassUID, file.SOPInstanceUID = SecondaryCaptureImageStorage, "1.2.3"
    file.PixelData = values.tobytes()
    for name, value in entries.items():
        setattr(file, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    pydicom.dcmwrite(path, file)
    return path


def test_dicom_is_shown_through_its_rescaling_and_window(tmp_path):
    stored = np.array([[0, 1000, 1040, 1080, 4000]] * 2, np.uint16)  # minus 1024: Hounsfield units
    path = dicom(
        tmp_path / "x.dcm", stored, BitsStored=12, HighBit=11, RescaleSlope=1,
        RescaleIntercept=-1024, WindowCenter=40, WindowWidth=81,
    )  # fmt: skip
    units = stored.astype(float) - 1024
    expected = np.clip(((units - 39.5) / 80 + 0.5) * 255, 0, 255)  # PS3.3 C.11.2.1.2
    assert np.abs(decode(path, None)[..., 0] - expected).max() <= 0.51
    assert peek(path) == (2, 5)


def test_dicom_without_a_window_uses_its_bits_and_monochrome1_is_inverted(tmp_path):
    values = np.array([[0, 2048, 4095]], np.uint16)
    path = dicom(tmp_path / "x.dcm", values, BitsStored=12, HighBit=11)
    assert decode(path, None)[0, :, 0].tolist() == [0, 128, 255]
    inverted = {"PhotometricInterpretation": "MONOCHROME1"}
    path = dicom(tmp_path / "y.dcm", values, BitsStored=12, HighBit=11, **inverted)
    assert decode(path, None)[0, :, 0].tolist() == [255, 127, 0]
    path = dicom(tmp_path / "z.dcm", np.array([[-32768, 32767]], np.int16))
    assert decode(path, None)[0, :, 2].tolist() == [0, 255]


def test_dicom_in_colour_many_frames_broken_and_too_large(tmp_path):
    path = dicom(tmp_path / "x.dcm", np.full((2, 3, 3), (9, 8, 7), np.uint8))
    assert decode(path, None)[1, 2].tolist() == [9, 8, 7]
    two = np.stack([np.full((2, 2), 5, np.uint8), np.full((2, 2), 9, np.uint8)])
    path = dicom(tmp_path / "y.dcm", two.reshape(4, 2), Rows=2, NumberOfFrames=2)
    assert decode(path, None)[..., 0].tolist() == [[5, 5], [5, 5]]
    assert "more than the limit" in Decoder(None, Limits(megapixels=1e-6))(path)
    (tmp_path / "z.dcm").write_text("not dicom")
    assert "cannot be decoded" in decode(tmp_path / "z.dcm", None)


def test_dicom_without_its_extra_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("fedshift.base.extras.is_installed", lambda module: False)
    (tmp_path / "x.dcm").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"DICOM .* pip install 'fedshift\[dicom\]'"):
        decode_items("d", items(tmp_path / "x.dcm"), None, Limits())


def bomb(side: int) -> bytes:
    """A PNG of ``side`` times ``side`` black pixels in a few kilobytes."""

    def chunk(kind, body):
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    rows = zlib.compressobj(9)
    body = b"".join(rows.compress(bytes(1 + 4 * side)) for _ in range(side)) + rows.flush()
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_an_image_above_the_limit_is_refused_by_its_header(tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(bomb(1200))
    reason = Decoder(8, Limits(megapixels=1))(path)
    assert reason == (
        "has 1200x1200 pixels, more than the limit of 1 million: raise max_megapixels"
    )
    assert Decoder(8, Limits(megapixels=2))(path).shape == (8, 8, 3)


def test_a_bomb_of_13000_pixels_a_side_costs_no_memory(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource")
    side = 13_000  # 169 million pixels: Pillow alone would decode them
    head = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + head
    start += struct.pack(">I", zlib.crc32(b"IHDR" + head))
    body = zlib.compress(bytes(10_000_000), 9)
    start += struct.pack(">I", len(body)) + b"IDAT" + body
    (tmp_path / "x.png").write_bytes(start + struct.pack(">I", zlib.crc32(b"IDAT" + body)))
    grey(np.zeros((4, 4), np.uint8), tmp_path / "y.png")
    decoded = []
    real = Decoder._decoded
    monkeypatch.setattr(
        Decoder, "_decoded", lambda self, image, span: decoded.append(1) or real(self, image, span)
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = decode_items("d", items(tmp_path / "x.png", tmp_path / "y.png"), 4, Limits())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes
    assert found.kept == [1]
    assert decoded == [1]
    assert "13000x13000" in found.problems[0]


def test_formats_outside_the_list_are_not_opened(tmp_path):
    (tmp_path / "x.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n")
    assert decode(tmp_path / "x.png", 4) == "is not an image"


def test_links_that_lead_out_are_left_out_and_those_inside_are_read(tmp_path):
    secret = grey(np.zeros((4, 4), np.uint8), tmp_path / "elsewhere" / "secret.png")
    inside = grey(np.full((4, 4), 9, np.uint8), tmp_path / "d" / "a" / "real.png")
    (tmp_path / "d" / "a" / "out.png").symlink_to(secret)
    (tmp_path / "d" / "a" / "same.png").symlink_to(inside)
    (tmp_path / "d" / "a" / "up").symlink_to(tmp_path / "d")  # a circle
    (tmp_path / "d" / "b").symlink_to(tmp_path / "elsewhere")
    source = tree_source(tmp_path / "d", "d")
    assert [item.id for item in source.items] == ["d/a/real.png", "d/a/same.png"]
    text = "\n".join(source.left_out)
    assert "a/out.png: is a link that leads out of the folder; copy what it points to" in text
    assert "d/b: is a link that leads out of the folder" in text
    assert "a/up: is a link to a folder; copy the folder itself" in text


@pytest.mark.timeout(20)
def test_a_pipe_is_reported_and_never_opened(tmp_path):
    grey(np.zeros((4, 4), np.uint8), tmp_path / "d" / "a" / "real.png")
    os.mkfifo(tmp_path / "d" / "a" / "pipe.png")
    read = tree_source(tmp_path / "d", "d").read(("a",), None)
    assert read.ids == ("d/a/real.png",)
    assert "pipe.png: is neither a file nor a folder; remove it" in read.left_out[0]
    assert decode(tmp_path / "d" / "a" / "pipe.png", None) == "is not a plain file"
    assert peek(tmp_path / "d" / "a" / "pipe.png") is None


def test_the_estimate_counts_the_array_and_the_images_at_work(monkeypatch):
    monkeypatch.setattr("fedshift.data.sources.limits.cores", lambda: 2)
    assert estimate(1000, 100, 200) == pytest.approx((3 * 1000 + 2 * 8) * 100 * 200 / 1e9)
    assert estimate(1, 10, 10) == pytest.approx((3 + 8) * 100 / 1e9)
    with pytest.raises(DataError, match=r"10 images at 100000x100000 would take about 460.0 GB"):
        require_room(10, 100_000, 100_000, Limits())


def test_arrays_of_images_are_held_to_the_limit_too():
    with pytest.raises(DataError, match="more than the limit of 8 GB"):
        images.resize_all(np.zeros((2, 4, 4, 3), np.uint8), 100_000)


def test_decoded_images_do_not_pile_up(tmp_path, monkeypatch):
    paths = [grey(np.full((4, 4), i, np.uint8), tmp_path / f"{i:03}.png") for i in range(200)]
    monkeypatch.setattr(images, "cores", lambda: 2)
    begun = []
    real = Decoder.__call__

    def counted(self, data, span=None):
        begun.append(data)
        return real(self, data, span)

    monkeypatch.setattr(Decoder, "__call__", counted)
    ahead = []
    found = images._decoded("d", paths, Decoder(None))
    for n, one in enumerate(found):
        assert one[0, 0, 0] == n  # in order
        ahead.append(len(begun) - n)
    assert len(begun) == 200
    assert max(ahead) <= 8 * images.BATCH


def test_large_images_wait_for_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(pixels, "LARGE", 10)
    path = grey(np.zeros((4, 4), np.uint8), tmp_path / "x.png")
    decoder = Decoder(None)
    seen = []
    real = Decoder._decoded

    def watched(self, image, span):
        seen.append(self._large.locked())
        return real(self, image, span)

    monkeypatch.setattr(Decoder, "_decoded", watched)
    decoder(path)
    monkeypatch.setattr(pixels, "LARGE", 16)
    decoder(path)
    assert seen == [True, False]


def test_bytes_are_decoded_like_files():
    buffer = io.BytesIO()
    Image.new("RGB", (3, 2), (1, 2, 3)).save(buffer, "PNG")
    assert decode(buffer.getvalue, None)[0, 0].tolist() == [1, 2, 3]
    assert peek(buffer.getvalue) == (2, 3)
    assert peek(lambda: b"") is None
