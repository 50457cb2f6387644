"""Whole inputs of every target, made by the code that writes them in earnest.

``fuzz_targets`` begins with them, and the mutations change them. They are small, since a short
input is changed in the place that matters more often.
"""

from __future__ import annotations

import io
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzz_mutations import SEPARATOR
from PIL import Image

from fedshift.base import tree
from fedshift.core.config import RunConfig, configure
from fedshift.core.message import Broadcast, Message, Update
from fedshift.core.server import Server
from fedshift.data.samples import Domain
from fedshift.data.store import write_domain
from fedshift.deploy.folders import ServerSettings, SitePaths, SiteSettings, write_settings
from fedshift.deploy.policy import SitePolicy, write_policy
from fedshift.engine.compute import Compute
from fedshift.experiment.run import run
from fedshift.runs.record import config_json
from fedshift.runs.run_file import write_run_file
from fedshift.testing import play, start, tiny_scenario
from fedshift.transports.flower.envelope import to_envelope

Files = dict[str, bytes]
CHECKPOINT = "checkpoints/server.safetensors"
SMALL: dict[str, Any] = {"rounds": 2, "epochs": None, "steps": 1, "unseen": None} | {
    "protocols": ("personal",), "backbone_options": {"width": 2},
}  # fmt: skip


def both() -> list[Message]:
    """A message of each direction."""
    entries = {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(3)}
    down = Broadcast("a", "train", 1, entries, {}, {"part/k": torch.ones(2, dtype=torch.bool)})
    told: dict[str, Any] = {"domain": "dark", "count": 3, "sure": True}
    own = {"p": torch.zeros(1, dtype=torch.bfloat16)}
    up = Update("a", "train", 1, entries, own, {}, 7, 2, told, {"loss": 0.5, "right": 3})
    return [down, up]


def messages() -> list[bytes]:
    """Messages as one blob each."""
    return [message.to_bytes() for message in both()]


def envelopes() -> list[bytes]:
    """Envelopes of one and of two messages; the blocks follow the text."""
    out = []
    for message in both():
        for count in (1, 2):
            sealed = to_envelope([message] * count, {})
            out.append(SEPARATOR.join([sealed.text.encode(), *sealed.blocks.values()]))
    return out


@cache
def config() -> RunConfig:
    """The configuration of a small run."""
    return configure("scaffold", tiny_scenario(**SMALL))[0]


