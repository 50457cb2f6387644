from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedshift.base import tree
from fedshift.base.errors import DivergedError
from fedshift.core.loop import Batch, Log, shuffled_rows
from fedshift.core.method import Method
from fedshift.core.part import Part, Phase, Player
from fedshift.core.registry import build
from fedshift.methods.ditto import PersonalModel
from fedshift.methods.fedprox import Proximal
from fedshift.testing import order_is_irrelevant, play, start, worker

BATCHES = {"bright-0": 2, "bright-1": 2, "dark-0": 3, "dark-1": 3}  # of 4: 7, 6, 11, 11 samples
COUNTERS = [f"block{i}.1.num_batches_tracked" for i in (1, 2, 3)]


@dataclass(frozen=True)
class TwoPlayers(Part):
    """Two players, one net, each batch for both."""

    def phases(self, client):
        return (Phase((Player("first"), Player("second"))),)


@dataclass(frozen=True)
class ExtraForward(Part):
    """Runs the net once more on each batch."""

    def loss(self, client, step):
        return 0.0 * client.net(step.batch.x).logits.sum()


@dataclass(frozen=True)
class EarlyForward(Part):
    """Runs the net on each batch before it is trained on, as adversarial augmentation does."""

    def batch(self, client, batch):
        client.net(batch.x)
        return batch


def head(client):
    return ((k, p) for k, p in client.net.named_parameters() if k.startswith("head."))


@dataclass(frozen=True)
class OnlyTheHead(Part):
    """A phase in which the body rests."""

    def phases(self, client):
        return (Phase((Player("head", head),)),)


@dataclass(frozen=True)
class Gradients(Part):
    """Notes which parameters have a gradient at each step."""

    seen: ClassVar[list] = []

    def edit_gradients(self, client, step):
        self.seen.append({k for k, p in client.net.named_parameters() if p.grad is not None})


@pytest.mark.parametrize(
    "parts",
    [(), (PersonalModel(),), (TwoPlayers(),), (ExtraForward(),), (EarlyForward(),)],
    ids=["fedavg", "ditto", "two players", "extra forward", "forward before the batch"],
)
def test_statistics_move_once_per_batch_whoever_plays(parts, replies):
    session = play(start(Method(parts)), 1)
    for client, update in replies(session, 1).items():
        assert [int(update.shared[k]) for k in COUNTERS] == [2 * BATCHES[client]] * 3


def test_a_personal_branch_has_statistics_of_its_own():
    session = play(start("ditto"), 2)
    for client, batches in BATCHES.items():
        branch = worker(session).store.load(client, before=3)[PersonalModel().name]
        assert [int(branch[k]) for k in COUNTERS] == [2 * 2 * batches] * 3


def test_the_statistics_that_move_are_those_of_the_first_forward(replies):
    """The second forward of a batch comes before the step, so it changes no bit."""
    plain, extra = play(start("fedavg"), 1), play(start(Method((ExtraForward(),))), 1)
    for a, b in zip(replies(plain, 1).values(), replies(extra, 1).values(), strict=True):
        assert all(torch.equal(a.shared[k], b.shared[k]) for k in a.shared)


def test_both_players_of_a_batch_step(replies):
    session = play(start(Method((TwoPlayers(),))), 1)
    found = {client: update.steps for client, update in replies(session, 1).items()}
    assert found == {client: 2 * 2 * n for client, n in BATCHES.items()}


def test_parameters_that_nobody_moves_do_not_change(sent, replies):
    session = play(start(Method((OnlyTheHead(),))), 1)
    for client, update in replies(session, 1).items():
        received = sent(session, 1)[client].shared
        for key in session.server.parameters:
            assert torch.equal(update.shared[key], received[key]) is not key.startswith("head.")


def test_parameters_that_nobody_moves_get_no_gradient():
    Gradients.seen.clear()
    play(start(Method((OnlyTheHead(), Gradients()))), 1)
    assert Gradients.seen
    assert all(keys == {"head.weight", "head.bias"} for keys in Gradients.seen)


def test_resting_parameters_are_awake_again_after_the_phase():
    session = play(start(Method((OnlyTheHead(),))), 1)
    assert all(p.requires_grad for p in worker(session).net.parameters())


def test_gradients_of_an_earlier_visit_do_not_reach_a_later_one():
    """FedDyn limits the norm over the net; what the last client left there must not count."""
    order_is_irrelevant(build("fedrep + feddyn").set("clip", 0.05))


def test_the_gradient_norm_is_clipped_to_the_scenarios_limit(valley):
    session = play(valley.start(clip=0.5, steps=2), 1)
    w = valley.w
    for _ in range(2):
        slope = valley.slope(w)
        assert np.linalg.norm(slope) > 0.5
        w = w - 0.1 * 0.5 * slope / np.linalg.norm(slope)
    np.testing.assert_allclose(session.server.shared["valley.w"].numpy(), w, rtol=1e-5)


