"""A small certificate authority, and the key pairs by which sites prove who they are.

``deploy.setup`` makes certificates and keys with it, ``deploy.checks`` inspects them, and
``server register`` reads a site's public key. There is one root certificate per federation, which
signs server certificates and nothing else. It works on bytes and leaves writing to
``deploy.folders``, so a private key never reaches a file of the wrong mode.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedshift.base.errors import ConfigError

AUTHORITY_DAYS, SERVER_DAYS, WARNING_DAYS = 3650, 365, 30
LOCAL = ("localhost", "127.0.0.1")  # how the server's own commands connect to it
CLOCKS = timedelta(minutes=5)  # by which sites' clocks may be slow


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, both as PEM."""

    certificate: bytes
    key: bytes


def make_authority(days: int = AUTHORITY_DAYS) -> Pair:
    """A root certificate; it may sign server certificates, but no further authorities."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedshift authority")
    builder = _builder(name, name, key, days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return _pair(builder.sign(key, hashes.SHA384()), key)


def issue(authority: Pair, names: Sequence[str], days: int = SERVER_DAYS) -> Pair:
    """A server certificate for host names and addresses; ``localhost`` is always added."""
    root = read(authority.certificate, "ca.crt")
    signer = serialization.load_pem_private_key(authority.key, None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ConfigError("ca.key is not the key that `fedshift server init` makes; restore it")
    key = ec.generate_private_key(ec.SECP256R1())
    whole = list(dict.fromkeys((*names, *LOCAL)))
    builder = _builder(_name(names[0]), root.subject, key, days)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
    )
    builder = builder.add_extension(
        x509.SubjectAlternativeName([alternative(n) for n in whole]), critical=False
    )
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
    )
    return _pair(builder.sign(signer, hashes.SHA256()), key)


def alternative(name: str) -> x509.GeneralName:
    """A host name or IP address in the form of a certificate's alternative name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError:
        raise ConfigError(
            f"{name!r} is neither a host name nor an address; write it as sites will reach it"
        ) from None


def read(pem: bytes, what: str) -> x509.Certificate:
    """A certificate from PEM; ``what`` names it in the error."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise ConfigError(f"{what} is not a certificate; copy it again from the server") from None


def covers(certificate: x509.Certificate, host: str) -> bool:
    """Whether the certificate is valid for ``host``."""
    return alternative(host) in list(_alternatives(certificate))


def names_of(certificate: x509.Certificate) -> list[str]:
    """Host names and addresses that a certificate is valid for."""
    return [str(name.value) for name in _alternatives(certificate)]


def _alternatives(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return found.value


def days_left(certificate: x509.Certificate, now: datetime | None = None) -> float:
    """Days until the certificate expires; negative once it has."""
    rest = certificate.not_valid_after_utc - (now or datetime.now(UTC))
    return rest.total_seconds() / timedelta(days=1).total_seconds()


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + timedelta(days=days)) - CLOCKS)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    form = serialization.Encoding.PEM
    kind, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return Pair(certificate.public_bytes(form), key.private_bytes(form, kind, plain))


ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


@dataclass(frozen=True)
class PublicKey:
    """A site's id and its public key as PEM, the form in which Flower stores it."""

    site: str
    pem: bytes


def make_key(site: str) -> tuple[bytes, bytes]:
    """A private key, and its public key as one line in OpenSSH's format with the id at the end."""
    key = ec.generate_private_key(ec.SECP384R1())
    form, plain = serialization.Encoding, serialization.NoEncryption()
    private = key.private_bytes(form.PEM, serialization.PrivateFormat.OpenSSH, plain)
    public = key.public_key().public_bytes(form.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + f" {check_id(site)}\n".encode()


def check_id(site: str) -> str:
    """Return the id if it can be the name of a folder, else raise an error."""
    if not re.fullmatch(ID, site):
        raise ConfigError(
            f"{site!r} cannot be a site's id; use letters, digits, dots and hyphens, at most 64"
        )
    return site


def read_public(path: Path) -> PublicKey:
    """Read the ``ID.pub`` that a site's operator has sent."""
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
    """The key as PEM, exactly as Flower compares it."""
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, info)


def _wrong(path: Path) -> str:
    return f"{path} is not the ID.pub that `fedshift site init` made; ask the site to send it again"