@cache
def _recorded(finished: bool) -> Files:
    """The files of a small run, finished or after its first round."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        if finished:
            run("scaffold", tiny_scenario(**SMALL), out=root, quiet=True)
        else:
            play(start("scaffold", path=root, **SMALL), 1)
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@cache
def server() -> Server:
    """A server before its first round; a checkpoint is loaded into it."""
    return start("scaffold", **SMALL).server


def checkpoint_files() -> Files:
    """What is read when a run is resumed, of the clients one."""
    clients = "checkpoints/clients/"
    return {
        name: held
        for name, held in _recorded(False).items()
        if not name.startswith(clients) or name.startswith(f"{clients}dark-0/")
    }


@cache
def without_seal() -> bytes:
    """The checkpoint as runs had it that began before there were seals."""
    tensors, meta = tree.from_bytes(_recorded(False)[CHECKPOINT])
    return tree.to_bytes(tensors, {key: held for key, held in meta.items() if key != "seal"})


def run_files() -> Files:
    """What ``show`` and ``ledger`` read of a finished run, and what was spent."""
    names = ["config.json", "metrics.jsonl", "ledger.jsonl", "summary.json"]
    names += [name for name in _recorded(True) if name.startswith("predictions")]
    ended = {"sites": 4, "cohort": 1, "complete": True, "secret": False}
    rows: list[dict[str, Any]] = [
        {"round": 1, "event": "begun"},
        {"round": 1, "event": "asked", "client": "dark-0"},
        {"round": 1, "event": "closed"} | ended,
    ]
    spent = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return {name: _recorded(True)[name] for name in names} | {"privacy.jsonl": spent}


def _named(files: Files) -> list[bytes]:
    return [name.encode() + b"\n" + content for name, content in files.items()]


def checkpoints() -> list[bytes]:
    """Each file of a checkpoint that is read by itself."""
    files = checkpoint_files()
    chosen = ("metrics.jsonl", "ledger.jsonl", "checkpoints/")
    return _named({name: held for name, held in files.items() if name.startswith(chosen)})


def run_lines() -> list[bytes]:
    """Each file of a finished run."""
    return _named(run_files())


def run_configs() -> list[bytes]:
    """Configurations of two methods."""
    stacked = configure("fedprox[mu=0.1] + mixup - mixup", tiny_scenario(**SMALL))[0]
    return [json.dumps(config_json(one, Compute())).encode() for one in (config(), stacked)]


def run_file_texts() -> list[bytes]:
    """A complete run file, and two as people write them."""
    with tempfile.TemporaryDirectory() as folder:
        write_run_file(Path(folder), config(), Compute())
        whole = (Path(folder) / "experiment.toml").read_bytes()
    short = (
        b'method = "fedprox"\nseed = 1\nsettings = { mu = 0.1 }\n\n[scenario]\nname = "digits"\n'
    )
    nested = b"rounds = 20\npartition = { kind = 'dirichlet', alpha = 0.1 }\nsplit.kind = 'given'\n"
    return [whole, short, short + nested, b'method = "fedavg"\nscenario = "csac/pacs/sketch"\n']


@cache
def store_files() -> Files:
    """A prepared dataset of one domain, and the card of one that somebody added."""
    domain = Domain(
        "dark",
        torch.arange(4 * 2 * 2 * 3, dtype=torch.uint8).view(4, 2, 2, 3),
        torch.tensor([0, 1, 0, 1]),
        torch.tensor([0, 0, 1, 2], dtype=torch.uint8),
        ("a", "b"),
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "own-data" / "stored"
        write_domain(root / "dark", domain, ["a.png", "b.png", "c.png", "d.png"])
        about = {"domains": ["dark"], "bytes": 84, "recipe": {}, "shape": [3, 2, 2]}
        held = about | {"classes": ["a", "b"], "objective": "classification"}
        (root / "dataset.json").write_text(json.dumps(held))
        (root / "report.json").write_text(json.dumps({"left_out": [], "notes": ["one"]}))
        base = Path(folder)
        files = {str(p.relative_to(base)): p.read_bytes() for p in base.rglob("*") if p.is_file()}
    card = {"name": "own-data", "summary": "your own", "domains": ["dark"], "classes": 2}
    more = {"class_names": ["a", "b"], "origin": "rows.csv", "columns": ["label", "domain"]}
    return files | {"own/own-data.json": json.dumps(card | more | {"table": {}}).encode()}


def stores() -> list[bytes]:
    """Each file of the prepared dataset."""
    return _named(store_files())


def images() -> list[bytes]:
    """An image of every format that is read, some with what cameras add, and DICOM files."""
    grey = (np.arange(48).reshape(6, 8) * 5).astype(np.uint8)
    out = []
    for mode, names in {
        "RGB": ("PNG", "JPEG", "BMP", "TIFF", "WEBP"), "L": ("PNG", "GIF", "JPEG"),
        "RGBA": ("PNG", "WEBP", "TIFF"), "P": ("PNG", "GIF", "BMP"), "1": ("PNG", "TIFF"),
        "CMYK": ("JPEG", "TIFF"), "LA": ("PNG",), "F": ("TIFF",), "I;16": ("PNG", "TIFF"),
    }.items():  # fmt: skip
        out += [_encoded(_as_mode(grey, mode), name) for name in names]
    turned = Image.Exif()
    turned[0x0112] = 6
    rgb = _as_mode(grey, "RGB")
    out += [_encoded(rgb, name, exif=turned) for name in ("JPEG", "PNG", "WEBP")]
    out += [_encoded(rgb, "TIFF", compression=name) for name in ("tiff_lzw", "tiff_adobe_deflate")]
    out.append(_encoded(rgb, "GIF", save_all=True, append_images=[rgb]))
    return out + _dicoms(grey)


def _as_mode(grey: Any, mode: str) -> Image.Image:
    if mode == "I;16":
        return Image.fromarray(grey.astype(np.uint16) * 200)
    if mode == "F":
        return Image.fromarray(grey.astype(np.float32) / 3)
    return Image.fromarray(grey).convert(mode)


def _encoded(image: Image.Image, name: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def _dicoms(grey: Any) -> list[bytes]:
    try:
        from pydicom.dataset import FileDataset, FileMetaDataset
        from pydicom.uid import ExplicitVRLittleEndian
    except ImportError:
        return []
    out = []
    for values, window in ((grey, False), (grey.astype(np.int16) * 9 - 500, True)):
        meta = FileMetaDataset()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        meta.MediaStorageSOPClassUID = meta.MediaStorageSOPInstanceUID = "1.2.3"
        file = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
        file.Rows, file.Columns = values.shape
        file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
        file.BitsAllocated = file.BitsStored = 8 * values.itemsize
        file.HighBit = file.BitsStored - 1
        file.PixelRepresentation = int(values.dtype.kind == "i")
        if window:
            file.WindowCenter, file.WindowWidth = [40, 50], [400, 200]
            file.RescaleSlope, file.RescaleIntercept, file.NumberOfFrames = 2, -10, 1
        file.PixelData = values.tobytes()
        blob = io.BytesIO()
        file.save_as(blob, enforce_file_format=True)
        out.append(blob.getvalue())
    return out


def tables() -> list[bytes]:
    """Tables as people have them, and a list of images."""
    sites, marks = ("north", "south"), ("train", "test", "val")
    plain = "age,sex,when,note,label,domain\n" + "".join(
        f"{20 + i},{'fm'[i % 2]},2020-01-{i + 1:02},word{i % 3} x,{i % 2},{sites[i // 6]}\n"
        for i in range(12)
    )
    german = "alter;gewicht;label\n" + "".join(
        f"{i};{i},5;{('nein', 'ja')[i % 2]}\n" for i in range(8)
    )
    numbers = "a,b,label\n" + "".join(f"{i},{i * 0.5 or '?'},{i * 1.25}\n" for i in range(25))
    several = "a,id,split,label,domain\n" + "".join(
        f"{i},p{i // 2},{marks[i % 3]},{i % 3},d\n" for i in range(9)
    )
    listed = "path,label,site,split\na/1.png,cat,north,train\na/2.png,dog,south,test\n"
    texts = (plain, german, numbers, several, listed, plain.replace(",", "\t"))
    return [text.encode() for text in texts] + [german.encode("utf-16"), german.encode("cp1252")]


def arrays() -> list[bytes]:
    """Domains as npz: images, vectors, a sparse matrix, two domains in one file."""
    y = np.array([0, 1, 0, 1], dtype=np.int64)
    pixels = np.arange(4 * 3 * 3 * 3, dtype=np.uint8).reshape(4, 3, 3, 3)
    vectors = np.arange(8, dtype=np.float32).reshape(4, 2)
    sparse = {"data": np.ones(2), "indices": np.array([0, 1]), "indptr": np.array([0, 1, 2, 2, 2])}
    names = np.array(["a", "b"])
    return [
        _packed(x=pixels, y=y, classes=names, split=np.array([0, 0, 1, 2])),
        _packed(x=vectors, y=y, domain=np.array(["n", "n", "s", "s"])),
        _packed(**sparse, shape=np.array([4, 2]), y=y),
    ]


def _packed(**entries: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **entries)
    return file.getvalue()


@cache
def site_files() -> Files:
    """A site's policy, its log of requests, and the settings of a site and of a server."""
    with tempfile.TemporaryDirectory() as folder:
        paths = SitePaths(Path(folder))
        limited = SitePolicy(require=("local-dp",), epsilon=8.0, payloads=("scaffold",))
        write_policy(paths.policy, limited)
        write_settings(paths.settings, SiteSettings(id="a", server="h:1", trial=True), "a site")
        write_settings(Path(folder) / "server.toml", ServerSettings(host="h"), "a server")
        asked = {"time": "t", "run": "r", "round": 1, "task": "train", "noise": 2.0}
        refused = {"time": "t", "run": "r", "round": 1, "task": "donate", "refused": "why"}
        paths.requests.write_text("".join(json.dumps(row) + "\n" for row in (asked, refused)))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def sites() -> list[bytes]:
    """Each of these files."""
    return _named(site_files())
