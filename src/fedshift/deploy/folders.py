"""What lies where in the folder of a server or of a site, and who may read it."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator

from fedshift.base.errors import ConfigError
from fedshift.core.scenario import Frozen, one_line
from fedshift.deploy.credentials import check_id

PRIVATE, PUBLIC, FOLDER = 0o600, 0o644, 0o700  # modes


@dataclass(frozen=True)
class Paths:
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
class ServerPaths(Paths):
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
class SitePaths(Paths):
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


def make(paths: Paths) -> None:
    """Create the folder; one that holds anything is left alone."""
    root = paths.root
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{root} exists already and is not empty; choose another folder")
    try:
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(FOLDER)
        paths.flower.mkdir(mode=FOLDER)
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


Port = Annotated[int, Field(ge=1, le=65535)]
Chosen = TypeVar("Chosen", bound=Frozen)


class ServerSettings(Frozen):
    """The server as the sites see it."""

    host: str  # name or address that sites connect to
    port: Port = 8000
    bind: str = "0.0.0.0"
    names: tuple[str, ...] = ()  # further names and addresses in the certificate

    @property
    def local(self) -> str:
        """The address at which this machine reaches its own server."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.bind, self.bind)

    @property
    def local_address(self) -> str:
        """The same with the port."""
        host = f"[{self.local}]" if ":" in self.local else self.local
        return f"{host}:{self.port}"

    @property
    def certified(self) -> tuple[str, ...]:
        """All that the certificate must be for."""
        return (self.host, *self.names, self.local)


class SiteSettings(Frozen):
    """One site: who it is, where the server is, where its data are."""

    id: str
    server: str  # HOST:PORT
    folder: str | None = None  # images: folder/class/*.jpg
    trial: bool = False  # or the client of the run's scenario that is called like the site
    domain: str = ""  # how its data look; sites that look alike share a name; empty: the id
    size: Annotated[int, Field(ge=1)] | None = None  # pixels of a side
    classes: tuple[str, ...] = ()  # all of the federation; empty: the folders that are there

    @field_validator("id")
    @classmethod
    def _named(cls, site: str) -> str:
        try:
            return check_id(site)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.folder is None) != self.trial:
            raise ValueError("give either folder or trial = true: a site has one source of data")
        split_address(self.server)
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server."""
        return split_address(self.server)


def split_address(text: str) -> tuple[str, int]:
    """``host:port``; an IPv6 address stands in brackets."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"server is {text!r}; write HOST:PORT, such as fl.example.org:8000")
    return host.strip("[]"), int(port)


def write_settings(path: Path, settings: Frozen, head: str) -> None:
    """As TOML; whatever is not set is left out."""
    values = settings.model_dump(mode="json", exclude_none=True)
    lines = [f"# {head}", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    path.write_text("\n".join([*lines, ""]))
    path.chmod(0o600)


def read_settings(path: Path, kind: type[Chosen], made_by: str) -> Chosen:
    """Settings from a file; what is wrong in it is told in one line."""
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text())
        return kind.model_validate(values)
    except OSError:
        raise ConfigError(f"{path} does not exist; `{made_by}` makes such a folder") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} cannot be read: {error}; mend that line") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {one_line(error)}") from None


def read_server(folder: Path) -> ServerSettings:
    """Of a server's folder."""
    return read_settings(folder / "server.toml", ServerSettings, "fedshift server init")


def read_site(folder: Path) -> SiteSettings:
    """Of a site's folder."""
    return read_settings(folder / "site.toml", SiteSettings, "fedshift site init")
