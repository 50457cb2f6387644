"""The files of a sweep: its table as JSON, Markdown, LaTeX and CSV, and its picture."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from fedshift.base.files import write_bytes, write_json
from fedshift.report import optional
from fedshift.report.sweeps import Sweep, csv, latex, markdown


def write(sweep: Sweep, folder: Path) -> Path:
    """Write all of them; returns the JSON file. A sweep of the same settings replaces its files."""
    base = folder / name_of(sweep)
    write_json(base.with_name(f"{base.name}.json"), sweep.to_json())
    for form, make in (("md", markdown), ("tex", latex), ("csv", csv)):
        write_bytes(base.with_name(f"{base.name}.{form}"), make(sweep).encode())
    if optional.has_matplotlib():
        optional.figures().save(sweep.plot(), base.with_name(f"{base.name}.png"))
    return base.with_name(f"{base.name}.json")


def name_of(sweep: Sweep) -> str:
    """Readable, and unique by method, scenario, protocol and settings."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", f"{sweep.method}-{sweep.scenario}".partition("[")[0])
    content = [sweep.title, sweep.protocol, sweep.how, [t.values for t in sweep.trials]]
    hashed = hashlib.blake2b(json.dumps(content).encode(), digest_size=4).hexdigest()
    return f"{words.strip('-')}-{hashed}"
