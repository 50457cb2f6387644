"""Raw data at prediction: tables, images and arrays become a net's inputs as they did in training.

``experiment.models`` calls it. A run keeps how its data were prepared in its directory, in
``preparation.json``, so that the prepared data themselves are not needed any more. What a run was
trained on is never read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedshift.base.errors import DataError
from fedshift.base.files import read_json
from fedshift.data.samples import Pixels, as_input
from fedshift.data.sources.arrays import ENTRIES, dense, open_npz
from fedshift.data.sources.images import Item, decode_items, resize_all
from fedshift.data.sources.limits import Limits
from fedshift.data.sources.pixels import SUFFIXES, Span
from fedshift.data.sources.tables.raw import KINDS, named_column, prepare_rows, with_site
from fedshift.runs.best import PREPARATION


class Predictions(list[Any]):
    """One prediction per row: a class, the labels that apply, or a number in the target's unit.

    ``probabilities`` (N, K) are those of ``classes``, in this order, and ``energy`` (N,) is the
    out-of-distribution score, see :func:`energy_of`; both are None for numbers. ``ids`` name the
    samples: files, a column, the index of a DataFrame, or row numbers from 1.
    """

    def __init__(
        self,
        found: Sequence[Any],
        classes: tuple[str, ...],
        probabilities: Tensor | None,
        energy: Tensor | None = None,
        ids: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(found)
        self.classes, self.probabilities, self.energy = classes, probabilities, energy
        self.ids = list(range(1, len(self) + 1)) if ids is None else list(ids)
        self.most_like: list[str] | None = None  # sites of the run, see ``experiment.alike``

    def columns(self) -> dict[str, list[Any]]:
        """As columns of a table: id, prediction, probabilities, energy, the site most alike."""
        found = [", ".join(one) if isinstance(one, tuple) else one for one in self]
        out: dict[str, list[Any]] = {"id": self.ids, "prediction": found}
        if self.probabilities is not None:
            for k, name in enumerate(self.classes):
                out[f"p({name})"] = [round(p, 6) for p in self.probabilities[:, k].tolist()]
        if self.energy is not None:
            out["energy"] = [round(e, 6) for e in self.energy.tolist()]
        if self.most_like is not None:
            out["most_like"] = self.most_like
        return out


def energy_of(out: Tensor, *, labels: bool = False) -> Tensor:
    """Out-of-distribution score (N,) of logits (N, K): higher is less like the training data.

    -log sum_k exp(logit_k), Liu et al., NeurIPS 2020, eq. 4 at temperature 1; of labels that apply
    or not, -sum_k log(1 + exp(logit_k)), Wang et al., NeurIPS 2021. It ranks inputs: its zero means
    nothing, and of a method whose outputs are log-probabilities it is always 0.

    >>> bool(energy_of(torch.zeros(1, 4)) == -torch.tensor(4.0).double().log())
    True
    """
    z = out.double()
    return -functional.softplus(z).sum(1) if labels else -z.logsumexp(1)


@dataclass(frozen=True)
class RawInputs:
    """How raw data become the inputs of a model."""

    shape: tuple[int, ...]  # of one input
    pixels: Pixels
    table: Mapping[str, Any] | None = None  # see ``sources.tables``
    spans: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of images, by domain
    domains: Mapping[str, str] = field(default_factory=dict)  # whose data a client holds

    @classmethod
    def open(cls, run: Path, shape: tuple[int, ...], pixels: Pixels) -> RawInputs:
        """What a run directory says; runs of earlier versions say nothing of tables."""
        kept = read_json(run / PREPARATION) if (run / PREPARATION).exists() else {}
        try:
            return cls(
                shape, pixels, kept.get("table"), kept.get("spans", {}), kept.get("domains", {})
            )
        except AttributeError:
            raise DataError(f"{run / PREPARATION} is damaged; restore it") from None

    def to_json(self) -> dict[str, Any]:
        """The content of ``preparation.json``."""
        table = {"table": self.table} if self.table else {}
        return table | {"spans": dict(self.spans), "domains": dict(self.domains)}

    def read(self, raw: Any, site: str | None, reference: Any = None) -> Tensor:
        """Inputs (N, *shape); ``site`` is a client or a site of the data, or a new one."""
        if isinstance(raw, Tensor):
            return raw
        return self._fitting(as_input(self.stored(raw, site, reference), self.pixels))

    def at_site(self, raw: Any, name: str) -> tuple[RawInputs, Tensor]:
        """How a site that took no part in training prepares its data, and the data as stored.

        Where each site has statistics or a range of values of its own, they are fitted on the data;
        then the site's later data are prepared alike.
        """
        known = self.domains.get(name, name)
        x, span = self._stored(raw, known, raw)
        table = self.table and with_site(self.table, known, raw)
        spans = {**self.spans, known: span.limits} if span else self.spans
        return replace(self, table=table, spans=spans), x

    def stored(self, raw: Any, site: str | None, reference: Any = None) -> Tensor:
        """Inputs before scaling: images (N, H, W, C) uint8, or rows (N, D)."""
        whose = self.domains.get(site, site) if site is not None else None
        return self._stored(raw, whose, reference)[0]

    def _stored(self, raw: Any, whose: str | None, reference: Any) -> tuple[Tensor, Span | None]:
        if isinstance(raw, np.ndarray):
            return torch.from_numpy(raw), None
        if is_npz(raw):
            return self._arrays(Path(raw)), None
        if len(self.shape) == 3:
            return self._images(raw, whose)
        if self.table is None:
            raise DataError(
                "this run has no preparation of tables: its data were vectors, or an earlier "
                f"version made it; give inputs of shape (N, {self.shape[0]}) as an array"
            )
        return torch.from_numpy(prepare_rows(self.table, raw, whose, reference)), None

    def ids(self, raw: Any, column: str | None = None) -> list[Any] | None:
        """Names of the samples: of files, of a column, of a DataFrame's rows; None: no names."""
        if isinstance(raw, Tensor | np.ndarray) or is_npz(raw):
            return None
        if len(self.shape) == 3:
            root = Path(raw) if isinstance(raw, str | Path) and Path(raw).is_dir() else None
            files = image_files(raw)
            return [str(f.relative_to(root)) if root else f.name for f in files]
        frame = hasattr(raw, "columns") and hasattr(raw, "index")
        if column is None:
            return raw.index.tolist() if frame else None
        found = named_column(raw, column)
        return found.tolist() if frame else list(found)

    def _fitting(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.shape:
            raise DataError(
                f"the inputs have shape {tuple(x.shape[1:])}; the model takes {self.shape}"
            )
        return x

    def _images(self, raw: Any, whose: str | None) -> tuple[Tensor, Span | None]:
        """Images of a folder, a file or several, in the size of the training images."""
        files = image_files(raw)
        items = [Item(str(path), "", -1, path) for path in files]
        known = self.spans.get(whose) if whose is not None else None
        span = Span(*known) if known else None
        found = decode_items(files[0].parent.name, items, self._side, Limits(), span)
        if found.problems:
            others = [line.partition(": ")[0] for line in found.problems[1:]]
            listed = ", ".join(others[:20]) + (", ..." if len(others) > 20 else "")
            more = f"; {len(others)} more cannot be read: {listed}" if others else ""
            raise DataError(f"{found.problems[0]}{more}")
        return torch.from_numpy(found.x), found.span

    def _arrays(self, path: Path) -> Tensor:
        """The entry ``x`` of an npz file, images in the size of the training images."""
        x = dense(open_npz(path, ENTRIES), path)
        return torch.from_numpy(resize_all(x, self._side) if x.ndim == 4 else x)

    @property
    def _side(self) -> int | None:
        """Side of the training images if they were square; None keeps sizes as they are."""
        square = len(self.shape) == 3 and self.shape[1] == self.shape[2]
        return self.shape[1] if square else None


def is_npz(raw: Any) -> bool:
    """Whether raw data are a file of arrays."""
    return isinstance(raw, str | Path) and Path(raw).suffix.lower() == ".npz"


def image_files(raw: Any) -> list[Path]:
    """The images that a path or a list of paths names; of a folder all, in order of their names."""
    if isinstance(raw, str | Path):
        path = Path(raw)
        if path.is_file():
            return [path]
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
        if not found:
            raise DataError(f"{path} is no image and no folder with images; check the path")
        return found
    if isinstance(raw, Sequence) and raw and all(isinstance(one, str | Path) for one in raw):
        return [Path(one) for one in raw]
    raise DataError(
        f"{type(raw).__name__} is no image; give a folder, a file or a list of files"
        if not isinstance(raw, Mapping) and not hasattr(raw, "columns")
        else f"the model takes images, not {KINDS}"
    )
