"""Changes inputs at random and keeps their structure, so that a reader gets past its first check.

``scripts/fuzz.py`` hands :func:`mutated` to atheris as its mutator, the tests of this folder call
it with seeds of hypothesis. A JSON value stays JSON, a safetensors file keeps a header of the right
length, a PNG its checksums; one change in four is made to the bytes themselves.
"""

from __future__ import annotations

import io
import json
import re
import struct
import tomllib
import warnings
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import tomli_w

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 255, 2**31, 2**53 + 1, 2**63, -(2**63), 10**400, 0.5, -0.0,
    1e308, float("nan"), float("inf"), "", "x", "none", "\0", "\x1b[2J", "\ud800", "a/b", "../x",
    "é", " ", ",", "1e5", "x" * 3000, [], [None], [[]], {}, {"": {}}, [1, 2], [-1], ["a", "a"],
)  # fmt: skip
BROKEN = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError,
    NotImplementedError, RuntimeError, EOFError, OSError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
DTYPES = (
    "|O",
    "<f8",
    "<f4",
    "|u1",
    "|i1",
    "<U3",
    "|S2",
    "<c16",
    "<M8[s]",
    "|V4",
    ">i8",
    "<f2",
    "?",
)
NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**32 - 1)
SEPARATOR = b"\0\0block\0\0"  # between the text of an envelope and its blocks
CELLS = (
    "", "?", "nan", "inf", "-0", "1e400", "1_000", "007", "1,5", "1.000,5", '"', '"a\nb"', "\0",
    "2020-02-30", "2020-01-01", "12:60", "true", "é", "\u202e", "x" * 200, "9" * 400, "-9", "1/2",
)  # fmt: skip
WORDS = tuple(  # of the formats that are read
    word
    for line in (
        "client task round shared personal payload examples steps facts metrics messages layouts",
        "scalars sections order meta dtype shape data_offsets __metadata__ fedshift float32 int64",
        "bool complex128 F32 I64 BOOL BF16 F8_E4M3 sha256 sha256-of-all state/cohorts/secret",
        "method settings without seed scenario compute composition replayable format run name data",
        "partition kind alpha split unseen domains protocols allow fedavg fedprox[mu=0.1] + - [ ]",
        "local-dp[noise=1,clip=1] randomness=system dirichlet digits tiny paper laptop device",
        "direction bytes kinds reason up down lost none begun asked closed sites cohort complete",
        "scores val test avg std worst loss clients by_domain confusion samples unscored summary",
        "stamp classes drawn x y descr fortran_order require epsilon delta repeats tasks payloads",
        "noise refused tell_domain id server folder trial host port bind names label domain path",
    )
    for word in line.split()
)
Mutation = Callable[[bytes, Random], bytes]


def mutated(blob: bytes, rng: Random, kind: str) -> bytes:
    """One to four changes of an input of this kind."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        change = in_bytes if rng.random() < 0.25 else KINDS[kind]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # zipfile's, of an entry that is there twice
                blob = change(blob, rng)
        except BROKEN:  # no longer of this kind
            blob = in_bytes(blob, rng)
    return blob


def in_bytes(blob: bytes, rng: Random) -> bytes:
    """Flip, overwrite, insert, remove or repeat some bytes."""
    data = bytearray(blob or b"\0")
    at = rng.randrange(len(data))
    size = min(rng.choice((1, 1, 2, 4, 8, 64)), len(data) - at)
    what = rng.randrange(7)
    if what == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif what == 1:
        data[at : at + size] = rng.randbytes(size)
    elif what == 2:
        order = rng.choice(("little", "big"))
        width = rng.choice((1, 2, 4, 8))
        data[at : at + width] = (rng.choice(NUMBERS) % 2 ** (8 * width)).to_bytes(width, order)
    elif what == 3:
        del data[at : at + size]
    elif what == 4:
        data[at:at] = data[at : at + size] * rng.choice((1, 2, 50))
    elif what == 5:
        data[at:at] = rng.choice(WORDS).encode()
    else:
        del data[at:]
    return bytes(data)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, as a path of keys."""
    found = [path]
    if isinstance(value, dict | list) and len(path) < 12:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, held in items:
            found += places(held, (*path, key))
    return found


