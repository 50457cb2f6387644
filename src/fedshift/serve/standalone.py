"""Turn raw files into a model's inputs and run the model, without fedshift.

    python prepare.py data.csv              one line per row
    python prepare.py photos/               one line per image
    python prepare.py data.csv --id patient --out predictions.csv

Needs numpy and onnxruntime (torch for its own formats); images need Pillow. ``ABOUT`` says how the
training data were prepared.
"""

# ``fedshift export`` writes a copy of this file, with ABOUT filled in, beside the model. So nothing
# here may import fedshift, and what it does must stay what `data.sources` does: tests compare them.

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

ABOUT: dict[str, Any] = json.loads("{}")
DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}([ T].*)?|\d{1,2}\.\d{1,2}\.\d{4}")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp", ".gif")
FORMATS = ("JPEG", "PNG", "TIFF", "BMP", "DIB", "WEBP", "GIF")
BATCH = 256


def read_csv(path: Path) -> dict[str, list[str]]:
    """The cells of a csv by column."""
    for encoding in filter(None, (ABOUT["encoding"], "utf-8-sig", "cp1252", "latin-1")):
        try:
            text = path.read_text(encoding=encoding)
            break
        except UnicodeDecodeError:
            continue
    delimiter = ABOUT["delimiter"] or delimiter_of(text)
    rows = [row for row in csv.reader(text.splitlines(keepends=True), delimiter=delimiter) if row]
    if len(rows) < 2:
        sys.exit(f"{path} has no rows; expected a header line and rows")
    header, width = [name.strip() for name in rows[0]], len(rows[0])
    for number, row in enumerate(rows[1:], start=2):
        if any(row[width:]):
            sys.exit(f"{path}: row {number} has {len(row)} cells, the header {width}")
    filled = ([*row, *[""] * width][:width] for row in rows[1:])
    columns = dict(zip(header, map(list, zip(*filled, strict=True)), strict=True))
    ABOUT["decimal"] = ABOUT["decimal"] or ("." if delimiter == "," else ",")
    return columns


def delimiter_of(text: str) -> str:
    """The delimiter by which most lines have as many cells as the header."""
    lines, best = text[: 2**16].splitlines()[:50], (0.0, 0, ",")
    for mark in (",", ";", "\t", "|"):
        widths = [len(row) for row in csv.reader(lines, delimiter=mark) if row]
        if widths and widths[0] > 1:
            same = sum(w == widths[0] for w in widths) / len(widths)
            best = max(best, (same, widths[0], mark))
    return best[2]


def number(cell: str, decimal: str) -> float | None:
    """A cell as a number, nan if it is missing, None if it is something else."""
    if cell.strip().lower() in ABOUT["absent"]:
        return math.nan
    if "," in cell and decimal == ",":
        cell = cell.replace(".", "").replace(",", ".")
    elif THOUSANDS.fullmatch(cell.strip()):
        cell = cell.replace(",", "")
    try:
        found = float(cell)
    except ValueError:
        return None
    gone = not math.isfinite(found) or found in ABOUT["missing"]
    return math.nan if gone else found


def numbers(cells: Sequence[str]) -> np.ndarray:
    """A column as numbers, nan where a cell is missing or no number."""
    found = [number(with_point(cell.strip()), ".") for cell in cells]
    return np.array([math.nan if v is None else v for v in found])


def texts(cells: Sequence[str]) -> list[str | None]:
    """A column as texts, None where one is missing; numbers among them have a point."""
    return [None if c.strip().lower() in ABOUT["absent"] else with_point(c.strip()) for c in cells]


def with_point(cell: str) -> str:
    """A number without a decimal comma; what is none as it is."""
    plain = cell.replace(".", "").replace(",", ".")
    return plain if "," in cell and ABOUT["decimal"] == "," and NUMBER.fullmatch(plain) else cell


def spelt(value: float) -> str:
    """A number as a person writes it: 3.0 is 3."""
    return str(int(value)) if value.is_integer() else repr(value)


def day(cell: str | None) -> float:
    """A date as days since 1970, nan if it is none."""
    if cell is None or not DATE.fullmatch(cell):
        return math.nan
    try:
        if "." in cell[:3]:
            found = datetime.strptime(cell, "%d.%m.%Y")
        else:
            found = datetime(*map(int, re.split(r"[-/]", re.split(r"[ T]", cell)[0])))  # type: ignore[arg-type]
    except ValueError:
        return math.nan
    return float((found - datetime(1970, 1, 1)).days)


def of_number(plan: dict[str, Any], cells: Sequence[str]) -> np.ndarray:
    """(N, 1): filled and standardised; with a second column that marks missing cells."""
    x = np.array([day(c) for c in texts(cells)]) if plan["date"] else numbers(cells)
    lacks = np.isnan(x)
    out = (np.where(lacks, plan["fill"], x) - plan["mean"]) / plan["scale"]
    return np.stack([out, lacks] if plan["indicator"] else [out], axis=1)


