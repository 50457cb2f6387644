"""Paths, file modes and settings of a server's and of a site's folder.

Everything in ``deploy`` takes its paths from here. Keys and secrets are written with
:func:`write_private` only, so that they are never readable by other users, not even between
creation and ``chmod``.
"""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator

from fedshift.base.errors import ConfigError
from fedshift.base.files import from_toml
from fedshift.core.scenario import Frozen, one_line
from fedshift.deploy.credentials import check_id

PRIVATE, PUBLIC, FOLDER = 0o600, 0o644, 0o700  # file modes


@dataclass(frozen=True)
class Paths:
    """A folder that belongs to one daemon; no other user of the machine may read it."""

    root: Path

    @property
    def ca(self) -> Path:
        """Certificate of the authority that the sites trust; public."""
        return self.root / "ca.crt"

    @property
    def flower(self) -> Path:
        """``FLWR_HOME``: where Flower keeps its own files."""
        return self.root / "flower"

    @property
    def secret(self) -> Path:
        """Secret by which a daemon and its executor know each other; new at every start."""
        return self.flower / "executor.secret"

    @property
    def cache(self) -> Path:
        """``FEDSHIFT_HOME`` of the daemon, unless the environment sets one."""
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
        """The authority's private key; may be kept offline, because only ``renew`` needs it."""
        return self.root / "ca.key"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.root / "server.crt"

    @property
    def key(self) -> Path:
        """The server's private TLS key."""
        return self.root / "server.key"

    @property
    def unit(self) -> Path:
        """For systemd."""
        return self.root / "fedshift-server.service"

    @property
    def expects(self) -> Path:
        """Classes and shape that the last run found at its sites; see ``deploy.gate``."""
        return self.root / "expects.json"

    @property
    def database(self) -> Path:
        """The SuperLink's database: registered sites, and messages not yet delivered."""
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
        """The site's private key, which proves to the server who it is."""
        return self.root / "site.key"

    def public_key(self, site: str) -> Path:
        """The public key, which the site's operator sends to the server's."""
        return self.root / f"{site}.pub"

    @property
    def unit(self) -> Path:
        """For systemd."""
        return self.root / "fedshift-site.service"

    @property
    def states(self) -> Path:
        """State of this site's client, one folder per run; it never leaves the site."""
        return self.root / "state"

    @property
    def policy(self) -> Path:
        """What this site answers, and how much privacy it spends; see ``deploy.policy``."""
        return self.root / "policy.toml"

    @property
    def requests(self) -> Path:
        """Every request to this site, answered or refused; it is never shortened."""
        return self.root / "requests.jsonl"

    @property
    def models(self) -> Path:
        """Complete models of this site, one folder per run; see ``deploy.models``."""
        return self.root / "models"

    @property
    def preparations(self) -> Path:
        """How tables are prepared, as the sites of a run agreed; one file per run."""
        return self.root / "preparations"

    @property
    def data(self) -> Path:
        """Cache of decoded images."""
        return self.root / "data"


def make(paths: Paths) -> None:
    """Create the folder; refuse one that is not empty."""
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
    """Write a file that only its owner may read, from the moment it exists."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def write_public(path: Path, content: bytes) -> None:
    """Write a file that everybody may read."""
    path.write_bytes(content)
    path.chmod(PUBLIC)


def require_private(path: Path) -> None:
    """Raise an error if a key is missing, or readable by other users of this machine."""
    if not path.exists():
        raise ConfigError(f"{path} is missing; restore it, or make a new folder with `init`")
    if mode := path.stat().st_mode & 0o077:
        raise ConfigError(f"{path} is open to others (mode {mode:03o}); run `chmod 600 {path}`")


Port = Annotated[int, Field(ge=1, le=65535)]
Chosen = TypeVar("Chosen", bound=Frozen)


class ServerSettings(Frozen):
    """Where the server listens, and under which names the sites reach it."""

    host: str  # name or address that sites connect to
    port: Port = 8000
    bind: str = "0.0.0.0"  # noqa: S104  address to listen on: sites are other machines, over TLS
    names: tuple[str, ...] = ()  # further names and addresses in the certificate

    @property
    def local(self) -> str:
        """The address at which this machine reaches its own server."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.bind, self.bind)  # noqa: S104

    @property
    def local_address(self) -> str:
        """``local`` with the port, as ``host:port``."""
        host = f"[{self.local}]" if ":" in self.local else self.local
        return f"{host}:{self.port}"

    @property
    def certified(self) -> tuple[str, ...]:
        """Every name and address that the server's certificate must be valid for."""
        return (self.host, *self.names, self.local)


class SiteSettings(Frozen):
    """A site's id, its server and its data."""

    id: str
    server: str  # HOST:PORT
    folder: str | None = None  # images: folder/class/*.jpg; or a table
    preparation: str | None = None  # of a table: the preparation.json of the federation
    trial: bool = False  # no images: use the data of the scenario's client with this id
    domain: str = ""  # sites whose data look alike name the same domain; empty: the id
    size: Annotated[int, Field(ge=1)] | None = None  # pixels per side; None: as they are
    classes: tuple[str, ...] = ()  # all of the federation; empty: those this site has folders of

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
    """Host and port of ``host:port``; an IPv6 address is written in brackets."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"server is {text!r}; write HOST:PORT, such as fl.example.org:8000")
    return host.strip("[]"), int(port)


def write_settings(path: Path, settings: Frozen, head: str) -> None:
    """Write settings as TOML below a comment line ``head``; unset values are left out."""
    values = settings.model_dump(mode="json", exclude_none=True)
    lines = [f"# {head}", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    path.write_text("\n".join([*lines, ""]))
    path.chmod(0o600)


def read_settings(path: Path, kind: type[Chosen], made_by: str) -> Chosen:
    """Read settings from TOML; an error names the file and what is wrong, in one line."""
    try:
        values: dict[str, Any] = from_toml(path.read_text())
        return kind.model_validate(values)
    except OSError:
        raise ConfigError(f"{path} does not exist; `{made_by}` makes such a folder") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; mend that line") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {one_line(error)}") from None


def read_server(folder: Path) -> ServerSettings:
    """Settings of a server's folder."""
    return read_settings(folder / "server.toml", ServerSettings, "fedshift server init")


def read_site(folder: Path) -> SiteSettings:
    """Settings of a site's folder."""
    return read_settings(folder / "site.toml", SiteSettings, "fedshift site init")
