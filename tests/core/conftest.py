"""What the core tests share: a quadratic with a closed form, and a look into messages."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedshift.core.aggregate import Mean
from fedshift.core.method import Method
from fedshift.core.net import Net
from fedshift.core.part import Part
from fedshift.core.registry import register_backbone
from fedshift.data.dealing.partitions import PerDomain
from fedshift.data.registry import register_dataset
from fedshift.data.samples import Domain
from fedshift.testing import start, worker

A, B, START = np.array([1.0, 3.0]), np.array([2.0, -1.0]), np.array([0.5, 0.25])


@register_dataset("valley")
def valley_data():
    """Six equal samples (a, b), so any batch gives the full gradient."""
    x = torch.tensor([*A, *B], dtype=torch.float32).repeat(8, 1)
    split = torch.tensor([0, 0, 0, 0, 0, 0, 1, 2], dtype=torch.uint8)
    return {"only": Domain("only", x, torch.zeros(8, dtype=torch.int64), split, ("a", "b"))}


class Valley(nn.Module):
    """Holds w; its logits are constant, so the task loss has no say."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(START, dtype=torch.float32))

    def forward(self, x):
        return torch.zeros(len(x), 2)


@register_backbone("valley")
def valley_net(shape, classes):
    modules = {"valley": Valley(), "head": nn.Identity()}
    return Net(modules, stages={"valley": ("valley",)}, head="head", shape=shape, classes=classes)


@dataclass(frozen=True)
class Slope(Part):
    """F(w) = 1/2 sum_i a_i (w_i - b_i)^2."""

    def loss(self, client, step):
        a, b = step.batch.x.chunk(2, dim=1)  # (B, 2) each
        return 0.5 * (a * (client.net.get_parameter("valley.w") - b).square()).sum(1).mean()


def start_valley(*parts, **changes):
    """One client on one quadratic, before round 1."""
    given = {"rounds": 4, "steps": 3, "lr": 0.1, "batch_size": 2, "evaluate_every": 100} | changes
    return start(
        Method((Slope(), *parts), Mean()),
        data="valley",
        domains=("only",),
        unseen=None,
        protocols=("personal",),
        partition=PerDomain(),
        backbone="valley",
        backbone_options={},
        **given,
    )


@pytest.fixture
def valley():
    """The quadratic: ``start``, the gradient ``slope(w)``, and the first ``w``."""
    return SimpleNamespace(start=start_valley, slope=lambda w: A * (w - B), w=START)


@pytest.fixture
def open_client():
    """A client as parts see it when its visit begins: ``open_client(session, id)``."""

    def find(session, client):
        return worker(session)._open(session.server.broadcast("train", client), defaultdict(dict))

    return find


@pytest.fixture
def sent():
    """Broadcasts of one round, by client: ``sent(session, round, task)``."""

    def find(session, round_, task="train"):
        seen = [m for m in session.transport.seen if m.task == task and m.round == round_]
        return {m.client: m for m in seen if not hasattr(m, "steps")}

    return find


@pytest.fixture
def replies():
    """Updates of one round, by client in order: ``replies(session, round, task)``."""

    def find(session, round_, task="train"):
        seen = [m for m in session.transport.seen if m.task == task and m.round == round_]
        return {m.client: m for m in sorted(seen, key=lambda m: m.client) if hasattr(m, "steps")}

    return find


@pytest.fixture
def same_bits():
    """Two trees hold the same bits under the same names."""

    def compare(a, b):
        assert a.keys() == b.keys()
        odd = [k for k in a if not torch.equal(a[k], b[k])]
        assert not odd, f"{odd} differ"

    return compare
