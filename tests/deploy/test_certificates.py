"""Certificates and keys, read back by the standard library and by OpenSSL, not by our own code."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509 import verification

from fedshift.base.errors import ConfigError, RunError
from fedshift.deploy import credentials, folders, setup
from fedshift.deploy.checks import check_certificate, check_server, handshake, reach
from fedshift.deploy.credentials import Pair
from fedshift.deploy.folders import (
    ServerPaths,
    ServerSettings,
    SitePaths,
    SiteSettings,
    read_server,
)


@pytest.fixture(scope="module")
def authority() -> Pair:
    return credentials.make_authority()


@contextmanager
def serving(folder: Path, pair: Pair):
    """A TLS server on loopback that shakes hands and hangs up."""
    (folder / "s.crt").write_bytes(pair.certificate)
    (folder / "s.key").write_bytes(pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "s.crt", folder / "s.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_shake_hands, args=(listener, context), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def _shake_hands(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            raw, _ = listener.accept()
        except OSError:
            return
        try:
            with context.wrap_socket(raw, server_side=True):
                pass
        except OSError:
            raw.close()


def site_that_trusts(folder: Path, authority: Pair) -> SitePaths:
    (folder / "trusted").mkdir()
    paths = SitePaths(folder / "trusted")
    paths.ca.write_bytes(authority.certificate)
    return paths


def test_a_strict_client_accepts_the_certificate_for_its_names_only(authority, tmp_path: Path):
    pair = credentials.issue(authority, ["10.1.2.3", "fl.example.org"])
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    verified = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    verified.verify_flags |= ssl.VERIFY_X509_STRICT
    with serving(tmp_path, pair) as port:
        for name in ("10.1.2.3", "fl.example.org", "localhost", "127.0.0.1"):
            with (
                socket.create_connection(("127.0.0.1", port)) as raw,
                verified.wrap_socket(raw, server_hostname=name) as line,
            ):
                assert line.version() == "TLSv1.3"
        with (
            socket.create_connection(("127.0.0.1", port)) as raw,
            pytest.raises(ssl.SSLCertVerificationError, match=r"match"),
        ):
            verified.wrap_socket(raw, server_hostname="evil.example.org")


def test_a_server_certificate_can_sign_nothing(authority):
    server = credentials.issue(authority, ["fl.example.org"])
    own = credentials.read(server.certificate, "server.crt").extensions
    assert own.get_extension_for_class(x509.BasicConstraints).value.ca is False
    below = credentials.issue(server, ["evil.example.org"])
    trusted = verification.Store([credentials.read(authority.certificate, "ca.crt")])
    verifier = (
        verification.PolicyBuilder()
        .store(trusted)
        .build_server_verifier(x509.DNSName("evil.example.org"))
    )
    with pytest.raises(verification.VerificationError):
        verifier.verify(
            credentials.read(below.certificate, "below"),
            [credentials.read(server.certificate, "server.crt")],
        )


def test_a_good_certificate_passes_the_sites_check(authority, tmp_path: Path):
    paths = site_that_trusts(tmp_path, authority)
    with serving(tmp_path, credentials.issue(authority, ["127.0.0.1"], 40)) as port:
        reach("127.0.0.1", port)
        assert handshake(paths, "127.0.0.1", port).startswith("for 127.0.0.1, 40 days left, TLSv1")


def test_an_expired_certificate_is_told_with_its_date(authority, tmp_path: Path):
    paths = site_that_trusts(tmp_path, authority)
    ended = (datetime.now(UTC) + timedelta(days=-2)).strftime("%Y-%m-%d")
    pair = credentials.issue(authority, ["127.0.0.1"], -2)
    with (
        serving(tmp_path, pair) as port,
        pytest.raises(ConfigError, match=f"expired on {ended}; .*server renew"),
    ):
        handshake(paths, "127.0.0.1", port)


def test_a_certificate_for_another_name_is_told_with_its_names(authority):
    pair = credentials.issue(authority, ["fl.example.org"])
    found = credentials.read(pair.certificate, "server.crt")
    with pytest.raises(
        ConfigError, match=r"for fl\.example\.org, .* not for other; .* with other as a further"
    ):
        check_certificate(found, "other")
    check_certificate(found, "fl.example.org")


def test_a_certificate_of_another_authority_is_told(authority, tmp_path: Path):
    paths = site_that_trusts(tmp_path, authority)
    stranger = credentials.issue(credentials.make_authority(), ["127.0.0.1"])
    with (
        serving(tmp_path, stranger) as port,
        pytest.raises(ConfigError, match=r"not of the authority in .*ca\.crt"),
    ):
        handshake(paths, "127.0.0.1", port)


def test_a_port_without_tls_and_a_closed_one_are_told(authority, tmp_path: Path):
    paths = site_that_trusts(tmp_path, authority)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer_plainly() -> None:
            line, _ = listener.accept()
            line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            line.close()

        thread = threading.Thread(target=answer_plainly)
        thread.start()
        with pytest.raises(ConfigError, match="does not speak TLS"):
            handshake(paths, "127.0.0.1", port)
        thread.join(5)
    with pytest.raises(RunError, match=f"cannot reach 127.0.0.1:{port}: connection refused"):
        reach("127.0.0.1", port)


def test_the_sites_key_is_p384_and_its_public_half_names_the_site(tmp_path: Path):
    private, public = credentials.make_key("berlin")
    (tmp_path / "b.pub").write_bytes(public)
    (tmp_path / "b").write_bytes(private)
    assert public.startswith(b"ecdsa-sha2-nistp384 ")
    read = credentials.read_public(tmp_path / "b.pub")
    assert read.site == "berlin"
    assert read.pem == credentials.own_public(tmp_path / "b")
    loaded = serialization.load_ssh_private_key(private, None)
    assert loaded.key_size == 384


@pytest.mark.parametrize("site", ["", "a b", "../x", "-x", "x" * 65, "a/b"])
def test_an_id_that_is_no_folder_name_is_refused(site):
    with pytest.raises(ConfigError, match="cannot be a site's id"):
        credentials.make_key(site)


@pytest.mark.parametrize(
    "content", ["", "hello", "ssh-ed25519 AAAA berlin", "ecdsa-sha2-nistp384 AAAA berlin"]
)
def test_a_file_that_is_no_public_key_is_refused(content, tmp_path: Path):
    (tmp_path / "b.pub").write_text(content)
    with pytest.raises(ConfigError, match=r"is not the ID\.pub"):
        credentials.read_public(tmp_path / "b.pub")


def test_a_public_key_that_names_no_site_is_refused(tmp_path: Path):
    (tmp_path / "b.pub").write_bytes(credentials.make_key("berlin")[1].rsplit(b" ", 1)[0])
    with pytest.raises(ConfigError, match=r"is not the ID\.pub"):
        credentials.read_public(tmp_path / "b.pub")


def server_folder(folder: Path, **changes: object) -> ServerPaths:
    settings = ServerSettings(**({"host": "fl.example.org"} | changes))
    return setup.init_server(folder / "server", settings, 90)


def test_keys_are_closed_and_what_is_handed_out_is_open(tmp_path: Path):
    paths = server_folder(tmp_path)
    site = setup.init_site(
        tmp_path / "site",
        SiteSettings(id="berlin", server="fl.example.org:8000", trial=True),
        paths.ca,
    )
    modes = {
        p.name: p.stat().st_mode & 0o777 for p in (*paths.root.iterdir(), *site.root.iterdir())
    }
    closed = ("ca.key", "server.key", "site.key", "server.toml", "site.toml")
    assert {modes[name] for name in closed} == {0o600}
    assert {modes[name] for name in ("ca.crt", "server.crt", "berlin.pub")} == {0o644}
    assert {p.stat().st_mode & 0o777 for p in (paths.root, site.root, paths.flower)} == {0o700}
    folders.require_private(site.key)
    site.key.chmod(0o640)
    with pytest.raises(ConfigError, match=r"open to others \(mode 040\); run `chmod 600"):
        folders.require_private(site.key)


def test_a_renewed_certificate_is_another_one_of_the_same_authority(tmp_path: Path):
    paths = server_folder(tmp_path)
    before, root = paths.certificate.read_bytes(), paths.ca.read_bytes()
    settings = read_server(paths.root).model_copy(update={"names": ("10.0.0.9",)})
    with pytest.raises(ConfigError, match=r"not for 10\.0\.0\.9"):
        check_server(paths, settings)
    setup.renew(paths, settings, 200)
    assert 199 < check_server(paths, settings) <= 200
    assert paths.certificate.read_bytes() != before
    assert paths.ca.read_bytes() == root
    new = credentials.read(paths.certificate.read_bytes(), "server.crt")
    new.verify_directly_issued_by(credentials.read(root, "ca.crt"))
    assert paths.key.stat().st_mode & 0o777 == 0o600


def test_a_server_that_listens_on_one_address_is_certified_for_it(tmp_path: Path):
    paths = server_folder(tmp_path, bind="10.9.9.9", port=8443)
    found = credentials.read(paths.certificate.read_bytes(), "server.crt")
    assert credentials.covers(found, "10.9.9.9")
    assert read_server(paths.root).local_address == "10.9.9.9:8443"
    assert ServerSettings(host="x").local_address == "127.0.0.1:8000"
    assert ServerSettings(host="x", bind="::").local_address == "[::1]:8000"


def test_nobody_outlives_the_authority(tmp_path: Path):
    paths = server_folder(tmp_path)
    with pytest.raises(ConfigError, match="ask for fewer days"):
        setup.renew(paths, read_server(paths.root), 4000)


def test_the_servers_own_expired_certificate_stops_its_start(tmp_path: Path):
    paths = server_folder(tmp_path)
    setup.renew(paths, read_server(paths.root), -1)
    with pytest.raises(ConfigError, match=r"expired on .*server renew"):
        check_server(paths, read_server(paths.root))


def test_the_units_restart_after_the_server_has_let_go_of_a_killed_site(tmp_path: Path):
    unit = server_folder(tmp_path).unit.read_text()
    assert "Restart=on-failure\nRestartSec=75\n" in unit
    assert f'-m fedshift server start "{tmp_path / "server"}"\n' in unit
