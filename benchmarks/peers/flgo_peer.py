"""FLGo: its FedAvg on a task of ready-made clients, one process (``num_parallels=1``).

Timed from inside: FLGo asks whether to go on before each round; there we wait for the next
command. Nothing is evaluated (``eval_interval=-1``).
"""

from __future__ import annotations

import os
import sys
import tempfile
from functools import cache
from pathlib import Path

import flgo
import torch
import torch.nn.functional as F
from flgo.algorithm import fedavg
from protocol import Line, State, given
from torch import Tensor, nn
from torch.utils.data import BatchSampler, RandomSampler, TensorDataset
from torch.utils.data import DataLoader as Loader
from work import LR, blank, floats

CONFIG = """\
from flgo_peer import DataLoader, clients, compute_loss, data_to_device, evaluate, get_model
train_data, eval = clients(), evaluate
"""
asked = cache(given)


def clients() -> list[TensorDataset]:
    """One data set each."""
    work, _ = asked()
    return [TensorDataset(*floats(work, k)) for k in range(work.clients)]


def get_model() -> nn.Module:
    """What FLGo builds anew for each aggregation."""
    return blank(asked()[0])


def data_to_device(batch: list[Tensor], device: torch.device) -> list[Tensor]:
    """FLGo's hook; the device is the processor."""
    return [tensor.to(device) for tensor in batch]


def compute_loss(model: nn.Module, batch: list[Tensor], device: torch.device) -> dict[str, Tensor]:
    """FLGo's hook."""
    x, y = data_to_device(batch, device)
    return {"loss": F.cross_entropy(model(x), y)}


def evaluate(model: nn.Module, loader: Loader, device: torch.device) -> dict[str, float]:
    """FLGo's hook, never called."""
    raise NotImplementedError


def DataLoader(rows: TensorDataset, batch_size: int, **_: object) -> Loader:  # noqa: N802
    """Whole batches by index: faster than row by row."""
    order = BatchSampler(RandomSampler(rows), int(batch_size), drop_last=False)
    return Loader(rows, sampler=order, batch_size=None)


class Server(fedavg.Server):
    """FLGo's FedAvg; where it asks whether to go on, we wait for the next command."""

    def _if_exit(self) -> bool:
        if self.current_round > 1:
            LINE[0].round_done()
        return not LINE[0].next_round()


Client = fedavg.Client
LINE: list[Line] = []  # of the process, not of the server, which FLGo pickles for its workers


def options() -> dict[str, object]:
    """Of FLGo."""
    work, _ = asked()
    parallel = [word for word in ("threads", "processes") if word in sys.argv]
    return {
        "num_rounds": 10_000,
        "num_epochs": 1,
        "batch_size": work.batch,
        "learning_rate": LR,
        "sample": "full",
        "aggregate": "uniform",
        "proportion": 1.0,
        "train_holdout": 0.0,
        "eval_interval": -1,
        "num_parallels": 2 if parallel else 1,
        "parallel_type": parallel[0][0] if parallel else "",
        "log_level": "ERROR",
        "no_log_console": True,
        "no_tqdm": True,
    }


def main() -> None:
    """Hand control to FLGo."""
    work, weights = asked()
    config = Path("flgo_config.py")
    config.write_text(CONFIG)
    task = flgo.gen_direct_task_from_file("task", str(config))
    runner = flgo.init(task, sys.modules[__name__], options())
    runner.model.model.load_state_dict(weights)

    def model() -> State:
        return runner.model.model.state_dict()  # of another object after each round

    LINE.append(Line(work, model))
    LINE[0].say("ready")
    runner.run()


if __name__ == "__main__":
    from flgo_peer import main as imported  # FLGo's copy of the task imports this module

    with tempfile.TemporaryDirectory() as folder:
        sys.argv[2] = str(Path(sys.argv[2]).resolve())
        os.chdir(folder)
        sys.path.append(folder)
        imported()