def of_category(plan: dict[str, Any], cells: Sequence[str]) -> np.ndarray:
    """(N, categories): 1 in the column of the category; hashed if there are too many."""
    found = texts(cells)
    if plan["size"] and not is_code(cells):
        values = [number(cell, ABOUT["decimal"]) for cell in cells]
        if None not in values:
            found = [None if math.isnan(v) else spelt(v) for v in values if v is not None]
    known = {c.casefold(): i for i, c in enumerate(plan["categories"])}
    known |= {normal(c): i for i, c in enumerate(plan["categories"])}
    known |= {c: i for i, c in enumerate(plan["categories"])}
    width = plan["size"] or len(plan["categories"])
    out = np.zeros((len(found), width + plan["indicator"]))
    for row, cell in enumerate(found):
        at = place(plan, plan["fill"] if cell is None else cell, known)
        if at >= 0:
            out[row, at] = 1
        if plan["indicator"]:
            out[row, -1] = cell is None
    return out


def place(plan: dict[str, Any], cell: str, known: dict[str, int]) -> int:
    """The column of a category, -1 if there is none."""
    if not cell:
        return -1
    if not plan["size"]:
        ways = (cell, normal(cell), cell.casefold())
        return next((known[way] for way in ways if way in known), -1)
    mark = hashlib.blake2b(cell.encode(), digest_size=8).digest()
    return int.from_bytes(mark, "big") % int(plan["size"])


def is_code(cells: Sequence[str]) -> bool:
    """Whether a cell looks like a number and is none: 007 or 1_000."""
    return any("_" in cell or re.match("0[0-9]", cell) for cell in cells)


def normal(cell: str) -> str:
    """A category as it would be spelt in a column of numbers."""
    try:
        found = math.nan if is_code([cell]) else float(cell)
    except ValueError:
        found = math.nan
    return spelt(found) if math.isfinite(found) else cell


def of_text(plan: dict[str, Any], cells: Sequence[str]) -> np.ndarray:
    """(N, D): words, each hashed to a column and a sign; of length one."""
    out = np.zeros((len(cells), plan["size"]))
    for row, text in zip(out, texts(cells), strict=True):
        for word, n in Counter(re.findall(r"\b\w\w+\b", (text or "").lower())).items():
            mark = murmur(word.encode())
            row[abs(mark) % plan["size"]] += (1 if mark >= 0 else -1) * (1 + math.log(n))
    length = np.sqrt((out**2).sum(axis=1, keepdims=True))
    return out / np.where(length == 0, 1, length)


def murmur(key: bytes) -> int:
    """MurmurHash3 of 32 bits, signed, seed 0."""
    mask, h, tail = 0xFFFFFFFF, 0, len(key) % 4
    blocks = [int.from_bytes(key[i : i + 4], "little") for i in range(0, len(key), 4)]
    for i, k in enumerate(blocks):
        k = k * 0xCC9E2D51 & mask  # noqa: PLW2901
        k = (k << 15 | k >> 17) & mask  # noqa: PLW2901
        h ^= k * 0x1B873593 & mask
        if i < len(blocks) - 1 or not tail:
            h = (h << 13 | h >> 19) & mask
            h = (h * 5 + 0xE6546B64) & mask
    h ^= len(key)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = (h ^ h >> shift) * factor & mask
    return h - 2**32 if h >= 2**31 else h


KINDS = {"number": of_number, "category": of_category, "text": of_text}


def of_table(path: Path, site: str | None, column: str | None) -> tuple[np.ndarray, list[str]]:
    """Inputs (N, D) float32 of a csv, and the rows' ids: a column, or the row's number from 1."""
    columns = read_csv(path)
    whose = "all" if "all" in ABOUT["plans"] else str(site or ABOUT["site"])
    if whose not in ABOUT["plans"]:
        sys.exit(
            f"each site has statistics of its own; --site is one of {', '.join(ABOUT['plans'])}"
        )
    plans = ABOUT["plans"][whose]
    if lacking := [p["name"] for p in plans if p["name"] not in columns]:
        sys.exit(f"{path} has no column {', '.join(lacking)}; the model needs it")
    parts = [KINDS[plan["kind"]](plan, columns[plan["name"]]) for plan in plans]
    x = np.concatenate(parts, axis=1).astype(np.float32)
    if column is not None and column not in columns:
        sys.exit(f"{path} has no column {column}; it has {', '.join(columns)}")
    return x, columns[column] if column else [str(i + 1) for i in range(len(x))]


