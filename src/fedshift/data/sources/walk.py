"""Entries of a folder that are safe to open: none that lead out of it, none that never end.

``images`` and ``discover`` list folders through here. A folder may come from somebody else, so a
link out of it is never followed, and only plain files are opened: a pipe would block for ever.
"""

from __future__ import annotations

import stat
from pathlib import Path

JUNK = ("Thumbs.db", "desktop.ini", "__MACOSX")


def visible(folder: Path) -> list[Path]:
    """Entries of a folder, sorted, without hidden files."""
    return sorted(p for p in folder.iterdir() if not hidden(p))


def hidden(path: Path) -> bool:
    """Whether an entry is hidden, or one that operating systems leave behind."""
    return path.name.startswith(".") or path.name in JUNK


def refusal(path: Path, root: Path) -> str | None:
    """Why an entry must not be opened, or None; ``root`` is the real path of the source's folder.

    A link to nowhere passes: opening it fails, and is reported then.
    """
    if path.is_symlink() and not path.resolve().is_relative_to(root):
        return "is a link that leads out of the folder; copy what it points to into the folder"
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return "is neither a file nor a folder; remove it"
    return None


def files_below(folder: Path, root: Path) -> tuple[list[Path], list[str]]:
    """The files of a folder and of all folders below it, and a line for each refused entry."""
    files: list[Path] = []
    refused: list[str] = []
    left = [folder]
    while left:
        for path in visible(left.pop()):
            if reason := refusal(path, root):
                refused.append(f"{path}: {reason}")
            elif not path.is_dir():
                files.append(path)
            elif path.is_symlink():  # could lead to a folder above: a circle
                refused.append(f"{path}: is a link to a folder; copy the folder itself")
            else:
                left.append(path)
    return sorted(files), sorted(refused)
