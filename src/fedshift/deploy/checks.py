"""Everything that can be wrong between a site and its server, found before the daemon starts."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography import x509

from fedshift.base.errors import ConfigError, DataError, RunError
from fedshift.base.version import __version__
from fedshift.deploy import credentials, folders
from fedshift.deploy.folders import ServerPaths, ServerSettings, SitePaths, SiteSettings, read_site
from fedshift.deploy.gate import ABOUT, KEY_HEADER
from fedshift.deploy.sites import open_folder

TIMEOUT = 10.0  # seconds


@dataclass(frozen=True)
class About:
    """What the server tells a site of itself."""

    fedshift: str
    status: str  # unknown, registered, online or offline: what it knows of the asking site
    classes: tuple[str, ...] = ()  # of the federation, empty before its first run
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Data:
    """What a site would bring."""

    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)  # images by class


def check_site(paths: SitePaths) -> Iterator[str]:
    """Go through all checks; a line for each that holds, an error at the first that does not."""
    settings = read_site(paths.root)
    yield f"key: {own_key(paths)}"
    yield f"authority: {authority(paths)}"
    data = own_data(paths, settings)
    yield f"data: {describe(data)}"
    host, port = settings.address
    reach(host, port)
    yield f"port: {host}:{port} answers"
    yield f"certificate: {handshake(paths, host, port)}"
    about = ask(paths, host, port)
    fits(paths, settings, about, data)
    yield f"server: fedshift {about.fedshift}, this site is {about.status} there"


def own_key(paths: SitePaths) -> str:
    """The site's key is there, is one, and is closed to others."""
    folders.require_private(paths.key)
    credentials.own_public(paths.key)
    return str(paths.key)


def authority(paths: SitePaths) -> str:
    """The root that this site trusts has not expired."""
    try:
        root = credentials.read(paths.ca.read_bytes(), str(paths.ca))
    except OSError as error:
        raise ConfigError(f"cannot read {paths.ca}: {error.strerror}; copy it again") from None
    left = credentials.days_left(root)
    if left < 0:
        raise ConfigError(
            f"{paths.ca} expired on {root.not_valid_after_utc:%Y-%m-%d}; the server's operator "
            "makes a new server folder and sends its ca.crt"
        )
    return f"trusted for {left:.0f} days"


def own_data(paths: SitePaths, settings: SiteSettings) -> Data:
    """Read the images."""
    if settings.trial:
        return Data()
    domain = open_folder(paths, settings)
    counts = np.bincount(domain.y.numpy(), minlength=len(domain.classes))
    named = dict(zip(domain.classes, counts.tolist(), strict=True))
    return Data(domain.classes, domain.shape, named)


def describe(data: Data) -> str:
    """Classes with their counts, and the size of an image."""
    if not data.shape:
        return "those of the run's scenario (a trial)"
    counts = ", ".join(f"{name} {count}" for name, count in data.counts.items())
    _, height, width = data.shape
    return f"{sum(data.counts.values())} images of {width}x{height}, {counts}"


def reach(host: str, port: int) -> None:
    """The port answers."""
    try:
        socket.create_connection((host, port), TIMEOUT).close()
    except OSError as error:
        reason = (error.strerror or str(error) or type(error).__name__).lower()
        raise RunError(
            f"cannot reach {host}:{port}: {reason}; check that the server runs, that its name is "
            f"right, and that firewalls on both sides let TCP port {port} pass"
        ) from None


def handshake(paths: SitePaths, host: str, port: int) -> str:
    """The server's certificate is valid, for this host, and of our authority."""
    found = shown_certificate(host, port)
    check_certificate(found, host)
    trusting = ssl.create_default_context(cafile=str(paths.ca))
    try:
        with (
            socket.create_connection((host, port), TIMEOUT) as raw,
            trusting.wrap_socket(raw, server_hostname=host) as line,
        ):
            version = line.version()
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"the certificate of {host}:{port} is not of the authority in {paths.ca} "
            f"({error.verify_message}); copy ca.crt from the server again"
        ) from None
    return f"for {host}, {credentials.days_left(found):.0f} days left, {version}"


def shown_certificate(host: str, port: int) -> x509.Certificate:
    """Whatever certificate the server shows, to say what is wrong with it."""
    curious = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    curious.check_hostname = False
    curious.verify_mode = ssl.CERT_NONE  # nothing is sent over this connection
    try:
        with (
            socket.create_connection((host, port), TIMEOUT) as raw,
            curious.wrap_socket(raw, server_hostname=host) as line,
        ):
            return x509.load_der_x509_certificate(line.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{host}:{port} does not speak TLS ({error}); check the port in the site's settings"
        ) from None


def check_certificate(found: x509.Certificate, host: str) -> None:
    """In date and for ``host``; both are mended at the server."""
    if credentials.days_left(found) < 0:
        raise ConfigError(
            f"the server's certificate expired on {found.not_valid_after_utc:%Y-%m-%d}; at the "
            "server, run `fedshift server renew` and start it again"
        )
    if not credentials.covers(found, host):
        names = ", ".join(credentials.names_of(found))
        raise ConfigError(
            f"the server's certificate is for {names}, not for {host}; set one of these names as "
            f"server, or at the server run `fedshift server renew` with {host} as a further name "
            "and start it again",
            f"san={host}",
        )


def check_server(paths: ServerPaths, settings: ServerSettings) -> float:
    """The server's own certificate, before a site complains of it; days that are left."""
    for key in (paths.key, paths.certificate):
        if not key.exists():
            raise ConfigError(f"{key} is missing; run `fedshift server renew {paths.root}`")
    folders.require_private(paths.key)
    found = credentials.read(paths.certificate.read_bytes(), str(paths.certificate))
    for host in settings.certified:
        check_certificate(found, host)
    return credentials.days_left(found)


@contextmanager
def _line(paths: SitePaths, host: str, port: int) -> Iterator[http.client.HTTPSConnection]:
    trusting = ssl.create_default_context(cafile=str(paths.ca))
    line = http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=trusting)
    try:
        yield line
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise RunError(
            f"{host}:{port} is not a server of fedshift ({error}); check the port"
        ) from None
    finally:
        line.close()


def ask(paths: SitePaths, host: str, port: int) -> About:
    """What the server says of itself, and of this site."""
    key = base64.b64encode(credentials.own_public(paths.key)).decode()
    with _line(paths, host, port) as line:
        line.request("GET", ABOUT, headers={KEY_HEADER: key})
        row: dict[str, Any] = json.loads(line.getresponse().read())
        return About(
            row["fedshift"],
            row["status"],
            tuple(row.get("classes", ())),
            tuple(row.get("shape", ())),
        )


def fits(paths: SitePaths, settings: SiteSettings, about: About, data: Data) -> None:
    """Same version, registered, same classes and size as the federation."""
    if about.fedshift != __version__:
        raise ConfigError(
            f"this site has fedshift {__version__}, the server {about.fedshift}; "
            f"pip install 'fedshift[flower]=={about.fedshift}'"
        )
    if about.status == "unknown":
        raise ConfigError(
            f"the server does not know this site's key; send {paths.public_key(settings.id)} to "
            "its operator, who runs `fedshift server register`"
        )
    for name, own, theirs in (
        ("classes", data.classes, about.classes),
        ("shape", data.shape, about.shape),
    ):
        if own and theirs and own != theirs:
            raise DataError(
                f"this site has {name} {json.dumps(own)}, the federation {json.dumps(theirs)}; "
                f"mend {settings.folder}, or {'classes' if name == 'classes' else 'size'} in "
                f"{paths.settings}"
            )