def test_a_small_gradient_is_not_clipped(valley):
    session = play(valley.start(clip=100.0, steps=1), 1)
    expected = valley.w - 0.1 * valley.slope(valley.w)
    np.testing.assert_allclose(session.server.shared["valley.w"].numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("state", ["reset", "keep"])
def test_momentum_is_reset_or_kept_over_rounds(valley, state):
    m, lr = 0.8, 0.1
    session = play(valley.start(momentum=m, optimiser_state=state), 3)
    w, v = valley.w, np.zeros(2)
    for _ in range(3):
        v = v if state == "keep" else np.zeros(2)
        for _ in range(3):
            v = m * v + valley.slope(w)
            w = w - lr * v
    np.testing.assert_allclose(session.server.shared["valley.w"].numpy(), w, rtol=1e-5)


@pytest.mark.parametrize("state", ["reset", "keep"])
def test_adam_is_reset_or_kept_over_rounds(valley, state):
    session = play(valley.start(optimiser="adam", optimiser_state=state, lr=0.1), 2)
    w = valley.w
    m = v = np.zeros(2)
    t = 0
    for round_ in range(2):
        if round_ and state == "reset":
            m, v, t = np.zeros(2), np.zeros(2), 0
        for _ in range(3):
            g, t = valley.slope(w), t + 1
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            w = w - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(session.server.shared["valley.w"].numpy(), w, rtol=1e-4)


def test_weight_decay_enters_the_gradient(valley):
    session = play(valley.start(weight_decay=0.3, steps=1), 1)
    expected = valley.w - 0.1 * (valley.slope(valley.w) + 0.3 * valley.w)
    np.testing.assert_allclose(session.server.shared["valley.w"].numpy(), expected, rtol=1e-6)


def test_the_learning_rate_decays_by_round(valley):
    session = play(valley.start(lr_decay=0.5, steps=1), 3)
    w = valley.w
    for round_ in range(3):
        w = w - 0.1 * 0.5**round_ * valley.slope(w)
    np.testing.assert_allclose(session.server.shared["valley.w"].numpy(), w, rtol=1e-5)


def test_losses_are_logged_by_name_as_means_over_the_steps(valley, replies):
    session = play(valley.start(steps=2), 1)
    w, values = valley.w, []
    a, b = np.array([1.0, 3.0]), np.array([2.0, -1.0])
    for _ in range(2):
        values.append(0.5 * (a * (w - b) ** 2).sum())
        w = w - 0.1 * valley.slope(w)
    metrics = replies(session, 1)["only-0"].metrics
    assert metrics["task"] == pytest.approx(np.log(2))  # constant logits, two classes
    assert metrics["slope"] == pytest.approx(np.mean(values), rel=1e-5)


@pytest.mark.parametrize(
    ("n", "size", "expected"),
    [(9, 4, [4, 5]), (5, 4, [5]), (6, 4, [4, 2]), (8, 4, [4, 4]), (1, 4, [1]), (3, 4, [3])],
)
def test_a_trailing_single_row_joins_the_batch_before_it(n, size, expected):
    chunks = list(shuffled_rows(n, size, torch.Generator(), epochs=1, steps=None))
    assert [len(c) for c in chunks] == expected
    assert sorted(torch.cat(chunks).tolist()) == list(range(n))


@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 4))
def test_an_epoch_shows_every_row_once(n, size, epochs):
    rows = shuffled_rows(n, size, torch.Generator().manual_seed(n), epochs=epochs, steps=None)
    assert torch.cat(list(rows)).bincount(minlength=n).tolist() == [epochs] * n


@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 40))
def test_a_budget_of_steps_is_that_many_batches(n, size, steps):
    rows = list(shuffled_rows(n, size, torch.Generator().manual_seed(n), epochs=None, steps=steps))
    assert len(rows) == steps
    counts = torch.cat(rows).bincount(minlength=n)
    assert int(counts.max() - counts.min()) <= 1  # epoch after epoch, the last one unfinished


def test_every_epoch_is_shuffled_anew():
    rows = list(shuffled_rows(20, 20, torch.Generator().manual_seed(0), epochs=3, steps=None))
    assert len({tuple(r.tolist()) for r in rows}) == 3


def test_local_work_is_counted_in_epochs_or_steps(replies):
    epochs = play(start("fedavg", epochs=3), 1)
    steps = play(start("fedavg", steps=5), 1)
    neither = play(start("fedavg", epochs=None), 1)
    assert {c: u.steps for c, u in replies(epochs, 1).items()} == {
        c: 3 * n for c, n in BATCHES.items()
    }
    assert {u.steps for u in replies(steps, 1).values()} == {5}
    assert {c: u.steps for c, u in replies(neither, 1).items()} == BATCHES


