"""What the reported model predicts for each test sample, in the run directory of a simulation.

``experiment.predictions`` writes it when a run is finished, ``report.bootstrap`` reads it to say
how sure the numbers of a single seed are. It holds targets and outputs, never inputs. Deployments
never write it: from real sites only counts travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedshift.base.errors import RunError
from fedshift.base.tensor_files import read_tensors, write_tensors

FILE = "predictions.safetensors"
LARGEST = 4_000_000  # outputs of a run; of more than that only the predicted classes are kept


@dataclass(frozen=True)
class KeptPredictions:
    """Targets and outputs of one model on the test samples of one domain."""

    protocol: str
    round: int
    domain: str
    y: Tensor  # targets (n,) or (n, K)
    out: Tensor  # outputs (n, K); or (n,) predicted classes, where there are too many outputs


def write_predictions(path: Path, found: Sequence[KeptPredictions]) -> None:
    """Keep predictions in the run directory ``path``, atomically."""
    large = sum(p.out.numel() for p in found) > LARGEST
    tensors, about = {}, []
    for i, p in enumerate(found):
        classes = large and not p.y.is_floating_point()
        tensors[f"{i}/y"] = p.y if p.y.is_floating_point() else p.y.to(torch.int32)
        tensors[f"{i}/out"] = p.out.argmax(1).to(torch.int32) if classes else p.out.float()
        about.append({"protocol": p.protocol, "round": p.round, "domain": p.domain})
    write_tensors(path / FILE, tensors, {"predictions": about})


def read_predictions(path: Path) -> list[KeptPredictions]:
    """The predictions in a run directory; none for runs of earlier versions and deployments."""
    if not (path / FILE).exists():
        return []
    tensors, meta = read_tensors(path / FILE)
    try:
        return [
            KeptPredictions(**row, y=tensors[f"{i}/y"], out=tensors[f"{i}/out"])
            for i, row in enumerate(meta["predictions"])
        ]
    except (KeyError, TypeError):
        raise RunError(f"{path / FILE} holds no predictions; delete it") from None