def at_place(value: Any, path: tuple[Any, ...]) -> Any:
    """What is at a place."""
    for key in path:
        value = value[key]
    return value


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The value with something else at a place."""
    if not path:
        return new
    out = dict(value) if isinstance(value, dict) else list(value)
    out[path[0]] = replaced(value[path[0]], path[1:], new)
    return out


def in_value(value: Any, rng: Random) -> Any:
    """A JSON value with one place changed: replaced, moved, removed, renamed or nested."""
    every = places(value)
    path = rng.choice(every)
    held = at_place(value, path)
    what = rng.randrange(8)
    if what == 0:
        return replaced(value, path, at_place(value, rng.choice(every)))
    if what == 1 and isinstance(held, dict | list) and held:
        return replaced(value, path, _without(held, rng))
    if what == 2 and isinstance(held, dict):
        key = rng.choice(WORDS)
        return replaced(value, path, held | {key: rng.choice(ODD)})
    if what == 3 and isinstance(held, list):
        return replaced(value, path, held * rng.choice((2, 3, 20)) or [rng.choice(ODD)])
    if what == 4 and isinstance(held, int | float) and not isinstance(held, bool):
        return replaced(value, path, rng.choice((held + 1, held - 1, -held, held * 2, float(held))))
    if what == 5 and isinstance(held, str):
        return replaced(value, path, rng.choice((*WORDS, held + "x", held[1:])))
    if what == 6 and rng.random() < 0.05:
        return replaced(value, path, _nested(rng.choice((50, 900))))
    return replaced(value, path, rng.choice(ODD))


def _without(held: Any, rng: Random) -> Any:
    if isinstance(held, list):
        at = rng.randrange(len(held))
        return held[:at] + held[at + 1 :]
    gone = rng.choice(list(held))
    return {key: item for key, item in held.items() if key != gone}


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def in_json(blob: bytes, rng: Random) -> bytes:
    """JSON with one value changed."""
    return json.dumps(in_value(json.loads(blob), rng)).encode()


def in_lines(blob: bytes, rng: Random) -> bytes:
    """Lines of JSON with one of them changed, repeated, removed or moved."""
    lines = blob.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    what = rng.randrange(6)
    if what == 0:
        lines.insert(other, lines[at])
    elif what == 1 and len(lines) > 1:
        del lines[at]
    else:
        lines[at] = in_json(lines[at], rng)
    return b"\n".join(lines)


def in_toml(blob: bytes, rng: Random) -> bytes:
    """TOML with one value changed."""
    return tomli_w.dumps(in_value(tomllib.loads(blob.decode()), rng)).encode()


def in_tensors(blob: bytes, rng: Random) -> bytes:
    """A safetensors file with a changed header of the right length, or with changed data."""
    size = int.from_bytes(blob[:8], "little")
    head, data = json.loads(blob[8 : 8 + size]), blob[8 + size :]
    if rng.random() < 0.5:
        inner = in_json(head["__metadata__"]["fedshift"].encode(), rng)
        head["__metadata__"]["fedshift"] = inner.decode()
    elif rng.random() < 0.8:
        head = in_value(head, rng)
    else:
        data = in_bytes(data, rng)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def in_envelope(blob: bytes, rng: Random) -> bytes:
    """The JSON of an envelope, or one of the blocks after it."""
    text, *blocks = blob.split(SEPARATOR)
    if blocks and rng.random() < 0.15:
        at = rng.randrange(len(blocks))
        blocks[at] = in_bytes(blocks[at], rng)
    else:
        text = in_json(text, rng)
    return SEPARATOR.join([text, *blocks])


def in_table(blob: bytes, rng: Random) -> bytes:
    """A csv with another cell, line, delimiter or encoding."""
    lines = blob.split(b"\n")
    at, what = rng.randrange(len(lines)), rng.randrange(9)
    mark = rng.choice((b",", b";", b"\t", b"|"))
    cells = lines[at].split(mark)
    if what < 4:
        cells[rng.randrange(len(cells))] = rng.choice(CELLS).encode("utf-8", "replace")
        lines[at] = mark.join(cells)
    elif what == 4:
        lines[at:at] = [lines[at]] * rng.choice((1, 3, 30))
    elif what == 5:
        lines[at] = mark.join(cells[:-1] if rng.random() < 0.5 else [*cells, b"1"])
    elif what == 6:
        return blob.replace(mark, rng.choice((b",", b";", b"\t", b"|")))
    elif what == 7:
        name = rng.choice(("utf-16", "utf-32", "utf-8-sig", "latin-1", "utf-16-le"))
        return blob.decode("utf-8", "replace").encode(name, "replace")
    else:
        del lines[at]
    return b"\n".join(lines)


def in_image(blob: bytes, rng: Random) -> bytes:
    """An image with changed bytes; the checksums of a PNG are made to fit."""
    out = in_bytes(blob, rng)
    return out if out[:8] != b"\x89PNG\r\n\x1a\n" or rng.random() < 0.1 else _with_checksums(out)


def _with_checksums(blob: bytes) -> bytes:
    out, at = [blob[:8]], 8
    while at + 8 <= len(blob):
        (size,) = struct.unpack(">I", blob[at : at + 4])
        body = blob[at + 4 : at + 8 + size]
        out += [blob[at : at + 4], body, struct.pack(">I", zlib.crc32(body))]
        at += 12 + size
        if size > len(blob):
            break
    return b"".join(out)


def in_array(blob: bytes, rng: Random) -> bytes:
    """An npy file with another number or dtype in its header, or with changed bytes."""
    head, mark, data = blob.partition(b"\n")
    numbers = list(re.finditer(rb"\d+", head[10:]))
    if not mark or not numbers or rng.random() < 0.3:
        return in_bytes(blob, rng)
    if rng.random() < 0.3:
        kind = rng.choice(DTYPES).encode()
        text = re.sub(rb"'descr': '[^']*'", b"'descr': '" + kind + b"'", head[10:])
    else:
        found = rng.choice(numbers)
        number = str(rng.choice((*NUMBERS, 3, 4, 5, 2**40, 2**62, 2**63, -1))).encode()
        text = head[10 : 10 + found.start()] + number + head[10 + found.end() :]
    return head[:8] + (len(text) + 1).to_bytes(2, "little") + text + mark + data


def in_arrays(blob: bytes, rng: Random) -> bytes:
    """An npz with one entry changed, removed or renamed; its checksums fit."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(blob)) as old, zipfile.ZipFile(out, "w") as new:
        names = old.namelist()
        chosen = rng.choice(names)
        what = rng.randrange(8)
        for name in names:
            content = old.read(name)
            if name == chosen and what == 0:
                continue
            if name == chosen and what == 1:
                new.writestr(rng.choice((*names, *(f"{word}.npy" for word in WORDS))), content)
            else:
                new.writestr(name, in_array(content, rng) if name == chosen else content)
    return out.getvalue()


def in_file(blob: bytes, rng: Random) -> bytes:
    """A named file: its first line is the name, by which the rest is changed."""
    name, mark, content = blob.partition(b"\n")
    kind = SUFFIXES.get(name.rpartition(b".")[2], in_bytes)
    return name + mark + kind(content, rng)


SUFFIXES: dict[bytes, Mutation] = {
    b"json": in_json, b"jsonl": in_lines, b"toml": in_toml, b"safetensors": in_tensors,
    b"npy": in_array,
}  # fmt: skip
KINDS: dict[str, Mutation] = {
    "arrays": in_arrays,
    "bytes": in_bytes,
    "envelope": in_envelope,
    "file": in_file,
    "image": in_image,
    "json": in_json,
    "table": in_table,
    "tensors": in_tensors,
    "toml": in_toml,
}
