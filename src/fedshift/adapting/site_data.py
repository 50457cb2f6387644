"""The data of a site that took no part in training: inputs to adapt to, and labels if any.

``adapt`` and ``finetune`` read through :func:`read_site`. Inputs are prepared as the training data
were. Whoever adapts gets :attr:`SiteData.unlabelled`, in which every label is -1; labels are for
fine-tuning and for saying how well a model does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift.base.errors import DataError
from fedshift.core.objective import Objective
from fedshift.data.samples import Samples, as_input
from fedshift.data.sources.arrays import open_npz
from fedshift.data.sources.images import SPLITS
from fedshift.data.sources.tables.raw import labels_of, sites_in
from fedshift.experiment.raw import RawInputs, image_files, is_npz

Found = tuple[NDArray[Any], NDArray[np.bool_]]  # targets of the known rows, and which these are


@dataclass(frozen=True)
class SiteData:
    """All samples of a site; ``known`` (n,) says which have a label."""

    name: str
    samples: Samples
    known: Tensor
    inputs: RawInputs  # how the site's later data become inputs
    notes: tuple[str, ...] = ()  # of labels
    several: tuple[str, ...] = ()  # sites that the data are of, if they name more than one

    @property
    def unlabelled(self) -> Samples:
        """The same inputs without labels."""
        return self.samples.unlabelled()

    @property
    def labelled(self) -> Samples:
        """The samples whose label is known."""
        held = self.samples
        return Samples(held.x, held.y, held.rows[self.known], held.pixels)


def read_site(
    inputs: RawInputs, raw: Any, name: str, classes: Sequence[str], task: Objective
) -> SiteData:
    """Read and prepare a site's data.

    Images have a label if a folder above them is called like a class, rows if the column of labels
    is filled in, arrays if there is an entry ``y``. Labels that cannot be used are a note.
    """
    if isinstance(raw, Tensor):
        raise DataError("inputs are a tensor; give raw data, or stored inputs as a numpy array")
    own, x = inputs.at_site(raw, name)
    _check(as_input(x[:1], inputs.pixels), x, inputs.shape)
    notes: tuple[str, ...] = ()
    try:
        found = _labels(inputs, raw, classes, task)
        y, known = _filled(found, len(x), len(classes), task)
    except DataError as error:
        notes = (f"labels are not used: {error}",)
        y, known = _filled(None, len(x), len(classes), task)
    samples = Samples(x, y, torch.arange(len(x)), inputs.pixels)
    return SiteData(name, samples, known, own, notes, _several(inputs, raw, classes))


def name_of(raw: Any) -> str:
    """What a site is called if nobody says: the folder's or the file's name."""
    if isinstance(raw, str | Path):
        return Path(raw).resolve().stem or "new"
    return "new"


def _check(one: Tensor, x: Tensor, shape: tuple[int, ...]) -> None:
    if not len(x):
        raise DataError("the site's data hold no sample")
    if tuple(one.shape[1:]) != shape:
        found = tuple(one.shape[1:])
        raise DataError(f"the site's inputs have shape {found}; the model takes {shape}")
    if x.is_floating_point() and not bool(x.isfinite().all()):
        raise DataError("the site's inputs hold nan or inf; mend or remove those rows")


def _several(inputs: RawInputs, raw: Any, classes: Sequence[str]) -> tuple[str, ...]:
    """The sites of a table's column, or the folders above class folders, if there are several."""
    if is_npz(raw) or isinstance(raw, np.ndarray):
        return ()
    if len(inputs.shape) == 3:
        names = {name.casefold() for name in classes}
        parts = [p.relative_to(raw).parts for p in image_files(raw)] if _is_folder(raw) else []
        found = {one[-3] for one in parts if len(one) > 2 and one[-2].casefold() in names}
        sites = sorted(name for name in found if name.casefold() not in (*names, *SPLITS))
    else:
        sites = sites_in(inputs.table, raw) if inputs.table else []
    return tuple(sites) if len(sites) > 1 else ()


def _is_folder(raw: Any) -> bool:
    return isinstance(raw, str | Path) and Path(raw).is_dir()


def _labels(inputs: RawInputs, raw: Any, classes: Sequence[str], task: Objective) -> Found | None:
    if isinstance(raw, np.ndarray):
        return None
    if is_npz(raw):
        return _of_arrays(Path(raw), classes, task)
    if len(inputs.shape) == 3:
        return _of_folders(raw, classes) if task.name == "classification" else None
    return None if inputs.table is None else labels_of(inputs.table, raw)


def _of_folders(raw: Any, classes: Sequence[str]) -> Found | None:
    """The nearest folder above an image, below what was given, that is called like a class."""
    root = Path(raw) if _is_folder(raw) else None
    order = {name.casefold(): i for i, name in enumerate(classes)}
    found = [_nearest(path, root, order) for path in image_files(raw)]
    known = np.array([i is not None for i in found])
    y = np.array([i for i in found if i is not None], dtype=np.int64)
    return (y, known) if len(y) else None


def _nearest(path: Path, root: Path | None, order: dict[str, int]) -> int | None:
    above = path.relative_to(root).parent.parts if root else path.parent.parts[-1:]
    named = (order[part.casefold()] for part in reversed(above) if part.casefold() in order)
    return next(named, None)


def _of_arrays(path: Path, classes: Sequence[str], task: Objective) -> Found | None:
    """The entry ``y``, by the names in ``classes`` where the file has them; -1 is no label."""
    entries = open_npz(path, ("y", "classes"))
    if "y" not in entries:
        return None
    y = entries["y"]
    if task.name == "regression":
        return y.astype(np.float32), np.ones(len(y), dtype=bool)
    known = y >= 0 if y.ndim == 1 else np.ones(len(y), dtype=bool)
    if "classes" in entries and y.ndim == 1:
        order = {name: i for i, name in enumerate(classes)}
        names = entries["classes"].tolist()
        y = np.array([order.get(str(names[i]), -1) if i >= 0 else -1 for i in y.astype(int)])
        known = y >= 0
    return y[known].astype(np.int64 if y.ndim == 1 else np.float32), known


def _filled(found: Found | None, n: int, outputs: int, task: Objective) -> tuple[Tensor, Tensor]:
    """Targets of all rows, -1 where there is none, and which are known."""
    shape = (n, outputs) if task.name == "multi-label" else (n,)
    kind = torch.int64 if task.name == "classification" else torch.float32
    y, known = torch.full(shape, -1, dtype=kind), torch.zeros(n, dtype=torch.bool)
    if found is None:
        return y, known
    values, which = torch.from_numpy(found[0]), torch.from_numpy(np.asarray(found[1], dtype=bool))
    if len(which) != n:
        raise DataError(f"there are {n} inputs and labels of {len(which)}; they must agree")
    y[which] = values.to(kind)
    if problem := task.wrong_targets(y[which], outputs):
        raise DataError(f"the site's data have {problem}")
    return y, which
