"""What lies where in the folder of a server or of a site, and who may read it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedshift.errors import ConfigError

PRIVATE, PUBLIC, FOLDER = 0o600, 0o644, 0o700  # modes


@dataclass(frozen=True)
class Place:
    """A folder that belongs to one daemon; nobody else on the machine may look inside."""

    root: Path

    @property
    def ca(self) -> Path:
        """Certificate of the authority: what sites trust. Public."""
        return self.root / "ca.crt"

    @property
    def flower(self) -> Path:
        """Flower's own home."""
        return self.root / "flower"

    @property
    def secret(self) -> Path:
        """Shared by a daemon and its executor on this machine."""
        return self.flower / "executor.secret"

    @property
    def cache(self) -> Path:
        """FEDSHIFT_HOME of the daemon."""
        return self.root / "cache"


@dataclass(frozen=True)
class ServerPlace(Place):
    """The server's folder."""

    @property
    def settings(self) -> Path:
        """What ``init`` wrote and an operator may edit."""
        return self.root / "server.toml"

    @property
    def ca_key(self) -> Path:
        """Signs server certificates; may be moved offline between renewals."""
        return self.root / "ca.key"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.root / "server.crt"

    @property
    def key(self) -> Path:
        """The server's TLS key."""
        return self.root / "server.key"

    @property
    def unit(self) -> Path:
        """For systemd."""
        return self.root / "fedshift-server.service"

    @property
    def expects(self) -> Path:
        """Classes and shape of the sites that enrolled first."""
        return self.root / "expects.json"

    @property
    def database(self) -> Path:
        """Of the SuperLink: registered sites, messages under way."""
        return self.flower / "superlink.db"

    @property
    def runs(self) -> Path:
        """Run directories."""
        return self.root / "runs"


@dataclass(frozen=True)
class SitePlace(Place):
    """A site's folder."""

    @property
    def settings(self) -> Path:
        """What ``init`` wrote and an operator may edit."""
        return self.root / "site.toml"

    @property
    def key(self) -> Path:
        """The site's private key: who it is to the server."""
        return self.root / "site.key"

    def public_key(self, site: str) -> Path:
        """What the operator carries to the server."""
        return self.root / f"{site}.pub"

    @property
    def unit(self) -> Path:
        """For systemd."""
        return self.root / "fedshift-site.service"

    @property
    def states(self) -> Path:
        """Private state of this site, one folder per run."""
        return self.root / "state"

    @property
    def data(self) -> Path:
        """Images decoded once."""
        return self.root / "data"


def make(place: Place) -> None:
    """Create the folder; one that holds anything is left alone."""
    root = place.root
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{root} exists already and is not empty; choose another folder")
    try:
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(FOLDER)
        place.flower.mkdir(mode=FOLDER)
    except OSError as error:
        raise ConfigError(f"cannot make {root}: {error.strerror}; choose another folder") from None


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, never readable in between."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def write_public(path: Path, content: bytes) -> None:
    """Write a file that is meant to be handed out."""
    path.write_bytes(content)
    path.chmod(PUBLIC)


def require_private(path: Path) -> None:
    """Refuse a key that others on this machine could read."""
    if not path.exists():
        raise ConfigError(f"{path} is missing; restore it, or make a new folder with `init`")
    if mode := path.stat().st_mode & 0o077:
        raise ConfigError(f"{path} is open to others (mode {mode:03o}); run `chmod 600 {path}`")
