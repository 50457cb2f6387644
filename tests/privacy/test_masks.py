"""Keys, streams and fixed-point numbers."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError, RunError
from fedshift.privacy import masks


def test_both_sides_agree_on_one_secret():
    a, b, c = (masks.derive(b"seed", name) for name in "abc")
    assert masks.agree(a, masks.public_key(b)) == masks.agree(b, masks.public_key(a))
    assert masks.agree(a, masks.public_key(c)) != masks.agree(b, masks.public_key(a))


def test_a_bad_public_key_is_one_line():
    with pytest.raises(RunError, match="not one of X25519"):
        masks.agree(masks.derive(b"seed"), bytes(32))


def test_what_was_changed_on_its_way_is_not_read():
    key = masks.derive(b"seed")
    box = bytearray(masks.encrypt(key, b"share"))
    assert masks.decrypt(key, bytes(box)) == b"share"
    box[0] ^= 1
    with pytest.raises(RunError, match="changed on its way"):
        masks.decrypt(key, bytes(box))


def test_the_stream_is_aes_in_counter_mode():
    """NIST SP 800-38A gives the cipher; here E(0) and E(1) of two blocks, by one-block ECB."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import ECB

    seed = masks.derive(b"seed")
    blocks = bytes(16) + bytes(15) + b"\x01"
    expected = Cipher(AES(seed), ECB()).encryptor().update(blocks)
    assert masks.expand(seed, 4).tobytes() == expected


@pytest.mark.parametrize("bits", [8, 24, 40])
def test_fixed_point_numbers_add_up_exactly(bits):
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(0, 3, (5, 1000)))
    total = sum((masks.quantise(row, bits, 5) for row in rows), np.zeros(1000, dtype=np.uint64))
    whole = sum(np.rint(row.numpy() * 2.0**bits).astype(object) for row in rows)
    assert (masks.real(total, bits) * 2.0**bits).tolist() == [float(v) for v in whole]
    error = (masks.real(total, bits) - rows.sum(0)).abs().max()
    assert float(error) <= 5 * 2.0 ** -(bits + 1)


def test_a_number_that_could_overflow_the_sum_is_refused():
    edge = 2.0**62 / 4 / 2.0**24
    masks.quantise(torch.tensor([-0.99 * edge]), 24, 4)
    with pytest.raises(RunError, match="24 bits after the point"):
        masks.quantise(torch.tensor([1.01 * edge]), 24, 4)


def test_a_missing_library_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(ConfigError, match=r"pip install fedshift\[privacy\]"):
        masks.require_library()
