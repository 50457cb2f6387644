"""What mkdocs calls: every page of docs/methods enters the navigation, and notebooks are executed.

A page's title is its first line, its group the row ``group`` of its generated head; the five core
methods come first. No list is kept by hand. The tutorials' notebooks are run when everything else
is built, and published with what they print; one that fails ends the build.
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import tutorials

CORE = ("fdse", "f2dc", "fedka", "csac", "feddebias")


def on_config(config: Any) -> Any:
    """Fill the section Methods of the navigation."""
    docs = Path(config["docs_dir"])
    section = next(item["Methods"] for item in config["nav"] if "Methods" in item)
    section += [{title: page} for title, page in _pages(docs, CORE)]
    groups: dict[str, list[dict[str, str]]] = {}
    others = sorted(p.stem for p in (docs / "methods").glob("*.md") if p.stem not in CORE)
    for title, page in _pages(docs, others):
        found = re.search(r"^\| group \| (.+) \|$", (docs / page).read_text(), re.MULTILINE)
        groups.setdefault(found[1] if found else "other", []).append({title: page})
    section += [{group.capitalize(): pages} for group, pages in _in_order(groups)]
    return config


def on_post_build(config: Any) -> None:
    """Publish the notebooks with their output; two at a time, each in a process of its own."""
    out = Path(config["site_dir"]) / "tutorials"
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: tutorials.execute(name, out / f"{name}.ipynb"),
                      tutorials.NOTEBOOKS))  # fmt: skip


def _pages(docs: Path, names: Any) -> list[tuple[str, str]]:
    pages = [f"methods/{name}.md" for name in names]
    return [((docs / p).read_text().split("\n")[0].lstrip("# "), p) for p in pages]


def _in_order(groups: dict[str, Any]) -> list[tuple[str, Any]]:
    """In the order of ``fedshift list methods``, unknown groups last."""
    from fedshift.cli.catalogue import ORDER  # noqa: PLC0415  hooks are read before they are run

    known = [g for g in ORDER if g in groups]
    return [(g, groups[g]) for g in [*known, *sorted(groups.keys() - set(known))]]
