"""A site's own data: all that this machine knows of the federation."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedshift.data.federation import Federation, Site, federate, whole
from fedshift.data.images import tree_source
from fedshift.data.samples import Domain
from fedshift.data.splits import apply_split
from fedshift.data.store import read_domain, write_domain
from fedshift.deploy.places import SitePlace
from fedshift.deploy.settings import SiteSettings, read_site
from fedshift.errors import DataError, RunError, UnknownNameError
from fedshift.runs.config import RunConfig


@dataclass(frozen=True)
class Facts:
    """What a site tells the server before the first round; nothing of single images."""

    client: str
    domain: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]  # of one input as a net sees it
    train: int  # samples
    val: int
    test: int

    def to_json(self) -> str:
        """As it travels."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Facts:
        """Inverse of :meth:`to_json`."""
        try:
            row: dict[str, Any] = json.loads(text)
            row |= {
                "classes": tuple(map(str, row["classes"])),
                "shape": tuple(map(int, row["shape"])),
            }
            return cls(**row)
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"a site introduces itself in words we cannot read ({error!r})"
            ) from None


def own_federation(place: SitePlace, run: RunConfig) -> Federation:
    """A federation of one: this site, split as the run's scenario says."""
    settings = read_site(place.root)
    if settings.trial:
        return _trial(settings.id, run)
    domain = open_folder(place, settings)
    codes = apply_split(run.scenario.split, domain, run.seed)
    data = whole(domain, codes, run.scenario.pixels)
    site = Site(settings.id, domain.name, data)
    return Federation({site.id: site}, {}, None, domain.classes, domain.shape)


def _trial(client: str, run: RunConfig) -> Federation:
    """One client of the run's scenario; a target is the server's."""
    full = federate(run.scenario.change(unseen=None, unseen_split=None), run.seed)
    if client not in full.sites:
        raise UnknownNameError.of(f"client of scenario {run.scenario.name!r}", client, full.sites)
    return Federation({client: full.sites[client]}, {}, None, full.classes, full.shape)


def facts_of(federation: Federation) -> Facts:
    """What may be told of a federation of one."""
    (site,) = federation.sites.values()
    return Facts(
        site.id,
        site.domain,
        federation.classes,
        federation.shape,
        len(site.data.train),
        len(site.data.val),
        len(site.data.test),
    )


def open_folder(place: SitePlace, settings: SiteSettings) -> Domain:
    """The site's images, decoded once; again when a file has come, gone or changed."""
    assert settings.folder is not None
    folder = Path(settings.folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; set folder in {place.settings}")
    name = settings.domain or settings.id
    source = tree_source(folder, name)
    if not source.items:
        raise DataError(f"{folder} has no images; expected {folder}/CLASS/*.jpg or *.png")
    classes = settings.classes or source.classes
    unknown = [found for found in source.classes if found not in classes]
    if unknown:
        raise DataError(
            f"{folder} has the class {unknown[0]!r}, which is not one of {', '.join(classes)}; "
            f"rename the folder, or add it to classes in {place.settings}"
        )
    stamps = [(item.id, item.data.stat()) for item in source.items if isinstance(item.data, Path)]
    listing = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stamps]
    content = json.dumps([name, classes, settings.size, listing])
    store = place.data / hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
    try:
        return read_domain(store)
    except (OSError, ValueError, KeyError, DataError):
        read = source.read(classes, settings.size)
    write_domain(store, read.domain, read.ids)
    return read.domain
