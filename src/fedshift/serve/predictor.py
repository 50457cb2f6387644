"""A model that answers requests: that of a run, or of an exported ONNX file.

``service`` calls it from worker threads. It turns images, csv and rows into raw inputs, runs the
model, and says what it found as JSON. It has no state that a request could change.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedshift.base.errors import ConfigError, DataError
from fedshift.data.sources.pixels import decode
from fedshift.experiment.models import load_model
from fedshift.experiment.raw import RawInputs, energy_of
from fedshift.serve.about import KEY, about_of
from fedshift.serve.formats import onnx_session
from fedshift.serve.graph import Graph

Array = NDArray[Any]
Ask = Callable[[Array], Sequence[Array]]


@dataclass(frozen=True)
class Predictor:
    """How raw data become inputs, and the model that answers them."""

    about: Mapping[str, Any]
    inputs: RawInputs
    ask: Ask
    site: str | None = None

    @property
    def images(self) -> bool:
        """Whether inputs are images."""
        return len(self.inputs.shape) == 3

    @property
    def columns(self) -> list[str]:
        """Of a table, those that a row has to have; of other inputs none."""
        plans = self.about.get("plans", {})
        return [plan["name"] for plan in next(iter(plans.values()), [])]

    def of_images(self, blobs: Sequence[bytes]) -> Array:
        """Inputs (N, C, H, W) of encoded images."""
        self._require(images=True)
        channels, height, width = self.inputs.shape
        size = height if height == width else None
        found = []
        for number, blob in enumerate(blobs, start=1):
            pixels = decode(lambda blob=blob: blob, size)  # type: ignore[misc]
            if isinstance(pixels, str):
                raise DataError(f"image {number} {pixels}")
            found.append(np.moveaxis(pixels, 2, 0))
        if any(one.shape != (channels, height, width) for one in found):
            raise DataError(f"images become {found[0].shape}; the model takes {self.inputs.shape}")
        return np.stack(found)

    def of_rows(self, rows: Any) -> Array:
        """Inputs (N, D) of rows as mappings from column to cell."""
        self._require(images=False)
        return self.inputs.read(rows, self.site).numpy()

    def of_csv(self, blob: bytes) -> Array:
        """Inputs (N, D) of a csv."""
        self._require(images=False)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table.csv"
            path.write_bytes(blob)
            try:
                return self.inputs.read(path, self.site).numpy()
            except DataError as error:
                raise DataError(str(error).replace(str(path), "the csv")) from None

    def of_numbers(self, given: Any) -> Array:
        """Inputs as nested lists: pixels from 0 to 255, channels first, or prepared rows."""
        try:
            x = np.asarray(given, dtype=np.float64)
        except (ValueError, TypeError):
            raise DataError("inputs are not nested lists of numbers of one shape") from None
        if x.shape[1:] != tuple(self.inputs.shape) or not len(x):
            raise DataError(f"inputs have shape {x.shape}; expected (N, *{self.inputs.shape})")
        if not self.images:
            return _small(x)
        if not ((x >= 0) & (x <= 255) & (x == np.rint(x))).all():
            raise DataError("pixels are whole numbers from 0 to 255")
        return x.astype(np.uint8)

    def answer(self, x: Array) -> tuple[list[dict[str, Any]], list[float]]:
        """A prediction per input as JSON, and the energies, of which a number has none."""
        out, second = (torch.from_numpy(np.asarray(one)) for one in self.ask(x))
        task, classes = self.about["task"], self.about["classes"]
        if task == "regression":
            return [{"id": i + 1, "prediction": _finite(v)} for i, v in
                    enumerate(second.squeeze(1).tolist())], []  # fmt: skip
        several = task == "multi-label"
        energies = energy_of(out, labels=several).tolist()
        found = []
        for i, (p, e) in enumerate(zip(second.tolist(), energies, strict=True)):
            likely = [c for c, q in zip(classes, p, strict=True) if q > 0.5]
            found.append({
                "id": i + 1,
                "prediction": likely if several else classes[int(np.argmax(p))],
                "probabilities": {c: _finite(q) for c, q in zip(classes, p, strict=True)},
                "energy": _finite(e),
            })  # fmt: skip
        return found, energies

    def _require(self, *, images: bool) -> None:
        if images != self.images:
            raise DataError(f"the model takes {'images' if self.images else 'tables'}")


def _small(x: Array) -> Array:
    """Numbers that the model can take."""
    with np.errstate(over="ignore"):
        found = x.astype(np.float32)
    if not np.isfinite(found).all():
        raise DataError("inputs hold NaN, or numbers too large for the model")
    return found


def _finite(value: float) -> float | None:
    """A number that JSON has."""
    return value if math.isfinite(value) else None


def open_predictor(source: Path, site: str | None = None) -> Predictor:
    """The model of a run directory, or of an ONNX file that ``export`` wrote."""
    if source.is_dir():
        return _of_run(source, site)
    return _of_onnx(source, site)


def _of_run(run: Path, site: str | None) -> Predictor:
    graph = Graph(load_model(run, site))
    assert graph.model.inputs is not None

    def ask(x: Array) -> Sequence[Array]:
        with torch.inference_mode():
            return [one.numpy() for one in graph(torch.from_numpy(x))]

    return Predictor(about_of(graph.model, run.name, "run"), graph.model.inputs, ask, site)


def _of_onnx(path: Path, site: str | None) -> Predictor:
    if not path.is_file():
        raise ConfigError(f"{path} is neither a run directory nor an ONNX file")
    session = onnx_session(path)
    told = session.get_modelmeta().custom_metadata_map.get(KEY)
    if told is None:
        raise ConfigError(f"{path} does not say what it takes; write it with fedshift export")
    about = json.loads(told)
    inputs = RawInputs(
        tuple(about["shape"]), about.get("pixels", "centred"), about.get("table"),
        domains=about.get("domains", {}),
    )  # fmt: skip
    return Predictor(
        about, inputs, lambda x: session.run(None, {"input": x}), site or about["site"]
    )
