"""Right answers of a model on samples: deterministic, in large batches, without gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift.data.samples import Samples


@torch.inference_mode()
def score(predict: Callable[[Tensor], Tensor], samples: Samples) -> dict[str, float]:
    """Counts that add up over sites: right answers, samples, summed loss."""
    device = samples.x.device
    wide = torch.float32 if device.type == "mps" else torch.float64  # MPS has no doubles
    right = torch.zeros((), dtype=wide, device=device)
    loss = torch.zeros((), dtype=wide, device=device)
    for x, y in samples.chunks():
        logits = predict(x)  # (B, K)
        right += (logits.argmax(1) == y).sum()
        loss += F.cross_entropy(logits, y, reduction="sum")
    return {"right": float(right), "count": float(len(samples)), "loss": float(loss)}
