"""fedshift: FedAvg as a run plays it, in process or in a pool of two worker processes.

Every client is a domain of its own, so that it holds exactly the rows that the peers' client has.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import common
import torch
from protocol import given, serve
from safetensors.torch import save_file
from torch import Tensor
from work import HELD_OUT, LR, WORKS, Work, build, floats, stored

from fedshift.base.process import one_thread, tune_process
from fedshift.core.config import configure
from fedshift.core.scenario import Scenario
from fedshift.data.registry import register_dataset
from fedshift.data.samples import Domain
from fedshift.engine.build import build_net
from fedshift.engine.federation import federate
from fedshift.engine.round import play_round
from fedshift.experiment.session import Options, Session, prepare


def domain(work: Work, client: int) -> Domain:
    """A client's training rows; the held-out ones come after them, as validation and test."""
    own, held_out = stored(work, client), stored(work, work.clients)
    x, y = (torch.cat(pair) for pair in zip(own, held_out, strict=True))
    split = torch.zeros(len(y), dtype=torch.uint8)
    split[-HELD_OUT:] = 1
    split[-HELD_OUT // 2 :] = 2
    return Domain(f"c{client}", x, y, split, tuple(map(str, range(work.classes))))


def scenario(work: Work) -> Scenario:
    """The work as fedshift states it."""
    name = f"peers-{work.name}"

    @register_dataset(name)
    def data() -> dict[str, Domain]:
        return {f"c{client}": domain(work, client) for client in range(work.clients)}

    return Scenario(
        name=name,
        data=name,
        domains=tuple(f"c{client}" for client in range(work.clients)),
        pixels="unit",
        backbone=work.backbone,
        rounds=10_000,
        steps=work.steps,
        batch_size=work.batch,
        lr=LR,
        protocols=("global",),
    )


def export(work: Work, path: Path) -> None:
    """Write the weights that a run starts from, once the copied work and net prove the same."""
    for other in common.WORKS:
        if other.name == work.name and not asdict(work).items() <= asdict(other).items():
            raise SystemExit(f"work {work.name} is not that of common.py, {other}; copy it again")
    config, method = configure("fedavg", scenario(work))
    net = build_net(config, method, federate(config.scenario, config.seed)).eval()
    weights = {
        k: v.clone(memory_format=torch.contiguous_format) for k, v in net.state_dict().items()
    }
    x, _ = floats(work, 0)
    with torch.no_grad():
        for training in (False, True):
            ours, copied = net.train(training), build(work, weights).train(training)
            torch.testing.assert_close(copied(x[:32]), ours(x[:32]).logits, rtol=1e-4, atol=1e-5)
            net.load_state_dict(weights)
    save_file(weights, path)


def open_session(work: Work, transport: str) -> Session:
    """A run before round 1."""
    config, method = configure("fedavg", scenario(work))
    return prepare(config, method, None, Options(transport=transport, workers=2))


def require_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """The run must start from the weights that the peers have."""
    if found.keys() != expected.keys() or any(
        not torch.equal(value, expected[key]) for key, value in found.items()
    ):
        raise SystemExit("the run's initial weights are not those of the file; export them again")


def main() -> None:
    """Play rounds; ``pool`` on the command line takes two workers."""
    work, weights = given()
    tune_process()
    with one_thread():
        session = open_session(work, "pool" if "pool" in sys.argv else "inprocess")
        server = session.server
        require_same(dict(server.shared), weights)
        serve(
            work,
            lambda: play_round(server, session.transport, session.record),
            lambda: server.shared,
        )
        session.transport.close()


if __name__ == "__main__":
    if "export" in sys.argv:
        export(WORKS[sys.argv[1]], Path(sys.argv[2]))
    else:
        main()
