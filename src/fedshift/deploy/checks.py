"""Checks of a site or a server before its daemon starts: files, data, network, certificates.

``fedshift site check``, ``site start`` and ``server start`` call it. Each check that fails raises
an error that says what to do and on which machine, where Flower would only report a failed
connection. Checks change nothing, except that a site's images are decoded into its cache.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509

from fedshift.base.errors import ConfigError, DataError, RunError
from fedshift.base.version import __version__
from fedshift.data.library.prepare import rows_of_classes
from fedshift.data.sources.tables.reading import read_table
from fedshift.data.sources.tables.schema import TableSchema
from fedshift.deploy import credentials, folders
from fedshift.deploy.folders import ServerPaths, ServerSettings, SitePaths, SiteSettings, read_site
from fedshift.deploy.gate import ABOUT, KEY_HEADER
from fedshift.deploy.policy import describe_policy
from fedshift.deploy.sites import is_table, open_folder

TIMEOUT = 10.0  # seconds for a connection


@dataclass(frozen=True)
class About:
    """The server's answer to a site's question at ``/fedshift``; see ``deploy.gate``."""

    fedshift: str
    status: str  # of the asking site: unknown, registered, online or offline
    classes: tuple[str, ...] = ()  # of the federation, empty before its first run
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Data:
    """A summary of a site's data; empty for a trial site."""

    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)  # images by class
    raw: str = ""  # of a table that is not prepared yet


def check_site(paths: SitePaths) -> Iterator[str]:
    """Run all checks; yields one line per passed check and raises at the first that fails."""
    settings = read_site(paths.root)
    yield f"key: {own_key(paths)}"
    yield f"policy: {describe_policy(paths)}"
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
    """Check that the site's key exists, can be read as a key, and is closed to other users."""
    folders.require_private(paths.key)
    credentials.own_public(paths.key)
    return str(paths.key)


def authority(paths: SitePaths) -> str:
    """Check that the root certificate which this site trusts has not expired."""
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
    """Read the site's images; nothing for a trial site, whose data depend on the run."""
    if settings.trial:
        return Data()
    if is_table(settings) and settings.preparation is None:
        table = read_table(Path(str(settings.folder)), TableSchema())
        return Data(raw=f"{len(table)} rows of {len(table.columns)} columns")
    domain = open_folder(paths, settings)
    counts = rows_of_classes(domain)
    named = dict(zip(domain.classes, counts.tolist(), strict=True))
    return Data(domain.classes, domain.shape, named)


def describe(data: Data) -> str:
    """Number and size of the images or rows and the count of each class, as text."""
    if data.raw:
        return f"{data.raw}; a run's sites agree on how they are prepared"
    if not data.shape:
        return "those of the run's scenario (a trial)"
    counts = ", ".join(f"{name} {count}" for name, count in data.counts.items())
    if len(data.shape) == 1:
        return f"{sum(data.counts.values())} rows of {data.shape[0]} numbers: {counts}"
    _, height, width = data.shape
    return f"{sum(data.counts.values())} images of {width}x{height}, {counts}"


def reach(host: str, port: int) -> None:
    """Check that the server's port accepts connections."""
    try:
        socket.create_connection((host, port), TIMEOUT).close()
    except OSError as error:
        reason = (error.strerror or str(error) or type(error).__name__).lower()
        raise RunError(
            f"cannot reach {host}:{port}: {reason}; check that the server runs, that its name is "
            f"right, and that firewalls on both sides let TCP port {port} pass"
        ) from None


def handshake(paths: SitePaths, host: str, port: int) -> str:
    """Check that the server's certificate is in date, for this host, and of our authority."""
    found = shown_certificate(host, port)
    check_certificate(found, host)
    verified = ssl.create_default_context(cafile=str(paths.ca))
    try:
        with (
            socket.create_connection((host, port), TIMEOUT) as raw,
            verified.wrap_socket(raw, server_hostname=host) as connection,
        ):
            version = connection.version()
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"the certificate of {host}:{port} is not of the authority in {paths.ca} "
            f"({error.verify_message}); copy ca.crt from the server again"
        ) from None
    return f"for {host}, {credentials.days_left(found):.0f} days left, {version}"


def shown_certificate(host: str, port: int) -> x509.Certificate:
    """Whatever certificate the server presents, unverified.

    A TLS library refuses a bad certificate without showing it; this way an error can name its hosts
    and its date.
    """
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE  # nothing is sent over this connection
    try:
        with (
            socket.create_connection((host, port), TIMEOUT) as raw,
            unverified.wrap_socket(raw, server_hostname=host) as connection,
        ):
            return x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{host}:{port} does not speak TLS ({error}); check the port in the site's settings"
        ) from None


def check_certificate(found: x509.Certificate, host: str) -> None:
    """Check date and host of the server's certificate; the server's operator can fix both."""
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
    """Check the server's own key and certificate; returns the days until it expires."""
    for key in (paths.key, paths.certificate):
        if not key.exists():
            raise ConfigError(f"{key} is missing; run `fedshift server renew {paths.root}`")
    folders.require_private(paths.key)
    found = credentials.read(paths.certificate.read_bytes(), str(paths.certificate))
    for host in settings.certified:
        check_certificate(found, host)
    return credentials.days_left(found)


@contextmanager
def _connection(paths: SitePaths, host: str, port: int) -> Iterator[http.client.HTTPSConnection]:
    """A verified HTTPS connection to the server."""
    verified = ssl.create_default_context(cafile=str(paths.ca))
    connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=verified)
    try:
        yield connection
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise RunError(
            f"{host}:{port} is not a server of fedshift ({error}); check the port"
        ) from None
    finally:
        connection.close()


def ask(paths: SitePaths, host: str, port: int) -> About:
    """Ask the server for its version and for the status of this site's key."""
    key = base64.b64encode(credentials.own_public(paths.key)).decode()
    with _connection(paths, host, port) as connection:
        connection.request("GET", ABOUT, headers={KEY_HEADER: key})
        row: dict[str, Any] = json.loads(connection.getresponse().read())
        return About(
            row["fedshift"],
            row["status"],
            tuple(row.get("classes", ())),
            tuple(row.get("shape", ())),
        )


def fits(paths: SitePaths, settings: SiteSettings, about: About, data: Data) -> None:
    """Check that versions agree, the site is registered, and its data fit the federation."""
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
