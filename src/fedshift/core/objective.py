"""Scoring a model on samples: correct predictions and loss, as counts that add up over sites.

``engine.visit`` calls it at the clients, ``evaluate`` at the server, and GroupDRO to measure a
training loss. It is deterministic, runs in large batches without gradient, and must leave the model
unchanged: the caller sets eval mode.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift.data.samples import Samples


@torch.inference_mode()
def score(predict: Callable[[Tensor], Tensor], samples: Samples) -> dict[str, float]:
    """Number of correct predictions, number of samples and summed cross-entropy.

    ``predict`` maps inputs (B, *shape) to logits (B, K). The sums stay on the device until the end,
    so there is one synchronisation per call, and are kept in double precision where there is any.
    """
    device = samples.x.device
    wide = torch.float32 if device.type == "mps" else torch.float64  # MPS has no doubles
    right = torch.zeros((), dtype=wide, device=device)
    loss = torch.zeros((), dtype=wide, device=device)
    for x, y in samples.chunks():
        logits = predict(x)  # (B, K)
        right += (logits.argmax(1) == y).sum()
        loss += F.cross_entropy(logits, y, reduction="sum")
    return {"right": float(right), "count": float(len(samples)), "loss": float(loss)}
