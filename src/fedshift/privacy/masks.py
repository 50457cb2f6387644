"""Keys, masks and fixed-point numbers: the primitives of secure aggregation.

``site`` and ``secure`` are the only callers. A key must be used for one purpose and one message
only, and no secret may come from torch's or NumPy's generators.

Why fixed point, and why modulo 2^64: a mask hides a number only if their sum is uniform, and masks
must cancel exactly in the sum over sites. Floats give neither, so a value v becomes the integer
round(v 2^bits), stored as an unsigned 64-bit integer. NumPy's unsigned integers wrap around, which
is addition modulo 2^64: a uniform mask makes any value uniform, and removing it loses no bit.
Negative values are the upper half of the range (two's complement), so the sum of all sites has to
stay within +-2^63; ``quantise`` checks this before anything is masked, with a factor of 2 to spare.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedshift import ConfigError, RunError
from fedshift.privacy.shamir import PRIME

Vector = npt.NDArray[np.uint64]
KEY = 32  # bytes of a key or a seed
NONCE = bytes(12)  # may be constant, because a key encrypts one message only


def require_library() -> Any:
    """The library cryptography, or an error that says how to install it."""
    try:
        import cryptography.hazmat.primitives as library  # noqa: PLC0415  an extra
    except ImportError:
        raise ConfigError(
            "secret noise and keys need the package cryptography; pip install fedshift[privacy]"
        ) from None
    return library


def derive(secret: bytes, *names: object) -> bytes:
    """A separate key for each purpose, from one secret: HKDF-SHA256."""
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    info = "\x1f".join(str(n) for n in names).encode()
    return HKDF(SHA256(), KEY, b"fedshift", info).derive(secret)


def public_key(private: bytes) -> bytes:
    """Public X25519 key of a private one."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: PLC0415

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes) -> bytes:
    """The common secret of two key pairs, from one's private and the other's public key."""
    from cryptography.hazmat.primitives.asymmetric import x25519  # noqa: PLC0415

    mine = x25519.X25519PrivateKey.from_private_bytes(private)
    try:
        return mine.exchange(x25519.X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise RunError(f"a public key is not one of X25519 ({error})") from None


def is_public_key(public: bytes) -> bool:
    """Whether others can agree on a secret with it; false for points of low order."""
    try:
        agree(derive(b"any", "trial"), public)
    except RunError:
        return False
    return True


def commitment(secret: bytes) -> bytes:
    """Fixes a random secret of 32 bytes without telling anything about it: SHA-256."""
    return hashlib.sha256(b"fedshift commitment" + secret).digest()


def encrypt(key: bytes, text: bytes) -> bytes:
    """ChaCha20-Poly1305 with a key that is used once."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # noqa: PLC0415

    return ChaCha20Poly1305(key).encrypt(NONCE, text, None)


def decrypt(key: bytes, encrypted: bytes) -> bytes:
    """Inverse of :func:`encrypt`; raises if a byte was changed."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # noqa: PLC0415

    try:
        return ChaCha20Poly1305(key).decrypt(NONCE, encrypted, None)
    except InvalidTag:
        raise RunError("a share of a secret was changed on its way") from None


def expand(seed: bytes, size: int) -> Vector:
    """A mask: ``size`` uniform numbers modulo 2^64, the key stream of AES-256 in counter mode."""
    from cryptography.hazmat.primitives.ciphers import Cipher  # noqa: PLC0415
    from cryptography.hazmat.primitives.ciphers.algorithms import AES  # noqa: PLC0415
    from cryptography.hazmat.primitives.ciphers.modes import CTR  # noqa: PLC0415

    stream = Cipher(AES(seed), CTR(bytes(16))).encryptor().update(bytes(8 * size))
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64, copy=False)


class Draws:
    """Uniform numbers below Shamir's prime, derived from a secret seed."""

    def __init__(self, seed: bytes) -> None:
        self.seed, self.count = seed, 0

    def __call__(self) -> int:
        """The next number: reduced from 128 bits more than the prime has, so the bias is tiny."""
        self.count += 1
        words = [derive(self.seed, self.count, i) for i in range(math.ceil((521 + 128) / 256))]
        return int.from_bytes(b"".join(words), "little") % PRIME


def quantise(values: Tensor, bits: int, terms: int) -> Vector:
    """Fixed-point numbers with ``bits`` after the point; an error if ``terms`` of them overflow."""
    scaled = (values.double().cpu() * 2.0**bits).round()
    limit = 2.0**62 / terms
    if values.numel() and not float(scaled.abs().max()) < limit:
        raise RunError(
            f"a weighted entry is {float(values.abs().max()):g}, and {bits} bits after the point "
            f"leave room for {limit / 2.0**bits:g}; lower bits of secure-aggregation"
        )
    found: Vector = scaled.to(torch.int64).numpy().view(np.uint64)
    return found


def real(total: Vector, bits: int) -> Tensor:
    """Inverse of :func:`quantise`, for a sum; float64."""
    return torch.from_numpy(total.view(np.int64).copy()).double() / 2.0**bits


def to_tensor(data: bytes) -> Tensor:
    """Bytes as a tensor, the form in which they travel."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def to_bytes(tensor: Tensor) -> bytes:
    """Inverse of :func:`to_tensor`."""
    return tensor.cpu().numpy().tobytes()
