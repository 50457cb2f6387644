"""Score one model on one set of samples once, however many clients ask for it.

Clients of one domain are scored on the same test samples, and under a method without personal or
private entries they all have the same model. ``engine.visit`` asks here before it scores. Nothing
is assumed: the model is compared entry by entry, and a set of samples by its arrays and rows, which
costs a fraction of scoring. Whoever predicts at random or by client must not ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields

import torch
from torch import Tensor

from fedshift.base import tree
from fedshift.base.tree import Tree
from fedshift.core.method import Method
from fedshift.data.samples import Samples

Scores = dict[str, float]


class ScoredOnce:
    """The scores of the last model, by samples; a worker has one."""

    def __init__(self) -> None:
        self._model: Tree = {}
        self._known: list[tuple[Samples, Scores]] = []

    def score(self, model: Tree, samples: Samples, score: Callable[[], Scores]) -> Scores:
        """What ``score`` returns, or what it returned for the same model and samples."""
        if not same_model(self._model, model):
            self._model, self._known = tree.clone(model), []
        for held, found in self._known:
            if same_samples(held, samples):
                return dict(found)
        found = score()
        self._known.append((samples, found))
        return dict(found)


def scores_alike(method: Method) -> bool:
    """Whether the same model predicts the same for every client: no part has a say in it.

    Parts that add modules to the net are left out too, since a module may draw noise.
    """
    return not method.overriding("predict") and not method.overriding("build")


def same_model(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two models have the same bits."""
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def same_samples(one: Samples, other: Samples) -> bool:
    """Whether two sets are the same rows of the same arrays in memory, read the same way."""
    if one is other:
        return True
    for field in fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            if not (_is_same_memory(a, b) or (field.name == "rows" and torch.equal(a, b))):
                return False
        elif a is not b and a != b:
            return False
    return True


def _is_same_memory(one: Tensor, other: Tensor) -> bool:
    return (one.data_ptr(), one.shape, one.stride()) == (
        other.data_ptr(),
        other.shape,
        other.stride(),
    )
