"""Split rules: which rows of a domain train, which validate (select a model), which are scored.

A scenario names one rule, and the engine applies it to every domain before rows are dealt to
clients. A row has exactly one code, so no row that is scored is ever trained on; the stored split
itself is never changed.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self, assert_never

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from fedshift.base import seeds
from fedshift.base.errors import DataError
from fedshift.data.samples import Domain

TRAIN, VAL, TEST = 0, 1, 2
Fraction = Annotated[float, Field(ge=0, lt=1)]
Codes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class _Rule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Given(_Rule):
    """The stored split; if it has no validation rows, ``val`` of the training rows, per class."""

    kind: Literal["given"] = "given"
    val: Fraction = 0.1


class Random(_Rule):
    """Three random fractions of all rows, drawn from the seed; ignores the stored split (FDSE)."""

    kind: Literal["random"] = "random"
    train: Annotated[float, Field(gt=0, le=1)] = 0.8
    val: Fraction = 0.1
    test: Fraction = 0.1

    @model_validator(mode="after")
    def _whole(self) -> Self:
        total = self.train + self.val + self.test
        if abs(total - 1) > 1e-9:
            raise ValueError(f"train, val and test add up to {total:g}; they must add up to 1")
        return self


class EveryTenth(_Rule):
    """Row i is for training if i mod 10 <= 7, else for the test (F2DC).

    F2DC orders rows by class and then by file name, which is also the stored order. It has no
    validation set; here ``val`` of the training rows, class by class, becomes one.
    """

    kind: Literal["every-tenth"] = "every-tenth"
    val: Fraction = 0.1


class PerClass(_Rule):
    """A random part of each class: ``val`` to choose the model, ``test`` to score it (CSAC).

    CSAC holds out 10 % of its source domains and scores the whole target domain
    (:class:`AllTest`), so by default nothing of a source domain is scored.
    """

    kind: Literal["per-class"] = "per-class"
    val: Fraction = 0.1
    test: Fraction = 0.0

    @model_validator(mode="after")
    def _leaves_some(self) -> Self:
        if self.val + self.test >= 1:
            raise ValueError(
                f"val and test add up to {self.val + self.test:g}; leave some to train"
            )
        return self


class AllTest(_Rule):
    """Every row is scored: for a target domain that no client trains on."""

    kind: Literal["all-test"] = "all-test"


Split = Annotated[Given | Random | EveryTenth | PerClass | AllTest, Field(discriminator="kind")]


def describe_rule(rule: Split, *, classes: bool = True) -> str:
    """A split rule in words, as results print it; ``classes`` says whether the data have any.

    >>> describe_rule(Random())
    'random, 80/10/10 % of all rows'
    """
    match rule:
        case Given():
            return f"given with the data; validation {_share(rule.val)} where none is given"
        case Random():
            parts = "/".join(f"{100 * p:g}" for p in (rule.train, rule.val, rule.test))
            return f"random, {parts} % of all rows"
        case EveryTenth():
            return f"every tenth, two rows of ten for the test; validation {_share(rule.val)}"
        case PerClass():
            each = "per class, " if classes else ""
            return f"{each}{100 * rule.val:g} % validation and {100 * rule.test:g} % test"
        case AllTest():
            return "all rows are test rows"
        case _:
            assert_never(rule)


def _share(val: float) -> str:
    return f"{100 * val:g} % of the training rows"


def apply_split(rule: Split, domain: Domain, seed: int) -> Tensor:
    """Code of each row, (N,) uint8: 0 train, 1 val, 2 test; depends on rule, domain and seed only.

    >>> x, y = torch.zeros(20, 2, 2, 3), torch.arange(20) % 2
    >>> domain = Domain("d", x, y, torch.zeros(20, dtype=torch.uint8), ("a", "b"))
    >>> apply_split(EveryTenth(val=0), domain, seed=0)[:10].tolist()
    [0, 0, 0, 0, 0, 0, 0, 0, 2, 2]
    """
    rng = seeds.numpy(seed, "split", domain.name)
    labels = domain.strata.numpy()  # (N,)
    match rule:
        case Given():
            codes = domain.split.numpy().copy()
            if not (codes == VAL).any():
                _carve(codes, labels, rule.val, rng)
        case Random():
            codes = _random(rule, domain, rng)
        case EveryTenth():
            codes = np.where(np.arange(len(labels)) % 10 <= 7, TRAIN, TEST).astype(np.uint8)
            _carve(codes, labels, rule.val, rng)
        case PerClass():
            codes = _per_class(rule, labels, rng)
        case AllTest():
            codes = np.full(len(labels), TEST, np.uint8)
        case _:
            assert_never(rule)
    return torch.from_numpy(codes)


def _random(rule: Random, domain: Domain, rng: np.random.Generator) -> Codes:
    """Shuffle all rows, then cut the order into train, val and test."""
    n = len(domain.y)
    ends = round(n * rule.train), round(n * (rule.train + rule.val))
    codes = np.full(n, TEST, np.uint8)
    order = rng.permutation(n)
    codes[order[: ends[1]]] = VAL
    codes[order[: ends[0]]] = TRAIN
    for code, name in ((TRAIN, "train"), (VAL, "val"), (TEST, "test")):
        if getattr(rule, name) and not (codes == code).any():
            raise DataError(
                f"domain {domain.name!r} has {n} samples, of which the random split leaves none "
                f"for {name} ({getattr(rule, name):g}); raise that fraction, or set it to 0"
            )
    return codes


def _carve(codes: Codes, labels: np.ndarray, val: float, rng: np.random.Generator) -> None:
    """Turn ``val`` of the training rows into validation rows, in place, classes in proportion.

    The total is the rounded fraction, at least one row. Each class gives the whole part of its
    fraction; the rows still missing come from the classes with the largest remainders, and from a
    class with a single row only if no other is left.
    """
    rows = np.flatnonzero(codes == TRAIN)
    if not val or len(rows) < 2:
        return
    kinds, of, counts = np.unique(labels[rows], return_inverse=True, return_counts=True)
    exact = counts * val  # (K,)
    take = np.floor(exact).astype(int)
    order = np.argsort(np.where(counts == 1, 1.0, take - exact), kind="stable")
    take[order[: max(1, round(len(rows) * val)) - take.sum()]] += 1
    for k in range(len(kinds)):
        codes[rng.permutation(rows[of == k])[: take[k]]] = VAL


def _per_class(rule: PerClass, labels: np.ndarray, rng: np.random.Generator) -> Codes:
    """Rounded fractions of each class; at least one row of every class stays for training."""
    codes = np.zeros(len(labels), np.uint8)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        held = min(round(len(rows) * (rule.val + rule.test)), len(rows) - 1)
        codes[rows[:held]] = VAL
        codes[rows[: min(held, round(len(rows) * rule.test))]] = TEST
    return codes
