"""Folder trees of images: which level is a split, which a domain, which a class.

``discover`` asks it for data whose domains no card lists. A tree is ``domain/class/*.jpg`` as in
DomainBed, ``class/*.jpg`` as in TorchVision's ImageFolder, either of them below ``train``, ``val``
and ``test``, or ``domain/{train,val,test}/class/*.jpg``. What it took a level for is always told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedshift.data.sources.images import SPLITS, ImageSource, Item, tree_source
from fedshift.data.sources.pixels import SUFFIXES
from fedshift.data.sources.walk import refusal, visible

Alias = Callable[[str], str]


def folders_in(folder: Path) -> list[Path]:
    """Subfolders of a folder that may be opened."""
    root = folder.resolve()
    return [p for p in visible(folder) if p.is_dir() and refusal(p, root) is None]


def has_images(folder: Path) -> bool:
    """Whether images lie in the folder itself, and no folders."""
    entries = visible(folder)
    return not any(p.is_dir() for p in entries) and any(
        p.suffix.lower() in SUFFIXES for p in entries
    )


def split_first(folder: Path) -> bool:
    """Whether the first level of a tree is train, val and test."""
    parts = folders_in(folder)
    return bool(parts) and all(p.name.lower() in SPLITS for p in parts)


def one_domain(folder: Path, alias: Alias = str) -> ImageSource | None:
    """The single domain of ``class/*.jpg`` or ``{train,val,test}/class/*.jpg``, or None."""
    tops = folders_in(folder) if split_first(folder) else [folder]
    classes = [p for top in tops for p in folders_in(top)]
    if len({p.name for p in classes}) < 2 or not all(map(has_images, classes)):
        return None
    return tree_source(folder, folder.resolve().name, alias)


def domains_below_splits(folder: Path, alias: Alias = str) -> list[ImageSource]:
    """The domains of ``{train,val,test}/domain/class/*.jpg``."""
    root = folder.resolve()
    items: dict[str, list[Item]] = {}
    left_out: list[str] = []
    for top in folders_in(folder):
        for path in folders_in(top):
            part = tree_source(path, path.name, alias, root=root)
            marked = [
                replace(i, id=f"{top.name}/{i.id}", split=SPLITS[top.name.lower()])
                for i in part.items
            ]
            items.setdefault(path.name, []).extend(marked)
            left_out += part.left_out
    return [
        ImageSource(name, tuple(found), tuple(left_out) if not n else ())
        for n, (name, found) in enumerate(sorted(items.items()))
        if found
    ]
