"""What preparing images costs against only decoding them, with plain Pillow on the same cores.

    python benchmarks/images.py            1,000 images of 256 px
    python benchmarks/images.py 20000      as many as you have time for

Three pairs, each on the same files and cores: decoding and throwing away against our decoding;
decoding, keeping the pixels and writing them to disk against a whole `data add`, which also hashes
every image for duplicates and every array for its fingerprint; and the same two at a size of 64.

Ratios of interleaved repeats within one run, of the time on the clock and of the time on all cores
together, which other people's work on the machine disturbs less. And the peak memory of a process
that only prepares, beside that of one that only imports us.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from common import header, ratios
from PIL import Image
from scipy import ndimage

from fedshift.base.process import cores
from fedshift.data.catalogue import DatasetCard, Variant
from fedshift.data.library.prepare import prepare
from fedshift.data.sources.images import Item, decode_items
from fedshift.data.sources.limits import Limits

SIDE = 256
SMALL = 64
REPEATS = 3
Times = dict[str, list[float]]


def make(root: Path, count: int) -> list[Path]:
    """JPEGs with structure, so that they take as long to decode as photographs do."""
    rng = np.random.default_rng(0)
    paths = []
    for i in range(count):
        if i % 50 == 0:
            noise = ndimage.gaussian_filter(rng.normal(size=(SIDE, SIDE, 3)), (2, 2, 0))
        pixels = np.clip(128 + 700 * np.roll(noise, 5 * i, axis=0), 0, 255).astype(np.uint8)
        path = root / f"site{i % 4}" / f"class{i // 4 % 2}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)
        paths.append(path)
    return paths


def decoded(path: Path) -> np.ndarray:
    """What anybody would write."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def plain(path: Path) -> int:
    """The same, and nothing of it kept."""
    return len(decoded(path))


def small(path: Path) -> np.ndarray:
    """What anybody would write for small squares."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SMALL, SMALL), Image.Resampling.BILINEAR))


def kept(root: Path, paths: list[Path], one: Callable[[Path], np.ndarray], side: int) -> None:
    """Decode in threads into one array, and write it to disk."""
    out = np.empty((len(paths), side, side, 3), dtype=np.uint8)
    with ThreadPoolExecutor(cores()) as pool:
        for i, pixels in enumerate(pool.map(one, paths, chunksize=8)):
            out[i] = pixels
    np.save(root.parent / "kept.npy", out)


def programs(root: Path, paths: list[Path]) -> dict[str, tuple[str, Callable[[], object]]]:
    """By name: what it is compared with, and what it does, all on the same files."""
    items = [Item(str(p), "a", -1, p) for p in paths]
    card = DatasetCard("bench", "bench", (), 0, origin=str(root))

    def threads() -> None:
        with ThreadPoolExecutor(cores()) as pool:
            for _ in pool.map(plain, paths, chunksize=8):
                pass

    whole, little = f"Pillow, {SIDE} px to disk", f"Pillow, {SMALL} px to disk"
    return {
        "Pillow, decoded": ("Pillow, decoded", threads),
        "decoded by us": ("Pillow, decoded", lambda: decode_items("d", items, None, Limits(16))),
        whole: (whole, lambda: kept(root, paths, decoded, SIDE)),
        f"data add, {SIDE} px": (whole, lambda: prepare(card, Variant(), limits=Limits(16))),
        little: (little, lambda: kept(root, paths, small, SMALL)),
        f"data add, {SMALL} px": (little, lambda: prepare(card, Variant(SMALL))),
    }


def timed(work: dict[str, tuple[str, Callable[[], object]]]) -> tuple[Times, Times]:
    """Seconds on the clock, and on all cores, of each program in each repeat; the first dropped."""
    wall: Times = {name: [] for name in work}
    cpu: Times = {name: [] for name in work}
    for repeat in range(REPEATS + 1):
        for name, (_, play) in work.items():
            began = time.perf_counter(), time.process_time()
            play()
            if repeat:
                wall[name].append(time.perf_counter() - began[0])
                cpu[name].append(time.process_time() - began[1])
    return wall, cpu


def memory(root: str) -> float:
    """Peak megabytes of a fresh process that prepares, or only imports us if ``root`` is empty."""
    code = f"import images; images.prepared_alone({root!r})"
    here = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=here, check=True)
    return float(done.stdout)


def prepared_alone(root: str) -> None:
    """Prepare in this process and print its peak memory in megabytes."""
    if root:
        prepare(DatasetCard("bench", "bench", (), 0, origin=root), Variant(), limits=Limits(16))
    print(peak())


def peak() -> float:
    """Peak megabytes of this program; ``ru_maxrss`` would begin with those of who started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Print the ratios and the memory."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDSHIFT_HOME"] = str(Path(folder) / "home")
        root = Path(folder) / "raw"
        paths = make(root, count)
        began = time.perf_counter()
        work = programs(root, paths)
        wall, cpu = timed(work)
        print(f"{header()}\n{count} JPEGs of {SIDE} px, {REPEATS} repeats")
        for name, (base, _) in work.items():
            rate = count / statistics.median(wall[name])
            on_clock, on_cores = (
                "{:.2f} ({:.2f} to {:.2f})".format(*ratios(times, base)[name])
                for times in (wall, cpu)
            )
            print(f"{name:<22} clock {on_clock}   cores {on_cores}   {rate:5.0f} images/s")
        stored = count * SIDE * SIDE * 3 / 2**20
        peaks = f"{memory(str(root)):.0f} MB, importing alone {memory(''):.0f} MB"
        print(f"peak memory {peaks}, pixels {stored:.0f} MB")
        print(f"load average {os.getloadavg()[0]:.1f}, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
