"""What parts that adapt a net to a new site's unlabelled inputs share: TENT, T3A, SHOT, FDSE."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift import Batch, DataError, Net, Output, Samples, shuffled_rows


def entropy(logits: Tensor) -> Tensor:
    """Entropy (B,) of each prediction, -sum_c p_c log p_c, from (B, K)."""
    logs = logits.log_softmax(1)
    return -(logs.exp() * logs).sum(1)


def mean_entropy(logits: Tensor) -> Tensor:
    """Entropy of the mean prediction: log K if all classes are as frequent, 0 if one is left."""
    mean = logits.softmax(1).mean(0)  # (K,)
    return -(mean * mean.clamp(min=1e-12).log()).sum()


def shuffled_inputs(
    unlabelled: Samples, size: int, epochs: int, generator: torch.Generator
) -> Iterator[Batch]:
    """Batches of the site's inputs in random order, so that each mixes the site's classes."""
    rows = shuffled_rows(len(unlabelled), size, generator, epochs=epochs, steps=None)
    for i, positions in enumerate(rows):
        yield Batch(*unlabelled.take(positions), i)


def require_two(part: str, unlabelled: Samples) -> None:
    """Raise if the site has one input only, which BatchNorm cannot normalise."""
    if len(unlabelled) == 1:
        raise DataError(
            f"{part}: a new site gives 1 input to adapt to; BatchNorm needs 2: give more, or score "
            "the protocol unseen"
        )


@torch.no_grad()
def outputs(net: Net, unlabelled: Samples) -> tuple[Tensor, Tensor]:
    """Features (n, D) and logits (n, K) of all inputs of a site, in eval mode."""
    net.eval()
    found: list[Output] = [net(x) for x, _ in unlabelled.chunks()]
    return torch.cat([out.features for out in found]), torch.cat([out.logits for out in found])


def trained_batch_norms(net: Net) -> list[tuple[str, _BatchNorm]]:
    """Every BatchNorm layer that is not fixed, by path."""
    fixed = set(map(id, net.fixed))
    found = [(path, m) for path, m in net.named_modules() if isinstance(m, _BatchNorm)]
    return [(path, m) for path, m in found if id(m) not in fixed]
