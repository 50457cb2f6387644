"""The key that a site is known by: ECDSA P-384 in OpenSSH's format, as Flower reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedshift.errors import ConfigError

ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


@dataclass(frozen=True)
class PublicKey:
    """A site's id and its key as PEM, the form in which Flower keeps it."""

    site: str
    pem: bytes


def make_key(site: str) -> tuple[bytes, bytes]:
    """Private key, and the public line that names the site at its end."""
    key = ec.generate_private_key(ec.SECP384R1())
    form, plain = serialization.Encoding, serialization.NoEncryption()
    private = key.private_bytes(form.PEM, serialization.PrivateFormat.OpenSSH, plain)
    public = key.public_key().public_bytes(form.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + f" {check_id(site)}\n".encode()


def check_id(site: str) -> str:
    """An id that can be the name of a folder."""
    if not re.fullmatch(ID, site):
        raise ConfigError(
            f"{site!r} cannot be a site's id; use letters, digits, dots and hyphens, at most 64"
        )
    return site


def read_public(path: Path) -> PublicKey:
    """The public key that a site's operator has sent."""
    try:
        line = path.read_bytes().strip()
        key = serialization.load_ssh_public_key(line)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(_wrong(path)) from None
    words = line.decode(errors="replace").split()
    if not isinstance(key, ec.EllipticCurvePublicKey) or len(words) != 3:
        raise ConfigError(_wrong(path))
    return PublicKey(check_id(words[2]), pem_of(key))


def own_public(path: Path) -> bytes:
    """The public half of a private key, as PEM."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, UnsupportedAlgorithm):
        raise ConfigError(
            f"{path} is not a private key we can read; restore it, or run `fedshift site init`"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is no ECDSA key; run `fedshift site init`")
    return pem_of(key.public_key())


def pem_of(key: ec.EllipticCurvePublicKey) -> bytes:
    """The key's bytes in the form in which Flower compares them."""
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, info)


def _wrong(path: Path) -> str:
    return f"{path} is not the ID.pub that `fedshift site init` made; ask the site to send it again"