def of_images(path: Path) -> tuple[np.ndarray, list[str]]:
    """Inputs (N, C, H, W) uint8 of an image, or of all images in a folder, and their names."""
    files = [path]
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not files:
        sys.exit(f"{path} has no images; expected {', '.join(SUFFIXES)}")
    names = [str(p.relative_to(path)) if path.is_dir() else p.name for p in files]
    return np.stack([of_image(file) for file in files]), names


def of_image(source: Any) -> np.ndarray:
    """(C, H, W) uint8: upright, on white, first frame, in the size of the training images."""
    from PIL import Image, ImageOps  # noqa: PLC0415  tables do not need it

    with Image.open(source, formats=FORMATS) as opened:
        if opened.mode.startswith(("I", "F")):
            sys.exit(f"{source} has more than 8 bits; convert it to 8 as the training images were")
        image: Image.Image = ImageOps.exif_transpose(opened)
        if image.mode in ("LA", "PA", "La", "RGBa") or "transparency" in image.info:
            image = image.convert("RGBA")
        if image.mode == "RGBA" and image.getchannel("A").getextrema() != (255, 255):
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        channels, height, width = ABOUT["shape"]
        image = image.convert("RGB" if channels == 3 else "L")
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.uint8)
    return np.ascontiguousarray(np.moveaxis(np.atleast_3d(pixels), 2, 0))


def run_model(x: np.ndarray, model: Path) -> tuple[np.ndarray, np.ndarray]:
    """Outputs (N, K), and probabilities (N, K) or the number (N, 1), of inputs, in batches."""
    ask = opened(model)
    done = [ask(x[i : i + BATCH]) for i in range(0, len(x), BATCH)]
    return np.concatenate([one[0] for one in done]), np.concatenate([one[1] for one in done])


def opened(model: Path) -> Any:
    """The model as a function, by onnxruntime; of torch's formats, by torch."""
    if ABOUT["format"] == "onnx":
        import onnxruntime  # noqa: PLC0415  who only prepares does not need it

        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        return lambda x: session.run(None, {"input": x})
    import torch  # noqa: PLC0415

    old = ABOUT["format"] == "torchscript"
    blob = io.BytesIO(model.read_bytes())  # by its name torch takes only files that end in .pt2
    net: Any = torch.jit.load(blob) if old else torch.export.load(blob).module()
    return lambda x: [out.detach().numpy() for out in net(torch.from_numpy(x))]


def energy(logits: np.ndarray) -> np.ndarray:
    """Out-of-distribution score (N,): the higher, the less an input is like the training data.

    -log sum_k exp(logit_k) of one class out of several (Liu et al., NeurIPS 2020); of labels that
    apply or not, -sum_k log(1 + exp(logit_k)) (Wang et al., NeurIPS 2021).
    """
    if ABOUT["task"] == "multi-label":
        return -np.logaddexp(0, logits.astype(np.float64)).sum(axis=1)
    return -np.logaddexp.reduce(logits.astype(np.float64), axis=1)


def table_of(ids: Sequence[str], logits: np.ndarray, p: np.ndarray) -> list[list[Any]]:
    """A header and one line per input."""
    classes, task = ABOUT["classes"], ABOUT["task"]
    if task == "regression":
        values = p.squeeze(1).tolist()
        return [["id", "prediction"], *([i, v] for i, v in zip(ids, values, strict=True))]
    if task == "multi-label":
        named = [", ".join(c for c, q in zip(classes, row, strict=True) if q > 0.5) for row in p]
    else:
        named = [classes[k] for k in p.argmax(1)]
    rows = zip(ids, named, p.tolist(), energy(logits).tolist(), strict=True)
    lines = [[i, c, *(round(q, 6) for q in row), round(e, 6)] for i, c, row, e in rows]
    return [["id", "prediction", *(f"p({c})" for c in classes), "energy"], *lines]


def main() -> None:
    """Predict a file or a folder."""
    parser = argparse.ArgumentParser(description="Predict raw data with an exported model.")
    parser.add_argument("data", type=Path, help="a csv file; an image or a folder of images")
    parser.add_argument("--model", type=Path, help="the onnx file; default: the one beside")
    parser.add_argument("--site", help="whose data, where each site has statistics of its own")
    parser.add_argument("--id", help="column of a csv that names its rows")
    parser.add_argument("--out", type=Path, help="a csv file; default: the screen")
    asked = parser.parse_args()
    model = asked.model or Path(__file__).with_name(ABOUT["model"])
    images = len(ABOUT["shape"]) == 3
    x, ids = of_images(asked.data) if images else of_table(asked.data, asked.site, asked.id)
    lines = table_of(ids, *run_model(x, model))
    if asked.out is None:
        csv.writer(sys.stdout).writerows(lines)
        return
    with asked.out.open("w", newline="") as file:
        csv.writer(file).writerows(lines)


if __name__ == "__main__":
    main()
