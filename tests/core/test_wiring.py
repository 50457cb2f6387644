"""What a scenario says about data reaches the clients, and only where it should."""

from __future__ import annotations

import pytest
import torch

from fedshift.base.errors import DataError
from fedshift.core.method import Method
from fedshift.core.part import Part
from fedshift.data.dealing.label_skew import SequentialDirichlet
from fedshift.data.dealing.splits import AllTest, Given
from fedshift.engine import federation
from fedshift.resources.public import public_samples
from fedshift.testing import start, tiny, tiny_scenario, worker

SEEN: list[torch.Tensor] = []


class Witness(Part):
    """Keeps the inputs that are trained on."""

    def batch(self, client, batch):
        SEEN.append(batch.x.clone())
        return batch


def inputs(**changes) -> list[torch.Tensor]:
    """Training batches of the first client's first visit."""
    SEEN.clear()
    session = start(Method((Witness(),)), **changes)
    worker(session).visit(session.server.broadcast("train", "dark-0"))
    return list(SEEN)


def test_augmentation_changes_the_inputs_of_training_and_follows_the_seed():
    plain, cropped, again = inputs(), inputs(augment="f2dc-digits"), inputs(augment="f2dc-digits")
    assert len(plain) == len(cropped)
    assert any(not torch.equal(a, b) for a, b in zip(plain, cropped, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(cropped, again, strict=True))
    other = inputs(augment="f2dc-digits", seed=1)
    assert any(not torch.equal(a, b) for a, b in zip(cropped, other, strict=True))


def test_augmentation_leaves_scored_inputs_alone():
    plain, cropped = start("fedavg"), start("fedavg", augment="f2dc-digits")
    left, right = (s.federation.sites["dark-0"].data.test.chunks() for s in (plain, cropped))
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a[0], b[0])


def test_the_unseen_domain_may_have_a_split_of_its_own():
    made = federation.federate(tiny_scenario(unseen_split=AllTest()), 0)
    assert (len(made.unseen.train), len(made.unseen.test)) == (0, 40)
    assert len(made.unseen.inputs) == 40
    assert all(len(domain.train) for domain in made.domains.values())


def test_looks_of_the_same_rows_are_split_alike(monkeypatch):
    one = tiny()["dark"]
    bare = one.__class__("", one.x, one.y, one.split.clamp(max=1) * 2, one.classes)  # no val rows
    looks = {n: one.__class__(n, bare.x, bare.y, bare.split, bare.classes) for n in ("a", "b")}
    monkeypatch.setattr(federation, "load", lambda *_: looks)
    scenario = tiny_scenario(
        domains=("a", "b"),
        unseen=None,
        protocols=("global",),
        split=Given(val=0.3),
        partition=SequentialDirichlet(clients=2, within="aligned"),
    )
    made = federation.federate(scenario, 0)
    assert torch.equal(made.domains["a"].train.rows, made.domains["b"].train.rows)
    held = [set(site.data.train.rows.tolist()) for site in made.sites.values()]
    assert not held[0] & held[1]


def test_a_public_set_reaches_both_sides_only_where_it_is_granted():
    session = start("fedavg", public="tiny", allow=("client_val", "public_set"))
    rows = sum(len(domain.y) for domain in tiny().values())
    for found in (session.server.resources, worker(session).resources):
        assert len(found["public_set"]) == rows
        assert next(found["public_set"].chunks())[0].shape[1:] == (3, 8, 8)
    assert "public_set" not in worker(start("fedavg", public="tiny")).resources


def test_a_public_set_of_another_shape_is_refused():
    with pytest.raises(DataError, match=r"public set 'digits' has inputs of shape .* take one"):
        public_samples("digits", tiny_scenario(), (3, 8, 8))
