"""Two kinds of federation for identities: quadratics with a closed form, and the tiny images."""

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

BOWLS = {  # curvature a (2,), minimum b (2,), training samples
    "left": ((1.0, 2.0), (3.0, -2.0), 4),
    "right": ((4.0, 0.5), (-1.0, 1.0), 4),
    "far": ((2.0, 1.0), (5.0, 4.0), 12),
}
START = np.array([0.5, -0.25])


@register_dataset("bowls")
def bowls_data():
    """Every sample of a client is its (a, b), so any batch gives the full gradient."""
    out = {}
    for name, (a, b, n) in BOWLS.items():
        x = torch.tensor([*a, *b]).repeat(n + 2, 1)
        split = torch.tensor([0] * n + [1, 2], dtype=torch.uint8)
        out[name] = Domain(name, x, torch.zeros(n + 2, dtype=torch.int64), split, ("a", "b"))
    return out


class Bowl(nn.Module):
    """Holds w; its logits are constant, so the task loss has no say."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(START, dtype=torch.float32))

    def forward(self, x):
        return torch.zeros(len(x), 2)


@register_backbone("bowl")
def bowl(shape, classes):
    modules = {"bowl": Bowl(), "head": nn.Identity()}
    return Net(modules, stages={"bowl": ("bowl",)}, head="head", shape=shape, classes=classes)


@dataclass(frozen=True)
class Quadratic(Part):
    """F_k(w) = 1/2 sum_i a_i (w_i - b_i)^2."""

    def loss(self, client, step):
        a, b = step.batch.x.chunk(2, dim=1)  # (B, 2) each
        return 0.5 * (a * (client.net.get_parameter("bowl.w") - b).square()).sum(1).mean()


def start_bowls(*parts, aggregate=None, domains=("left", "right"), **changes):
    """A federation of quadratics before round 1, one client per name, ``name-0``."""
    given = {"rounds": 3, "steps": 3, "lr": 0.1, "evaluate_every": 100, "partition": PerDomain()}
    return start(
        Method((Quadratic(), *parts), aggregate or Mean()),
        data="bowls",
        domains=domains,
        unseen=None,
        protocols=("personal",),
        backbone="bowl",
        backbone_options={},
        **given | changes,
    )


@pytest.fixture
def bowls():
    """Quadratics: ``start``, the curvatures ``a``, the minima ``b``, and the first ``w``."""
    return SimpleNamespace(
        start=start_bowls,
        a={name: np.array(a) for name, (a, _, _) in BOWLS.items()},
        b={name: np.array(b) for name, (_, b, _) in BOWLS.items()},
        w=START,
    )


@pytest.fixture
def state_of():
    """What one client keeps for one part: ``state_of(session, client, part)``."""

    def find(session, client, part):
        return worker(session).store.load(client, before=session.server.round + 1)[part]

    return find


@pytest.fixture
def open_client():
    """A client as parts see it when its visit begins: ``open_client(session, id)``."""

    def find(session, client, state=None):
        messages = session.server.broadcast("train", client)
        kept = defaultdict(dict, state or {})
        return worker(session)._open(messages, kept)

    return find


@pytest.fixture
def replies():
    """Training updates of one round, sorted by client: ``replies(session, round)``."""

    def find(session, round_):
        seen = [m for m in session.transport.seen if m.task == "train" and m.round == round_]
        return sorted((m for m in seen if hasattr(m, "steps")), key=lambda u: u.client)

    return find


@pytest.fixture
def same():
    """Two trees hold the same bits under the same names."""

    def compare(a, b):
        assert a.keys() == b.keys()
        odd = [k for k in a if not torch.equal(a[k], b[k])]
        assert not odd, f"{odd} differ"

    return compare