@dataclass(frozen=True)
class Poison(Part):
    """A term that is not a number, at one step of one visit."""

    at: ClassVar[int] = 0

    def loss(self, client, step):
        struck = (client.id, client.round, step.batch.index) == ("dark-1", 2, self.at)
        return step.out.logits.sum() * (float("nan") if struck else 0.0)


@pytest.mark.parametrize("at", [5, 2], ids=["last step", "with further steps after it"])
def test_a_loss_that_is_not_a_number_is_named(monkeypatch, at):
    """Method, client, round, step and term: the one that broke, not those it broke."""
    monkeypatch.setattr(Poison, "at", at)
    session = play(start(Method((Proximal(), Poison()))), 1)
    with pytest.raises(DivergedError) as error:
        play(session, 1)
    text = str(error.value)
    for piece in ("proximal + poison", "client dark-1", "round 2", f"step {at}", "'poison'", "nan"):
        assert piece in text


def test_an_infinite_loss_is_named():
    log = Log()
    log.add(0, {"task": torch.tensor(1.0)})
    log.add(1, {"task": torch.tensor(float("inf"))})
    with pytest.raises(DivergedError) as error:
        log.means("here")
    assert all(piece in str(error.value) for piece in ("here", "'task'", "inf", "step 1"))


@dataclass(frozen=True)
class Overflow(Part):
    """Leaves a weight that is not finite although every loss was."""

    def finish(self, client):
        with torch.no_grad():
            client.net.get_parameter("head.bias")[0] = float("inf")
        return {}


def test_a_weight_that_is_not_finite_is_named():
    session = start(Method((Overflow(),)))
    with pytest.raises(DivergedError, match=r"overflow, client dark-0, round 1: head\.bias"):
        play(session, 1)


@dataclass(frozen=True)
class Sharpen(Part):
    """Asks for the received model before it changes the inputs."""

    def batch(self, client, batch):
        client.reference("received", batch)
        return batch.replace(x=2.0 * batch.x)


def test_a_frozen_reference_sees_the_batch_that_is_trained_on(open_client):
    client = open_client(start("fedavg"), "dark-0")
    x, y = client.site.data.train.take(torch.arange(4))
    batch = Sharpen().batch(client, Batch(x, y))
    client.net.eval()
    torch.testing.assert_close(
        client.reference("received", batch).logits, client.net(2.0 * x).logits.detach()
    )


@dataclass(frozen=True)
class TwoPhases(Part):
    """The same player twice, one step each."""

    def phases(self, client):
        return (Phase(steps=1), Phase(steps=1))


def test_a_player_keeps_its_momentum_over_the_phases_of_a_visit(valley):
    """Kept state is the player's: two phases of one step are one phase of two."""
    kept = {"momentum": 0.8, "optimiser_state": "keep"}
    one, two = valley.start(steps=2, **kept), valley.start(TwoPhases(), **kept)
    a, b = (play(s, 2).server.shared["valley.w"] for s in (one, two))
    assert torch.equal(a, b)


@dataclass(frozen=True)
class HeadAndBody(Part):
    """Two players on each batch: one of the head, one of the rest, or both of the whole net."""

    apart: bool = True

    def phases(self, client):
        return (Phase((Player("head", self.head), Player("rest", self.rest)), steps=3),)

    def head(self, client):
        return [(k, p) for k, p in client.net.named_parameters() if "head" in k or not self.apart]

    def rest(self, client):
        return [
            (k, p) for k, p in client.net.named_parameters() if "head" not in k or not self.apart
        ]


@pytest.mark.parametrize(("apart", "steps"), [(True, 3), (False, 6)])
def test_players_of_different_entries_do_not_add_up_to_more_steps(replies, apart, steps):
    session = play(start(Method((HeadAndBody(apart),))), 1)
    assert {u.steps for u in replies(session, 1).values()} == {steps}


@dataclass(frozen=True)
class Clumsy(Part):
    """Measures by wearing out the net and the generator of the batches."""

    def uploads(self, model):
        return {"train": {"weight": model.per_parameter()["head.weight"]}}

    def probe(self, client):
        torch.rand(3, generator=client.generator("batches"))
        with torch.no_grad():
            client.net.get_parameter("head.weight").zero_()
        return {"weight": client.net.get_parameter("head.weight")}


def test_a_probe_leaves_no_trace(same_bits, replies):
    plain, probed = play(start("fedavg"), 1), play(start(Method((Clumsy(),))), 1)
    same_bits(plain.server.shared, probed.server.shared)
    for update in replies(probed, 1).values():  # what was measured is what it was then
        assert not update.payload["clumsy/weight"].any()


def test_training_leaves_received_and_initial_untouched(open_client):
    session = start("fedavg")
    site = worker(session)
    messages = session.server.broadcast("train", "dark-0")
    before = tree.clone(messages.shared)
    site.visit(messages)
    assert all(torch.equal(v, messages.shared[k]) for k, v in before.items())
    assert all(torch.equal(v, site.initial[k]) for k, v in before.items())
