"""What is fuzzed: everything that reads bytes which somebody else may have written.

A target takes any bytes. It may succeed or raise one of the project's own errors, whose text can be
printed; whatever else happens is a :class:`Finding`: another exception, more than ``SECONDS`` of
processor time, or more than ``MEGABYTES`` of memory for one input. ``scripts/fuzz.py`` runs the
targets for hours, ``test_fuzz.py`` for seconds and on the kept inputs of ``corpus/``.

Inputs are readable where they can be: a target that reads several files of a folder takes the name
of one of them as its first line and has the others whole. What a checksum would refuse at once is
signed anew, so that the code behind the checksum sees it as well.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import fuzz_seeds as seeds
from fuzz_mutations import SEPARATOR

from fedshift.base import tensor_files
from fedshift.base.errors import DataError, FedshiftError
from fedshift.base.logs import printable, warn_once
from fedshift.core.config import configure
from fedshift.core.message import Broadcast, Message, Update
from fedshift.core.state import DiskStore
from fedshift.data.library.datasets import own_cards
from fedshift.data.library.prepare import read_report, read_store
from fedshift.data.sources.limits import Limits
from fedshift.data.sources.listed import listed_sources, path_column
from fedshift.data.sources.pixels import Decoder, Deep, common_span, peek
from fedshift.data.sources.tables.federated import table_sources
from fedshift.data.sources.vectors import npz_sources
from fedshift.data.store import fingerprint, read_ids
from fedshift.deploy.folders import SitePaths, read_server, read_site
from fedshift.deploy.policy import describe_policy, read_policy
from fedshift.engine.compute import Compute
from fedshift.experiment.run import method_of, scenario_of
from fedshift.report.load import load_run
from fedshift.runs.begun import read_compute
from fedshift.runs.predictions import read_predictions
from fedshift.runs.record import Record, pack_server, read_config, read_lines
from fedshift.runs.run_file import read_run_file
from fedshift.runs.spending import Spending
from fedshift.runs.what_left import what_left
from fedshift.transports.flower.envelope import Envelope, from_envelope

SECONDS = 5.0  # of processor time that one input may take
MEGABYTES = 256  # that one input may add to the most memory the process has had
LARGEST = 2**20  # bytes of an input
FILES = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())


class Finding(Exception):  # noqa: N818  what is found is reported, not mended
    """Something that no input may cause; ``where`` tells two findings apart."""

    def __init__(self, kind: str, text: str, where: str) -> None:
        super().__init__(f"{kind}: {text} at {where}")
        self.kind, self.where = kind, where


@dataclass(frozen=True)
class Target:
    """One reader: how its inputs are changed, whole inputs to begin with, and what reads them."""

    name: str
    kind: str  # of fuzz_mutations.KINDS
    whole: Callable[[], list[bytes]]
    read: Callable[[bytes], None]

    def run(self, blob: bytes) -> bool:
        """Read an input; True if it was accepted, False if refused, else a :class:`Finding`."""
        began, held = time.process_time(), _peak()
        try:
            accepted = self._read(blob)
        except FedshiftError as error:
            accepted = False
            self._require_printable(error)
        except MemoryError as error:
            raise Finding("memory", repr(error), _place(error)) from error
        except Exception as error:
            raise Finding("crash", repr(error)[:300], _place(error)) from error
        if (taken := time.process_time() - began) > SECONDS:
            raise Finding("hang", f"{taken:.1f} s", self.name)
        if (grown := _peak() - held) > MEGABYTES:
            raise Finding("memory", f"{grown:.0f} MB more", self.name)
        return accepted

    def _read(self, blob: bytes) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a note of a library is no failure
            self.read(blob[:LARGEST])
        return True

    def _require_printable(self, error: FedshiftError) -> None:
        text = printable(" ".join(str(error).split()))
        try:
            text.encode()
        except UnicodeEncodeError as broken:
            raise Finding("crash", f"{broken!r} when the error is printed", _place(error)) from None


def _peak() -> float:
    """The most megabytes that the process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _place(error: BaseException) -> str:
    """The last line of ours that an error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/fedshift/" in f.filename] or list(frames)
    last = own[-1]
    file = last.filename.rpartition("/fedshift/")[2]
    return f"{type(error).__name__} in {file}:{last.lineno}" if own else type(error).__name__


@cache
def room() -> Path:
    """A folder of this process in memory, where there is one; it is deleted at the end."""
    kept = tempfile.TemporaryDirectory(prefix="fedshift-fuzz-", dir=FILES)
    _OPEN.append(kept)
    os.environ["FEDSHIFT_HOME"] = str(Path(kept.name) / "home")
    (Path(kept.name) / "home" / "own").mkdir(parents=True)
    return Path(kept.name)


_OPEN: list[tempfile.TemporaryDirectory[str]] = []


def placed(blob: bytes, folder: str, whole: dict[str, bytes]) -> tuple[Path, str]:
    """A folder of whole files, of which the input replaces the one that its first line names."""
    root = room() / folder
    head, _, content = blob.partition(b"\n")
    name = head.decode("utf-8", "replace")
    name = name if name in whole else ""
    for path, held in (whole | ({name: content} if name else {})).items():
        file = root / path
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(held)
        elif file.read_bytes() != held:  # of the input before
            file.write_bytes(held)
    return root, name


def read_message(blob: bytes) -> None:
    """A message as one blob, of either direction."""
    kind = Update if b'\\"examples\\"' in blob else Broadcast
    _use(kind.from_bytes(blob))


def _use(message: Message) -> None:
    message.bytes_by_kind()
    message.to_bytes()
    if isinstance(message, Update):
        message.own()


def read_envelope(blob: bytes) -> None:
    """An envelope of replies, as a site sends them, and of requests, as a server does."""
    text, *blocks = blob.split(SEPARATOR)
    sealed = Envelope(text.decode("utf-8", "replace"), {str(i): b for i, b in enumerate(blocks)})
    for message in from_envelope(sealed, Update if b'"examples"' in text else Broadcast):
        _use(message)


def signed(blob: bytes) -> bytes:
    """A safetensors file with the checksum that it should have; as it is if it has no header."""
    size = int.from_bytes(blob[:8], "little")
    try:
        head = json.loads(blob[8 : 8 + size])
        head["__metadata__"][tensor_files.KEY] = tensor_files.BLANK
        text = json.dumps(head).encode()
    except (ValueError, KeyError, TypeError, RecursionError):
        return blob
    text += b" " * (-len(text) % 8)
    front, data = len(text).to_bytes(8, "little") + text, blob[8 + size :]
    digest = hashlib.sha256(front + data).hexdigest()
    key = f'"{tensor_files.KEY}": "'
    return front.replace(f"{key}{tensor_files.BLANK}".encode(), f"{key}{digest}".encode(), 1) + data


def read_checkpoint(blob: bytes) -> None:
    """A run's checkpoint, or one of the files beside it, and a client's state."""
    root, name = placed(blob, "checkpoint", seeds.checkpoint_files())
    if name.endswith(".safetensors"):
        (root / name).write_bytes(signed((root / name).read_bytes()))
    if name != seeds.CHECKPOINT:  # whose seal would refuse every change of the other files
        (root / seeds.CHECKPOINT).write_bytes(signed(seeds.without_seal()))
    DiskStore(root / "checkpoints" / "clients").load("dark-0", before=9)
    server = seeds.server()
    record = Record(seeds.config(), root)
    record.create(Compute())
    if record.restore(server):
        pack_server(server)
        record.book.traffic()
        record.book.unscored(1)
        record.book.losses()
        _ = server.cohort_secret


def read_run_config(blob: bytes) -> None:
    """The configuration of a run directory, up to the method that it builds."""
    root, _ = placed(b"config.json\n" + blob, "config", {"config.json": b""})
    read_compute(root)
    config = read_config(root)
    _ = config.label, config.scenario_label, config.name
    config.scenario.confounders()
    config.build()


def read_run_lines(blob: bytes) -> None:
    """Metrics, ledger, spending, summary and predictions of a run, as ``show`` uses them."""
    root, name = placed(blob, "lines", seeds.run_files())
    if name.endswith(".safetensors"):
        (root / name).write_bytes(signed((root / name).read_bytes()))
    read_predictions(root)
    spent = Spending(root)
    spent.visits()
    spent.rounds(3)
    what_left(root)
    read_lines(root / "ledger.jsonl")
    repr(load_run(root))


def read_index(blob: bytes) -> None:
    """A prepared dataset: its records and its arrays, whose checksums are made to fit."""
    root, name = placed(blob, "home", seeds.store_files())
    os.environ["FEDSHIFT_HOME"] = str(root)
    warn_once.cache_clear()
    own_cards()
    folder = root / "own-data" / "stored"
    if name.endswith(".npy"):
        file = folder / "dark" / "domain.json"
        card = json.loads(file.read_text())
        card["sha256"][Path(name).stem] = hashlib.sha256((root / name).read_bytes()).hexdigest()
        file.write_text(json.dumps(card))
    found = read_store(folder)
    fingerprint(found)
    for domain in found.values():
        _ = domain.shape, domain.objective, [len(domain.rows(i)) for i in range(3)]
    read_ids(folder / "dark")
    read_report(folder)


def read_file_of_run(blob: bytes) -> None:
    """A run file, up to the configuration that it makes."""
    room()
    path = room() / "experiment.toml"
    path.write_bytes(blob)
    file = read_run_file(path)
    method, scenario = method_of(file, "the file"), scenario_of(file)
    config, _ = configure(
        method, scenario, seed=file.seed, settings=file.settings, without=file.without
    )
    _ = config.name


def read_image(blob: bytes) -> None:
    """One image, from its bytes, or as a DICOM file if it says that it is one."""
    decoder = Decoder(16, Limits(megapixels=1.0))
    path = room() / "image.dcm"
    dicom = blob[128:132] == b"DICM"
    if dicom:
        path.write_bytes(blob)
    data = path if dicom else lambda: blob
    peek(data)
    found = decoder(data)
    if isinstance(found, Deep):
        found = decoder(data, common_span([found]))
    if not isinstance(found, str) and found.shape != (16, 16, 3):
        raise AssertionError(f"pixels of shape {found.shape}")
    if isinstance(found, str):
        raise DataError(found)


def read_table_file(blob: bytes) -> None:
    """A csv, as a table or as a list of images, up to the rows of its domains."""
    path = room() / "rows.csv"
    path.write_bytes(blob)
    if path_column(path):
        listed_sources([path], label="label", domain="domain", images=None)
        return
    for source in table_sources([path]).sources:
        source.read(source.classes, None)


def read_arrays(blob: bytes) -> None:
    """An npz of a domain."""
    path = room() / "rows.npz"
    path.write_bytes(blob)
    for source in npz_sources(path):
        source.read(source.classes, 8)


def read_site_policy(blob: bytes) -> None:
    """A site's policy and log of requests, and the settings of sites and servers."""
    root, _ = placed(blob, "site", seeds.site_files())
    read_policy(SitePaths(root))
    describe_policy(SitePaths(root))
    _ = read_site(root).address, read_server(root).certified


TARGETS = {
    target.name: target
    for target in (
        Target("message", "tensors", seeds.messages, read_message),
        Target("envelope", "envelope", seeds.envelopes, read_envelope),
        Target("checkpoint", "file", seeds.checkpoints, read_checkpoint),
        Target("run-config", "json", seeds.run_configs, read_run_config),
        Target("run-lines", "file", seeds.run_lines, read_run_lines),
        Target("dataset-index", "file", seeds.stores, read_index),
        Target("run-file", "toml", seeds.run_file_texts, read_file_of_run),
        Target("image", "image", seeds.images, read_image),
        Target("table", "table", seeds.tables, read_table_file),
        Target("arrays", "arrays", seeds.arrays, read_arrays),
        Target("site-policy", "file", seeds.sites, read_site_policy),
    )
}
