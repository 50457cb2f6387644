"""Flower's simulation: FedAvg of the Message API on Ray, two actors of one thread each.

Timed inside the ServerApp: from the call of ``Strategy.start`` for one round to the end of its
``aggregate_train``, so that the (empty) evaluation that follows does not count. Actors keep data
and net over messages, as Flower's tutorials do with their data.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from protocol import Line, State, given
from torch import nn
from work import LR, WORKS, Work, blank, floats

client_app = ClientApp()
server_app = ServerApp()
net = cache(blank)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One visit."""
    torch.set_num_threads(1)
    work = WORKS[str(message.content["config"]["work"])]
    model = net(work)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    epoch(model.train(), work, int(context.node_config["partition-id"]))
    reply = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": work.rows}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


def epoch(model: nn.Module, work: Work, client: int) -> None:
    """Train on all rows once."""
    x, y = floats(work, client)
    optimiser = torch.optim.SGD(model.parameters(), LR)
    for rows in torch.randperm(work.rows).split(work.batch):
        optimiser.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()


class Timed(FedAvg):
    """FedAvg that notes when it has aggregated."""

    ended = 0.0

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As FedAvg does it."""
        out = super().aggregate_train(server_round, replies)
        self.ended = time.perf_counter()
        return out


@server_app.main()
def serve(grid: Grid, _: Context) -> None:
    """Play rounds on command."""
    work, weights = given()
    arrays = ArrayRecord(weights)
    strategy = Timed(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=work.clients,
        min_available_nodes=work.clients,
    )

    def model() -> State:
        return arrays.to_torch_state_dict()  # of other arrays after each round

    line = Line(work, model)
    line.say("ready")
    config = ConfigRecord({"work": work.name})
    while line.next_round():
        arrays = strategy.start(grid, arrays, num_rounds=1, train_config=config).arrays
        line.round_done(strategy.ended)


def main() -> None:
    """Hand control to Flower."""
    work, _ = given()
    run_simulation(
        server_app,
        client_app,
        num_supernodes=work.clients,
        backend_config={
            "init_args": {"num_cpus": 2, "log_to_driver": False, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    from flower_sim import main as imported  # Ray must find the apps in a module, not in a script

    imported()
