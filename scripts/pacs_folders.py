"""PACS as a folder tree of images, for the tutorial and for whoever wants to look at it.

    FEDSHIFT_SOURCES=path python scripts/pacs_folders.py pacs
    FEDSHIFT_SOURCES=path python scripts/pacs_folders.py pacs --domains photo,sketch --each 100

Reads the npz files of ``FEDSHIFT_SOURCES/pacs`` and writes ``DOMAIN/CLASS/00000.png``.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from PIL import Image

DOMAINS = "photo,art_painting,cartoon,sketch"


def main() -> None:
    """Write the tree, and say how many images it has."""
    told = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    told.add_argument("out", type=Path, help="the folder to make")
    told.add_argument("--domains", default=DOMAINS, help="which, with commas")
    told.add_argument("--each", type=int, help="at most so many images of a domain; default all")
    args = told.parse_args()
    source = Path(os.environ["FEDSHIFT_SOURCES"]) / "pacs"
    for domain in args.domains.split(","):
        count = write(source / f"{domain}.npz", args.out / domain, args.each)
        print(f"{args.out / domain}: {count} images")


def write(source: Path, folder: Path, each: int | None) -> int:
    """Write the images of a domain by class; returns how many."""
    with np.load(source, allow_pickle=False) as held:
        pixels, labels, classes = held["x"], held["y"], held["classes"]
    rows = np.random.default_rng(0).permutation(len(labels))[:each]
    for row in np.sort(rows):
        path = folder / str(classes[labels[row]]) / f"{row:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[row]).save(path)
    return len(rows)


if __name__ == "__main__":
    main()
