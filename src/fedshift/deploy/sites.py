"""Data of a deployment: a site's images, arrays or table, and a target's images at the server.

At a site, ``deploy.flower.apps`` opens the images and reports :class:`Facts` about them; at the
server, ``deploy.session`` opens the target. No image, label or file name may leave a site.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedshift.base.errors import ConfigError, DataError, RunError, UnknownNameError
from fedshift.core.config import RunConfig
from fedshift.core.method import Method
from fedshift.core.scenario import Scenario
from fedshift.data.catalogue import DatasetCard, Variant
from fedshift.data.dealing.splits import apply_split
from fedshift.data.encoders import encoded
from fedshift.data.federation import Federation, Site, Splits, hide_labels, whole
from fedshift.data.samples import Domain, Pixels, Samples
from fedshift.data.sources.discover import find, holds_images
from fedshift.data.sources.images import ImageSource, Item, decode_all, tree_source
from fedshift.data.sources.pixels import SUFFIXES
from fedshift.data.sources.source import Source
from fedshift.data.sources.tables.reading import SUFFIXES as TABLES
from fedshift.data.sources.tables.replay import read_record, replay
from fedshift.data.store import digest, read_domain, write_domain
from fedshift.deploy.folders import SitePaths, SiteSettings, read_site
from fedshift.engine.federation import federate


@dataclass(frozen=True)
class Facts:
    """What a site reports before the first round, for the server to build the net.

    Class names, because their order is the net's; the domain only where the scenario allows
    ``domain_ids`` and the site's policy does, too. No count: the number of examples is told at
    enrolment. The run's ledger has a line about it.
    """

    client: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]  # of one input as a net sees it
    domain: str = ""  # empty if it is not told
    unprepared: bool = False  # a table whose preparation is not agreed yet: nothing else is known

    def to_json(self) -> str:
        """The form in which it is sent."""
        row = asdict(self)
        return json.dumps(row if self.unprepared else {k: row[k] for k in list(row)[:-1]})

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
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunError(f"a site sent facts that cannot be read ({error!r})") from None


def own_federation(paths: SitePaths, run: RunConfig) -> Federation:
    """A federation of this site alone, with its data split as the run's scenario says."""
    settings = read_site(paths.root)
    if settings.trial:
        return _trial(settings.id, run)
    domain = open_folder(paths, settings, run.name)
    encoder = run.scenario.data_options.get("encoder")
    if encoder and domain.x.dim() == 4:
        domain = encoded(domain, encoder, paths.data)
    codes = apply_split(run.scenario.split, domain, run.seed)
    data = whole(domain, codes, run.scenario.pixels)
    site = Site(settings.id, domain.name, data)
    if problem := run.scenario.task.wrong_targets(data.train.labels, len(domain.classes)):
        raise DataError(f"site {site.id} has {problem}; the run's objective is another one")
    if run.scenario.labelled is not None:
        site = hide_labels(site, run.scenario.labelled, run.seed)
    return Federation({site.id: site}, {}, None, domain.classes, domain.shape)


def own_preparation(paths: SitePaths, run: RunConfig) -> dict[str, Any]:
    """How this site's raw data become inputs, to be replayed at predictions."""
    settings = read_site(paths.root)
    name = settings.domain or settings.id
    out: dict[str, Any] = {"domains": {settings.id: name}}
    agreed = preparation_file(paths, settings, run.name)
    if not settings.trial and is_table(settings) and agreed is not None:
        out["table"] = read_record(agreed)
    return out


def preparation_file(paths: SitePaths, settings: SiteSettings, run: str) -> Path | None:
    """The preparation of this site's table: the one it names, or what the run's sites agreed on."""
    if settings.preparation is not None:
        return Path(settings.preparation)
    agreed = paths.preparations / f"{run}.json"
    return agreed if agreed.exists() else None


def is_table(settings: SiteSettings) -> bool:
    """Whether a site's data are rows of a table (csv, parquet, Excel) that lists no images."""
    file = Path(settings.folder or "")
    return file.suffix.lower() in TABLES and file.is_file() and not holds_images(_card(file), file)


def _card(path: Path) -> DatasetCard:
    """A site's file as a dataset of its own, so that it is read as ``fedshift data add`` does."""
    return DatasetCard("site", "a site's own data", (), 0, origin=str(path))


def site_source(path: Path, name: str) -> Source:
    """The one domain of a site: images in folders of classes, or a file that holds or lists it."""
    if path.is_dir():
        return tree_source(path, name)
    found = find(_card(path), Variant()).sources
    if len(found) != 1:
        names = ", ".join(source.name for source in found)
        raise DataError(f"{path} holds {len(found)} sites ({names}); give each site its own rows")
    return replace(found[0], name=name)  # type: ignore[type-var]


def _trial(client: str, run: RunConfig) -> Federation:
    """A trial site: the client of the run's scenario with this id, without the unseen domain."""
    full = federate(run.scenario.change(unseen=None, unseen_split=None), run.seed)
    if client not in full.sites:
        raise UnknownNameError.of(f"client of scenario {run.scenario.name!r}", client, full.sites)
    return Federation({client: full.sites[client]}, {}, None, full.classes, full.shape)


def facts_of(federation: Federation, *, tell_domain: bool) -> Facts:
    """The facts about a federation of one site."""
    (site,) = federation.sites.values()
    domain = site.domain if tell_domain else ""
    return Facts(site.id, federation.classes, federation.shape, domain)


def is_unprepared(paths: SitePaths, run: RunConfig) -> bool:
    """Whether this site has a table and nobody has said yet how it becomes inputs."""
    settings = read_site(paths.root)
    raw = not settings.trial and is_table(settings)
    return raw and preparation_file(paths, settings, run.name) is None


