"""Earlier contents of a prepared dataset: kept when it is prepared again from a changed source.

``library.prepare`` calls it around each replacement. A run's name contains the fingerprint of its
data, so the results of the old content stay what they are; here the old content stays available
too, under ``FEDSHIFT_HOME/<dataset>/.versions/<variant>-<fingerprint>``. Nothing is copied: the
kept files are hard links, which outlive the folder that they were linked from.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedshift.base.errors import DataError
from fedshift.data.samples import Domain
from fedshift.data.store import fingerprint, read_card, read_domain

FOLDER = ".versions"


def stored_fingerprint(folder: Path) -> str | None:
    """Fingerprint of the domains in a prepared folder; None if there are none or one is damaged."""
    domains: dict[str, Domain] = {}
    try:
        for card in sorted(folder.glob("*/domain.json")):
            domain = read_domain(card.parent, verify=False)
            domains[read_card(card.parent)["name"]] = domain
    except (OSError, ValueError, KeyError, DataError):
        return None
    return fingerprint(domains) if domains else None


@contextmanager
def old_version_kept(folder: Path, notes: list[str]) -> Iterator[None]:
    """Keep what ``folder`` holds if the block replaces it by other content, and say so in notes."""
    before = stored_fingerprint(folder)
    kept = folder.parent / FOLDER / f"{folder.name}-{before}"
    known = kept.exists()
    if before is not None and not known:
        shutil.copytree(folder, kept, copy_function=_link)
    try:
        yield
    except BaseException:
        if not known:
            _drop(kept)
        raise
    now = stored_fingerprint(folder)
    if before == now and not known:
        _drop(kept)
    elif before is not None and before != now:
        notes.append(
            f"the content has changed: it was {before} and is {now}; the old one is kept in "
            f"{kept}, and runs of it are told apart from new ones by their names"
        )


def _link(source: str, target: str) -> None:
    """A hard link, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _drop(kept: Path) -> None:
    """Remove a version that is not needed, and the folder of versions if it was the only one."""
    shutil.rmtree(kept, ignore_errors=True)
    if kept.parent.is_dir() and not any(kept.parent.iterdir()):
        kept.parent.rmdir()
