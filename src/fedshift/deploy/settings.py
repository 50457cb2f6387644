"""server.toml and site.toml: what ``init`` writes, an operator may edit and daemons read."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator

from fedshift.deploy.keys import check_id
from fedshift.errors import ConfigError
from fedshift.scenario import Frozen, one_line

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
