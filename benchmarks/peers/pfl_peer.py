"""pfl: SimulatedBackend and FederatedAveraging; one process, or two under torchrun.

Timed from inside: pfl's loop calls us after each central iteration; there we wait for the next
command (both processes do, at a barrier). Nothing is evaluated but in the first round, which is
part of the warm-up (pfl always evaluates iteration 0). pfl aggregates parameters only:
running statistics of BatchNorm stay those of the last client of the first process.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import distributed
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from protocol import Line, given
from torch import Tensor, nn
from work import LR, Work, build, floats


class Model(nn.Module):
    """What pfl asks of a module: a loss and metrics."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Of one batch, to train on."""
        self.train()
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Of one batch, to look at."""
        self.eval()
        with torch.no_grad():
            loss = float(F.cross_entropy(self.net(x), y))
        return {"loss": Weighted(loss * len(y), len(y))}


class Pause(TrainingProcessCallback):
    """Wait for a command between two rounds; the first process listens for both."""

    def __init__(self, line: Line | None) -> None:
        self.line = line

    def _wait(self) -> bool:
        more = torch.tensor(int(self.line.next_round()) if self.line else 0)
        if distributed.world_size > 1:
            torch.distributed.broadcast(more, 0)
        return bool(more)

    def on_train_begin(self, **_: object) -> Metrics:
        """Before round 1."""
        if self.line:
            self.line.say("ready")
        self._wait()
        return Metrics()

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        """After the aggregation; True stops."""
        if self.line:
            self.line.round_done()
        return not self._wait(), Metrics()


def federation(work: Work) -> FederatedDataset:
    """Every client once per round."""
    users = {k: Dataset(floats(work, k), user_id=str(k)) for k in range(work.clients)}
    return FederatedDataset(users.get, get_user_sampler("minimize_reuse", list(users)))


def main() -> None:
    """Hand control to pfl."""
    work, weights = given()
    net = build(work, weights)
    module = Model(net)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    line = Line(work, net.state_dict) if distributed.global_rank == 0 else None
    rounds = 10_000
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=work.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(federation(work), None, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=work.batch),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Pause(line)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
