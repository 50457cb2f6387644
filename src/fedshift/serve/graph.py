"""A trained model as one module: raw inputs in, outputs and probabilities out.

``export`` traces it, ``quantise`` and the parity check compare against it. Images come as they are
stored (uint8, channels first) and are scaled in here, so that whoever runs an exported file cannot
scale them differently. The method's own ``predict`` decides, with a site's entries and the state of
the method's parts, as when the model was scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedshift.core.objective import MultiLabel, Regression
from fedshift.data.samples import as_input
from fedshift.experiment.models import Model

DECIDING = (torch.equal, Tensor.__bool__)


class Decisions(TorchFunctionMode):
    """Replays how a method's ``predict`` decided on values that it keeps, such as FedExP's.

    A tracer has no values, so ``torch.equal`` and ``if tensor`` fail under it. They depend on
    entries and state, never on inputs: ``answers`` is filled by a call with real tensors, and
    repeated while the graph is traced. The parity check would show a decision that does depend.
    """

    def __init__(self, answers: list[bool] | None = None) -> None:
        super().__init__()
        self.known = None if answers is None else iter(answers)
        self.answers: list[bool] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer from the record, or call and record."""
        if func not in DECIDING:
            return func(*args, **(kwargs or {}))
        found = func(*args, **(kwargs or {})) if self.known is None else next(self.known)
        self.answers.append(bool(found))
        return found


class Graph(nn.Module):
    """What is exported of a model.

    Images are (N, C, H, W) uint8 in the size of the training images; tables the prepared rows,
    (N, D) float32. Returns the outputs (N, K) and the probabilities (N, K); of a regression the
    outputs and the number (N, 1) in the target's unit.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = model.net
        self.model = model
        self.answers: list[bool] | None = None
        self.temperature = 1.0  # by which logits are divided before they become probabilities
        self.task = model.config.scenario.task

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return self.net.shape

    @property
    def images(self) -> bool:
        """Whether inputs are images."""
        return len(self.shape) == 3

    @property
    def outputs(self) -> tuple[str, str]:
        """Names of both outputs."""
        return ("raw", "value") if isinstance(self.task, Regression) else LOGITS

    def settle(self, x: Tensor) -> None:
        """Record the method's decisions on real inputs, before a tracer has none; in place."""
        self.answers = None
        with torch.no_grad(), Decisions() as decisions:
            self(x)
        self.answers = decisions.answers

    def scaled(self, x: Tensor) -> Tensor:
        """Raw inputs as those of the net; stored images are channels-last, hence the turn."""
        if not self.images:
            return x
        return as_input(x.permute(0, 2, 3, 1), self.model.config.scenario.pixels)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and probabilities of raw inputs."""
        x = self.scaled(x)
        if self.answers is None:
            out = self.model.method.predict(self.net, self.model.scoring, x)
        else:
            with Decisions(self.answers):
                out = self.model.method.predict(self.net, self.model.scoring, x)
        if isinstance(self.task, Regression):
            return out, out * self.task.scale + self.task.shift
        if isinstance(self.task, MultiLabel):
            return out, out.sigmoid()
        cooled = out if self.temperature == 1.0 else out / self.temperature
        return out, cooled.softmax(1)


LOGITS = ("logits", "probabilities")
