"""Which tensors travel: FedPer, LG-FedAvg, Local, and the empty private scope."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedshift.core.message import Broadcast
from fedshift.core.method import Method
from fedshift.core.net import Scope
from fedshift.core.part import Part
from fedshift.methods.fedper import PrivateHead
from fedshift.testing import play, start, worker

HEAD = {"head.weight", "head.bias"}


def travelled(session):
    """The sets of entries that training messages carried, in both directions."""
    return {
        (type(m), frozenset(m.shared) | frozenset(m.personal))
        for m in session.transport.seen
        if m.task == "train"
    }


@pytest.mark.parametrize(
    ("method", "private"), [("fedper", True), ("fedrep", True), ("lg-fedavg", False)]
)
def test_the_head_or_all_but_the_head_travels(method, private):
    session = play(start(method), 1)
    everything = set(session.server.net.state_dict())
    expected = frozenset(everything - HEAD if private else HEAD)
    assert {keys for _, keys in travelled(session)} == {expected}


def test_lg_fedavg_averages_the_heads(replies):
    session = play(start("lg-fedavg"), 1)
    rows = replies(session, 1)
    n = np.array([u.examples for u in rows])
    for key in HEAD:
        stack = np.stack([u.shared[key].numpy() for u in rows])
        mean = np.tensordot(n / n.sum(), stack, axes=1)
        np.testing.assert_allclose(session.server.shared[key], mean, rtol=1e-5, atol=1e-7)


def test_in_local_no_tensor_travels():
    session = play(start("local"))
    assert any(isinstance(m, Broadcast) for m in session.transport.seen)
    for message in session.transport.seen:
        assert not message.shared | message.personal | message.payload


def test_local_is_a_site_training_alone(same, state_of):
    """The same tensors as a federation of one client under FedAvg, round after round."""
    pooled = {"domains": ("dark",), "unseen": None, "protocols": ("personal",)}
    session = play(start("local"))
    alone = start("fedavg", **pooled)
    alone.server.roster = {"dark-0": alone.server.roster["dark-0"]}
    alone.server.sites = ("dark-0",)  # nobody else is asked to enrol
    same(play(alone).server.shared, state_of(session, "dark-0", "net"))


@dataclass(frozen=True)
class NothingPrivate(Part):
    """A scope that names no entry."""

    def scope(self, net):
        return {}


def test_an_empty_private_scope_is_fedavg(same):
    fedavg, empty = play(start("fedavg"), 2), play(start(Method((NothingPrivate(),))), 2)
    same(fedavg.server.shared, empty.server.shared)


def test_a_private_head_is_trained_on_from_its_last_value(state_of, replies):
    """Before the first visit the common start; then what the last visit left."""
    session = play(start("fedper", lr=1e-12), 2)  # so small a rate moves no bit
    initial = worker(session).initial
    for client in session.server.roster:
        for key in HEAD:
            assert torch.equal(state_of(session, client, "net")[key], initial[key])
    moving = play(start("fedper"), 1)
    site = worker(moving)
    kept = state_of(moving, "dark-0", "net")
    client = site._open(
        moving.server.broadcast("train", "dark-0"), site.store.load("dark-0", before=2)
    )
    for key in HEAD:
        assert torch.equal(client.received[key], kept[key])
        assert torch.equal(client.net.state_dict()[key], kept[key])


def test_two_scopes_add_up():
    assert not start("fedper + lg-fedavg").server.shared


@dataclass(frozen=True)
class PersonalBias(Part):
    """Would upload what FedPer keeps at home."""

    def scope(self, net):
        return {"head.bias": Scope.PERSONAL, "head.weight": Scope.SHARED}


@pytest.mark.parametrize("order", [1, -1])
def test_the_most_private_scope_wins(order):
    parts = (PrivateHead(), PersonalBias())[::order]
    scopes = start(Method(parts)).server.scopes
    assert {k for k, s in scopes.items() if s is Scope.PRIVATE} == HEAD
