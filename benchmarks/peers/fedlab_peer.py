"""FedLab: its standalone mode, SyncServerHandler and the serial trainer in one process.

A round is one turn of ``StandalonePipeline.main``. FedLab sends parameters only: running
statistics of BatchNorm are never aggregated, the server's model keeps the initial ones.
"""

from __future__ import annotations

import importlib
import logging
import sys

import torch
from protocol import Line, given
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from work import LR, Work, build, floats

try:
    importlib.import_module("torchvision")  # FedLab imports it, for data sets that we do not use
except RuntimeError:  # PyPI's wheel looks for operators that a processor-only torch lacks
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    lacking = torch.library.Library("torchvision", "DEF")
    lacking.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    lacking.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.core.standalone import StandalonePipeline


class Clients:
    """What FedLab asks of a federated data set."""

    def __init__(self, work: Work) -> None:
        self.data = [TensorDataset(*floats(work, k)) for k in range(work.clients)]

    def get_dataloader(self, client: int, batch_size: int) -> DataLoader:
        """Whole batches by index: faster than row by row."""
        rows = self.data[client]
        order = BatchSampler(RandomSampler(rows), batch_size, drop_last=False)
        return DataLoader(rows, sampler=order, batch_size=None)


class Pipeline(StandalonePipeline):
    """Where FedLab evaluates, between two rounds, we wait for the next command."""

    line: Line

    def main(self) -> None:
        """Wait before round 1 as well."""
        self.line.say("ready")
        if self.line.next_round():
            super().main()

    def evaluate(self) -> None:
        """After the aggregation."""
        self.line.round_done()
        if not self.line.next_round():
            self.handler.global_round = self.handler.round


def main() -> None:
    """Hand control to FedLab."""
    work, weights = given()
    net = build(work, weights)
    handler = FedAvgServerHandler(net, global_round=10_000, sample_ratio=1.0)
    trainer = FedAvgSerialClientTrainer(net, work.clients)
    logging.getLogger().setLevel(logging.WARNING)
    trainer.setup_dataset(Clients(work))
    trainer.setup_optim(1, work.batch, LR)
    trainer.num_clients = work.clients
    pipeline = Pipeline(handler, trainer)
    pipeline.line = Line(work, handler.model.state_dict)
    pipeline.main()


if __name__ == "__main__":
    main()
