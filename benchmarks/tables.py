"""What adding a table costs: 100,000 rows of 50 columns, against reading the same csv alone.

Processor seconds, so that other programs do not count; the ratio to pandas and to Python's csv
module is what to compare between machines. `data add` does more than read: it finds roles, splits,
counts, fills, standardises, writes and hashes.
"""

from __future__ import annotations

import csv
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from fedshift.data.library.datasets import add

ROWS, COLUMNS, SITES = 100_000, 50, 4


def write(path: Path) -> None:
    """Numbers, five columns with gaps, two of categories, the site and the label."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(ROWS, COLUMNS - 4))
    kinds = rng.choice(["low", "middle", "high"], size=(ROWS, 2))
    gaps = rng.random((ROWS, 5)) < 0.2
    names = [f"x{i}" for i in range(COLUMNS - 4)]
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*names, "kind", "grade", "domain", "label"])
        for row, kind, gap in zip(numbers, kinds, gaps, strict=True):
            cells = [f"{v:.5g}" for v in row]
            cells[:5] = ["?" if lacks else cell for lacks, cell in zip(gap, cells, strict=False)]
            site = int(abs(row[5]) * 2) % SITES
            out.writerow([*cells, *kind, f"site {site}", int(row[6] + row[7] > 0)])


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Processor and wall seconds."""
    wall, own = time.perf_counter(), time.process_time()
    work()
    return time.process_time() - own, time.perf_counter() - wall


def rows_of(path: Path) -> list[list[str]]:
    """The same file through Python's csv module, without any conversion."""
    with path.open(newline="") as file:
        return list(csv.reader(file))


def main() -> None:
    """Print the times and their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDSHIFT_HOME"] = folder
        path = Path(folder) / "table.csv"
        write(path)
        add("warm", path, table={"label": "label"})
        ours, wall = seconds(lambda: add("table", path, table={"label": "label"}))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        pandas, _ = seconds(lambda: pd.read_csv(path, na_values="?"))
        plain, _ = seconds(lambda: rows_of(path))
    print(f"data add of {ROWS:,} x {COLUMNS}: {ours:.1f} s of processor, {wall:.1f} s in all")
    print(f"{ours / pandas:.1f} times pandas' reading, {ours / plain:.1f} times csv's")
    print(f"at most {memory:.0f} MB; load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
