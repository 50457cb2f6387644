"""Whether adapting a model to a site may have hurt it, judged without a label.

``adapt`` calls :func:`judge` with what the model says of the site's inputs before and after, and
with what it says after BatchNorm re-estimation alone, which serves as a second opinion. The
thresholds were chosen on other seeds than those of docs/tables/adapt.md. Labels must never come
here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift.base.tree import Tree
from fedshift.core.net import Net

FEW = 32  # inputs below which statistics of a site are unsure
COLLAPSED = 0.6  # of the classes predicted before: fewer are left after
CHANGED = 0.6  # share of predictions that are other ones
AGREES_LESS = 0.05  # loss of agreement with the second opinion
LESS_SURE = 0.05  # loss of mean confidence
ALIKE = 0.1  # shift in deviations below which a site looks like the training data
ONE = 0.1  # of the way from one class to all of them: fewer are predicted
NARROWER = 0.9  # of the classes predicted before: fewer are left after
FEW_CLASSES = 0.5  # of the model's classes: fewer are predicted, before and after


@dataclass(frozen=True)
class Signals:
    """What can be seen without labels; None where it is not known or not defined."""

    samples: int
    outputs: int = 0  # classes of the model
    classes: tuple[float, float] | None = None  # effective number predicted, before and after
    confidence: tuple[float, float] | None = None  # mean of the largest probability
    changed: float | None = None  # share of predictions that are other ones
    agreement: tuple[float, float] | None = None  # with the second opinion, before and after
    shift: float | None = None  # of the inputs of BatchNorm, in deviations

    def to_json(self) -> dict[str, Any]:
        """All of them."""
        return asdict(self)


@dataclass(frozen=True)
class Judgement:
    """Why not to use the adapted model, if so; what to be wary of; what else there is to say."""

    signals: Signals
    collapse: str = ""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def warned(self) -> bool:
        """Whether there is any reason to doubt the adapted model."""
        return bool(self.collapse or self.warnings)

    def to_json(self) -> dict[str, Any]:
        """Signals, reasons, warnings."""
        return asdict(self)


def signals_of(
    before: Tensor, after: Tensor, second: Tensor | None, shift: float | None
) -> Signals:
    """Signals from logits (n, K) of the same inputs; ``second`` after BatchNorm alone."""
    a, b = before.argmax(1), after.argmax(1)
    agreement = None if second is None else tuple(_share(one == second.argmax(1)) for one in (a, b))
    return Signals(
        len(before),
        before.shape[1],
        (effective_classes(before), effective_classes(after)),
        (_confidence(before), _confidence(after)),
        _share(a != b),
        agreement,  # type: ignore[arg-type]  # a pair
        shift,
    )


def effective_classes(logits: Tensor) -> float:
    """Exponential of the entropy of the predicted classes: K if all are as frequent, 1 if one is.

    >>> effective_classes(torch.eye(4)), effective_classes(torch.eye(4)[:1])
    (4.0, 1.0)
    """
    p = torch.bincount(logits.argmax(1)).double() / len(logits)
    return round(math.exp(float(torch.special.entr(p).sum())), 9)


def _confidence(logits: Tensor) -> float:
    return float(logits.double().softmax(1).amax(1).mean())


def _share(which: Tensor) -> float:
    return float(which.double().mean())


def batch_norm_shift(net: Net, before: Mapping[str, Tensor], after: Tree) -> float | None:
    """How far BatchNorm statistics moved: mean over layers of the root mean square, over channels.

    Of (m' - m) / sqrt(v), with the statistics m, v before and m' after; None without BatchNorm.
    """
    found = []
    for path, module in net.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            mean, var = (before[f"{path}.running_{k}"].double() for k in ("mean", "var"))
            moved = after[f"{path}.running_mean"].double() - mean
            found.append(float((moved.square() / var.clamp(min=1e-12)).mean().sqrt()))
    return sum(found) / len(found) if found else None


def judge(seen: Signals, sites: Sequence[str] = ()) -> Judgement:
    """The stated rule: one collapse test, eight warnings, one note.

    ``sites`` are those that the data name if they are of several: what suits all of them together
    may suit none.
    """
    collapse = ""
    if seen.classes is not None and seen.classes[1] < COLLAPSED * seen.classes[0]:
        collapse = (
            f"predictions collapse: as if of {seen.classes[1]:.1f} classes instead of "
            f"{seen.classes[0]:.1f}"
        )
    return Judgement(seen, collapse, (*_mixed(sites), *_warnings(seen)), tuple(_notes(seen)))


def _mixed(sites: Sequence[str]) -> list[str]:
    if len(sites) < 2:
        return []
    some = ", ".join(sites[:5]) + (", ..." if len(sites) > 5 else "")
    return [f"the data are of {len(sites)} sites ({some}); adapt to one at a time"]


def _warnings(seen: Signals) -> list[str]:
    found = [] if seen.classes is None else _of_classes(seen.outputs, *seen.classes)
    if seen.samples < FEW:
        found.append(f"{seen.samples} inputs are few to adapt to; {FEW} or more are better")
    if seen.changed is not None and seen.changed > CHANGED:
        found.append(f"{100 * seen.changed:.0f} % of the predictions are other ones than before")
    if seen.agreement is not None and seen.agreement[1] < seen.agreement[0] - AGREES_LESS:
        before, after = (100 * one for one in seen.agreement)
        found.append(
            "it moves away from what BatchNorm re-estimation alone predicts: the same class for "
            f"{after:.0f} % of the inputs, {before:.0f} % before"
        )
    if seen.confidence is not None and seen.confidence[1] < seen.confidence[0] - LESS_SURE:
        before, after = seen.confidence
        found.append(f"it is less sure than before: mean confidence {before:.2f} -> {after:.2f}")
    return found


def _of_classes(outputs: int, before: float, after: float) -> list[str]:
    """What the effective number of predicted classes says."""
    if after < 1 + ONE * (outputs - 1):
        return [f"nearly all inputs are said to be of one class, of {outputs}"]
    found = []
    if COLLAPSED * before <= after < NARROWER * before:
        found.append(
            f"predictions are of fewer classes: as if of {after:.1f} instead of {before:.1f}"
        )
    if max(before, after) < FEW_CLASSES * outputs:
        found.append(
            f"predictions are as if of {after:.1f} of {outputs} classes: the model hardly works "
            "here, or the site has few classes; both mislead adapting"
        )
    return found


def _notes(seen: Signals) -> list[str]:
    if seen.shift is None or seen.shift >= ALIKE:
        return []
    return [
        f"the inputs look like the training data (shift {seen.shift:.2f} deviations), so there is "
        "little to gain"
    ]
