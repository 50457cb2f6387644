"""``init`` and ``renew``: make the folder of a server or of a site.

``cli.deploy`` calls it. Keys and certificates are made, and files of the caller are read, before
the folder is created, so that a wrong option leaves no half-made folder. Private keys must never be
readable by other users, not even for a moment, and an existing folder is never overwritten.
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path

from fedshift.base.errors import ConfigError
from fedshift.deploy import credentials, folders
from fedshift.deploy.credentials import Pair
from fedshift.deploy.folders import (
    ServerPaths,
    ServerSettings,
    SitePaths,
    SiteSettings,
    write_settings,
)
from fedshift.deploy.policy import SitePolicy, write_policy

RESTART_DELAY = 75  # seconds; until then the server may refuse a site that was killed
UNIT = """\
# sudo cp "{file}" /etc/systemd/system/ && sudo systemctl enable --now {name}
[Unit]
Description=fedshift {kind}
Wants=network-online.target
After=network-online.target

[Service]
User={user}
ExecStart="{python}" -m fedshift {kind} start "{root}"
Restart=on-failure
RestartSec={delay}
UMask=0077
NoNewPrivileges=true
PrivateTmp=true
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""


def init_server(folder: Path, settings: ServerSettings, days: int) -> ServerPaths:
    """Make a server's folder: certificate authority, server certificate, settings, systemd unit."""
    paths = ServerPaths(folder.absolute())
    authority = credentials.make_authority()
    server = credentials.issue(authority, settings.certified, days)
    folders.make(paths)
    folders.write_public(paths.ca, authority.certificate)
    folders.write_private(paths.ca_key, authority.key)
    _install(paths, server)
    write_settings(paths.settings, settings, "Server of a federation; `fedshift server start`.")
    paths.unit.write_text(_unit("server", paths.root, paths.unit))
    return paths


def renew(paths: ServerPaths, settings: ServerSettings, days: int) -> None:
    """Replace the server's certificate by a new one of the same authority; sites need no change."""
    folders.require_private(paths.ca_key)
    authority = Pair(paths.ca.read_bytes(), paths.ca_key.read_bytes())
    root = credentials.read(authority.certificate, str(paths.ca))
    if credentials.days_left(root) < days:
        raise ConfigError(
            f"the authority {paths.ca} ends in {credentials.days_left(root):.0f} days; ask for "
            "fewer days, or make a new server folder and give its ca.crt to the sites",
            "days=N",
        )
    _install(paths, credentials.issue(authority, settings.certified, days))


def _install(paths: ServerPaths, server: Pair) -> None:
    folders.write_private(paths.key, server.key)
    folders.write_public(paths.certificate, server.certificate)


def init_site(folder: Path, settings: SiteSettings, ca: Path) -> SitePaths:
    """Make a site's folder: its key pair, the authority it trusts, settings, systemd unit."""
    paths = SitePaths(folder.absolute())
    try:
        trusted = ca.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {ca}: {error.strerror}; copy ca.crt from the server") from (
            None
        )
    credentials.read(trusted, str(ca))
    private, public = credentials.make_key(settings.id)
    folders.make(paths)
    folders.write_public(paths.ca, trusted)
    folders.write_private(paths.key, private)
    folders.write_public(paths.public_key(settings.id), public)
    write_settings(paths.settings, settings, "Site of a federation; `fedshift site start`.")
    write_policy(paths.policy, SitePolicy())
    paths.unit.write_text(_unit("site", paths.root, paths.unit))
    return paths


def _unit(kind: str, root: Path, file: Path) -> str:
    return UNIT.format(
        kind=kind,
        root=root,
        file=file,
        name=file.stem,
        user=getpass.getuser(),
        python=sys.executable,
        delay=RESTART_DELAY,
    )