def open_folder(paths: SitePaths, settings: SiteSettings, run: str = "") -> Domain:
    """The site's images or vectors as tensors, from a cache in the site's folder where possible.

    The cache's name is a hash of settings, file names, sizes and modification times: images are
    decoded again when a file was added, removed or changed.
    """
    assert settings.folder is not None
    folder = Path(settings.folder)
    if is_table(settings):
        return _open_table(folder, paths, settings, preparation_file(paths, settings, run))
    if not folder.exists():
        raise DataError(
            f"{folder} is not there; set folder in {paths.settings} to a folder of images, or to a "
            "csv, parquet, xlsx or npz file"
        )
    name = settings.domain or settings.id
    source = site_source(folder, name)
    if not source.classes:
        raise DataError(f"{folder} has no images; expected {folder}/CLASS/*.jpg or *.png")
    classes = settings.classes or source.classes
    unknown = [found for found in source.classes if found not in classes]
    if unknown:
        raise DataError(
            f"{folder} has the class {unknown[0]!r}, which is not one of {', '.join(classes)}; "
            f"rename the folder, or add it to classes in {paths.settings}"
        )
    items = source.items if isinstance(source, ImageSource) else ()
    files = [(i.id, i.data) for i in items if isinstance(i.data, Path)]
    files += [(folder.name, folder)] if folder.is_file() else []
    stamps = [(path, file.stat()) for path, file in files if file.exists()]
    listing = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stamps]
    content = json.dumps([name, classes, settings.size, listing])
    store = paths.data / hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
    try:
        return read_domain(store)
    except (OSError, ValueError, KeyError, DataError):
        read = source.read(classes, settings.size)
    write_domain(store, read.domain, read.ids)
    return read.domain


def _open_table(
    file: Path, paths: SitePaths, settings: SiteSettings, agreed: Path | None
) -> Domain:
    """The rows of a site's table, prepared as the federation agreed; cached as images are."""
    if agreed is None:
        raise DataError(
            f"{file} is a table, and no preparation is named; set preparation in {paths.settings} "
            "to the preparation.json that all sites share, or let a run agree on one"
        )
    name = settings.domain or settings.id
    record, stat = read_record(agreed), file.stat()
    content = json.dumps([name, str(file), stat.st_size, stat.st_mtime_ns, digest(agreed)])
    store = paths.data / hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
    try:
        return read_domain(store)
    except (OSError, ValueError, KeyError, DataError):
        read = replay(record, file, name)
    write_domain(store, read.domain, read.ids)
    return read.domain


FROM_SCENARIO = "scenario"  # in place of a folder: the unseen domain of the run's scenario
NAME = "target"


def with_target(scenario: Scenario, target: str | None) -> Scenario:
    """The scenario with ``target`` as its unseen domain, or without any unseen domain."""
    held = {"server_unlabelled", "client_target_unlabelled"}
    allow = tuple(g for g in scenario.allow if g not in held)
    if target is None:
        return scenario.change(unseen=None, unseen_split=None, allow=allow)
    allow = (*allow, "server_unlabelled")
    if target != FROM_SCENARIO:
        images_in(Path(target))
        protocols = scenario.protocols  # nobody is scored on the target
        return scenario.change(unseen=NAME, unseen_split=None, allow=allow, protocols=protocols)
    if scenario.unseen is None:
        raise ConfigError(
            f"scenario {scenario.name!r} has no unseen domain to be the target; name a folder "
            "of unlabelled images",
            "target=DIR",
        )
    return scenario.change(allow=allow)


def require_target(method: Method, target: str | None) -> None:
    """Raise an error, before waiting for any site, if a part needs a target that is missing."""
    for item in method.declared:
        if "client_target_unlabelled" in item.needs:
            raise ConfigError(
                f"{item.name} needs the target's inputs at every site; in a deployment they lie at "
                "the server"
            )
        if "server_unlabelled" in item.needs and target is None:
            raise ConfigError(
                f"{item.name} needs unlabelled inputs of a target at the server; name a folder "
                "of images as target",
                "target=DIR",
            )


def open_target(target: str, config: RunConfig, shape: tuple[int, ...]) -> Splits:
    """The target's inputs in the shape of the sites' inputs; images of a folder get no labels."""
    if target == FROM_SCENARIO:
        unseen = federate(config.scenario, config.seed).unseen
        assert unseen is not None
        return unseen
    inputs = read_folder(Path(target), shape, config.scenario.pixels)
    nothing = Samples(inputs.x, inputs.y, torch.empty(0, dtype=torch.long), inputs.pixels)
    return Splits(inputs, nothing, nothing)


def read_folder(folder: Path, shape: tuple[int, ...], pixels: Pixels) -> Samples:
    """Every image in a folder or below it, resized to the size that the sites use."""
    if len(shape) != 3 or shape[1] != shape[2]:
        raise DataError(
            f"the sites' inputs have shape {shape}, and the target's images cannot be made so; "
            "give all sites one size",
            "size=PIXELS",
        )
    items = [Item(str(path), "", -1, path) for path in images_in(folder)]
    found, _, problems = decode_all(NAME, items, shape[1])
    if problems:
        raise DataError(problems[0])
    x = torch.from_numpy(found)
    return Samples(x, torch.full((len(x),), -1), torch.arange(len(x)), pixels)


def images_in(folder: Path) -> list[Path]:
    """The images in a folder or below it, sorted."""
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder; name a folder of images as target", "target=DIR"
        )
    found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not found:
        raise DataError(f"{folder} has no images; a target takes *.jpg or *.png in it or below")
    return found
