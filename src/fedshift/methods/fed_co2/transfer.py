"""What one model teaches another: predictions to follow, and heads that features have to suit."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from fedshift import Client, Step, Tree


def distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(softmax(teacher) || softmax(student)) of logits (B, K), mean over the batch."""
    return F.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean")


def loss_under_heads(client: Client, step: Step, heads: Tree) -> Tensor:
    """Sum of the task's losses of the step's features under n fixed ``heads``, (n, ...) each."""
    module, prefix = client.net.head_module, f"{client.net.head_path}."
    terms = []
    for row in zip(*heads.values(), strict=True):
        head = {k.removeprefix(prefix): v for k, v in zip(heads, row, strict=True)}
        logits = functional_call(module, head, (step.out.features,))
        terms.append(client.task.loss(logits, step.y))
    return torch.stack(terms).sum()
