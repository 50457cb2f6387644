"""Collins et al., ICML 2021, Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from fedshift.base import tree
from fedshift.core.part import Part
from fedshift.core.registry import build
from fedshift.testing import play, start


@dataclass(frozen=True)
class Diary(Part):
    """Notes who moved and what the net was, before each optimiser step."""

    pages: ClassVar[list] = []

    def edit_gradients(self, client, step):
        graded = {k for k, p in client.net.named_parameters() if p.grad is not None}
        now = tree.clone(dict(client.net.named_parameters()))
        self.pages.append((client.id, step.player, graded, now))


@pytest.fixture
def pages():
    Diary.pages.clear()
    yield Diary.pages
    Diary.pages.clear()


def is_head(key):
    return key.startswith("head.")


def test_first_the_head_alone_moves_then_the_body_alone(pages, replies):
    session = play(start(build("fedrep").plus(Diary())), 1)
    for update in replies(session, 1):
        own = [page for page in pages if page[0] == update.client]
        players = [player for _, player, _, _ in own]
        assert players == sorted(players, reverse=True)  # "head" ... "head", "body" ... "body"
        turn = players.index("body")
        first, between, last = own[0][3], own[turn][3], own[-1][3]
        for key, value in first.items():
            assert torch.equal(value, between[key]) is not is_head(key)
            assert torch.equal(between[key], last[key]) is is_head(key)


def test_the_half_that_rests_gets_no_gradient(pages):
    play(start(build("fedrep").plus(Diary())), 1)
    for _, player, graded, now in pages:
        assert graded == {k for k in now if is_head(k) is (player == "head")}


@pytest.mark.parametrize("head_epochs", [1, 5])
def test_both_phases_play_their_epochs_and_the_shared_bodys_steps_are_reported(
    head_epochs, pages, replies
):
    session = play(start(build("fedrep", head_epochs=head_epochs).plus(Diary())), 1)
    batches = {"bright-0": 2, "bright-1": 2, "dark-0": 3, "dark-1": 3}  # of 4: 7, 6, 11, 11 samples
    for client, n in batches.items():
        players = [player for who, player, _, _ in pages if who == client]
        assert (players.count("head"), players.count("body")) == (head_epochs * n, 2 * n)
    found = {u.client: u.steps for u in replies(session, 1)}
    assert found == {client: 2 * n for client, n in batches.items()}


def test_a_budget_of_steps_is_the_bodys(pages):
    play(start(build("fedrep", head_epochs=1).plus(Diary()), steps=5), 1)
    body = [client for client, player, _, _ in pages if player == "body"]
    assert {client: body.count(client) for client in body} == dict.fromkeys(
        ("bright-0", "bright-1", "dark-0", "dark-1"), 5
    )
