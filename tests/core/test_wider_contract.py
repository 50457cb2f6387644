"""What a method may say beyond losses and weights: objectives, fixed entries, payload with scoring,
the whole objective again, unlabelled samples, resources and analyses of a plug-in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import nn

from fedshift import testing
from fedshift.base.errors import ClashError, ConfigError, DataError, NotAllowedError
from fedshift.core.config import configure
from fedshift.core.method import Method
from fedshift.core.net import Scope, batch_norm_keys, head_keys
from fedshift.core.objective import CLASSIFICATION, balanced_weights
from fedshift.core.part import Part
from fedshift.core.payload import PayloadSpec
from fedshift.core.registry import build
from fedshift.data.registry import register_dataset
from fedshift.data.samples import Domain
from fedshift.engine.preflight import check_needs
from fedshift.experiment.scenario import find_scenario
from fedshift.experiment.session import Options, prepare
from fedshift.testing import play, start, tiny_scenario, worker


# fixed entries
@dataclass(frozen=True)
class FrozenBody(Part):
    """Everything but the head is fixed."""

    references = frozenset({"previous"})

    def scope(self, net):
        return dict.fromkeys(net.state_dict().keys() - head_keys(net), Scope.FIXED)


def test_fixed_entries_never_train_never_travel_and_are_stored_nowhere(tmp_path):
    session = play(start(Method((FrozenBody(),)), path=tmp_path, scored="trained"))
    site = worker(session)
    fixed = site.keys(Scope.FIXED)
    assert fixed & batch_norm_keys(site.net)  # statistics are among them
    for key in fixed:
        assert torch.equal(site.entries[key], site.initial[key]), key
    travelled = {k for m in session.transport.seen for k in m.shared.keys() | m.personal.keys()}
    assert travelled == head_keys(site.net)
    for client in session.server.roster:
        for entries in session.transport.store.load(client, before=9).values():
            assert not fixed & entries.keys()
    head = next(iter(head_keys(site.net)))
    assert not torch.equal(session.server.shared[head], site.initial[head])


def test_a_fixed_body_keeps_the_global_protocols():
    scores = play(start(Method((FrozenBody(),)))).record.metrics[-1]["scores"]
    assert {"personal", "global", "unseen"} <= scores.keys()


def test_fixed_modules_stay_in_eval_mode_while_the_head_trains():
    modes = []

    @dataclass(frozen=True)
    class Watch(Part):
        def loss(self, client, step):
            modes.append((client.net.block1[1].training, client.net.head_module.training))

    play(start(Method((FrozenBody(), Watch()))), 1)
    assert set(modes) == {(False, True)}


@pytest.mark.parametrize("method", ["ditto", "fedrep", "scaffold", "fedbn"])
def test_methods_with_players_of_their_own_leave_fixed_entries_alone(method):
    session = play(start(build(method).plus(FrozenBody())), 2)
    site = worker(session)
    for key in site.keys(Scope.FIXED):
        assert torch.equal(site.entries[key], site.initial[key]), key


def test_the_most_private_scope_wins():
    net = worker(start("fedbn")).net
    scopes = Method((build("fedbn").parts[0], FrozenBody())).scopes(net, bn_local=True)
    assert {scopes[key] for key in batch_norm_keys(net)} == {Scope.FIXED}


@pytest.mark.parametrize("clause", [testing.in_process_equals_pool, testing.resumes_exactly])
def test_the_contract_holds_with_fixed_entries(clause):
    clause(Method((FrozenBody(),)))


# the task loss
@dataclass(frozen=True)
class Doubled(Part):
    """Twice the loss of the task."""

    def task_loss(self, client, step):
        return 2 * client.task.loss(step.out.logits, step.y)


@dataclass(frozen=True)
class Passing(Part):
    """Leaves the task loss as it is."""

    def task_loss(self, client, step):
        return None


def test_a_part_replaces_the_task_loss():
    twice = play(start(Method((Doubled(),)), lr=0.05), 1)
    plain = play(start("fedavg", lr=0.1), 1)
    for key, value in plain.server.shared.items():
        assert torch.allclose(value, twice.server.shared[key], atol=1e-6), key
    ratio = twice.record.metrics[0]["losses"]["task"] / plain.record.metrics[0]["losses"]["task"]
    assert ratio == pytest.approx(2, rel=1e-5)


def test_no_answer_keeps_the_task_loss():
    testing.require_same(play(start("fedavg")), play(start(Method((Passing(),)))), "with and w/o")


def test_two_parts_cannot_both_replace_it():
    with pytest.raises(ClashError, match="doubled and passing both provide 'task_loss'"):
        Method((Doubled(), Passing()))


# the whole objective again
@dataclass(frozen=True)
class Elsewhere(Part):
    """Takes the gradient at w + rho g / |g| (sharpness-aware)."""

    rho: float = 0.0

    def edit_gradients(self, client, step):
        moved = [p for p in client.net.parameters() if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in moved]).norm()
        steps = [self.rho * p.grad / norm for p in moved]
        with torch.no_grad():
            torch._foreach_add_(moved, steps)
        gradients = torch.autograd.grad(client.objective(step.batch), moved)
        with torch.no_grad():
            torch._foreach_sub_(moved, steps)
        for parameter, gradient in zip(moved, gradients, strict=True):
            parameter.grad = gradient


@dataclass(frozen=True)
class Asks(Part):
    """Asks for the objective inside of it."""

    def loss(self, client, step):
        return client.objective(step.batch)


def test_the_objective_again_at_the_same_place_changes_nothing():
    method = build("fedprox[mu=0.5]")  # a term besides the task's
    left, right = play(start(method), 2), play(start(method.plus(Elsewhere())), 2)
    for key, value in left.server.shared.items():
        assert torch.allclose(value.float(), right.server.shared[key].float(), atol=1e-6), key


def test_the_gradient_elsewhere_on_a_quadratic(valley):
    session = valley.start(Elsewhere(rho=0.3), steps=1, rounds=1, lr=0.1)
    found = play(session, 1).server.shared["valley.w"].numpy()
    g = valley.slope(valley.w)
    expected = valley.w - 0.1 * valley.slope(valley.w + 0.3 * g / np.linalg.norm(g))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_term_of_the_objective_cannot_ask_for_it():
    with pytest.raises((ConfigError, RecursionError), match="only while the client trains"):
        play(start(Method((Asks(), Elsewhere()))), 1)


# payload with scoring
@dataclass(frozen=True)
class Biased(Part):
    """Adds a vector that the server sends for scoring to the logits."""

    def send_scoring(self, server, client):
        return {"bias": torch.tensor([1e6, 0.0, 0.0, 0.0])}

    def predict(self, net, x, scoring):
        return net(x).logits + scoring.payload(self)["bias"]


def test_predictions_see_what_the_server_sends_with_scoring():
    row = play(start(Method((Biased(),))), 1).record.metrics[-1]["scores"]
    for protocol in ("personal", "global", "unseen"):  # every fourth sample is of class a
        assert row[protocol]["test"]["avg"] == pytest.approx(25.0), protocol
        assert row[protocol]["test"]["balanced_accuracy"] == pytest.approx(25.0), protocol


def test_scoring_messages_carry_it_and_the_ledger_counts_it():
    session = play(start(Method((Biased(),))), 1)
    rows = [r for r in session.record.ledger if (r["task"], r["direction"]) == ("score", "down")]
    assert len(rows) == 4
    assert all(row["kinds"]["payload/biased"] == 16 for row in rows)


@dataclass(frozen=True)
class Noisy(Part):
    """Shifts the head by numbers that it draws, and by what the server sends."""

    def send_scoring(self, server, client):
        assert client is None or client in server.roster
        return {"shift": torch.full((), 3.0)}

    def adapt(self, net, unlabelled, scoring):
        drawn = torch.randn(net.classes, generator=scoring.generator(self.name))
        with torch.no_grad():
            net.head_module.bias.add_(drawn * scoring.payload(self)["shift"])


def test_adaptation_sees_payload_and_draws_the_same_numbers_each_time():
    testing.evaluation_leaves_no_trace(Method((Noisy(),)))
    row = play(start(Method((Noisy(),))), 1).record.metrics[-1]["scores"]
    assert row["unseen"]["test"]["loss"] != row["unseen-adapted"]["test"]["loss"]


@pytest.mark.parametrize(
    "clause", [testing.in_process_equals_pool, testing.in_process_equals_flower]
)
def test_payload_with_scoring_reaches_every_transport(clause):
    clause(Method((Biased(), Noisy())))


# objectives
def made(kind):
    """Two domains of vectors with targets that a linear map gives."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(120, 5)).astype(np.float32))
    out = x @ torch.from_numpy(rng.normal(size=(5, 3)).astype(np.float32))
    y = {"regression": 40 + 10 * out[:, 0], "multi-label": (out > 0).float()}[kind]
    names = {"regression": ("price",), "multi-label": ("red", "green", "blue")}[kind]
    split = torch.tensor([0] * 80 + [1] * 20 + [2] * 20, dtype=torch.uint8)
    return {d: Domain(d, x + i, y, split, names) for i, d in enumerate(("north", "south"))}


register_dataset("made regression")(lambda: made("regression"))
register_dataset("made multi-label")(lambda: made("multi-label"))


def of_kind(kind, **changes):
    target = {"target": (40.0, 10.0)} if kind == "regression" else {}
    given = {"data": f"made {kind}", "domains": ("north", "south"), "unseen": None}
    given |= {
        "backbone": "mlp",
        "backbone_options": {},
        "rounds": 15,
        "lr": 0.05,
        "objective": kind,
    }
    return given | {"protocols": ("personal", "global")} | target | changes


@pytest.mark.parametrize(
    ("kind", "measures"),
    [
        ("regression", {"r2", "mae", "rmse"}),
        ("multi-label", {"accuracy", "balanced_accuracy", "macro_f1", "auroc", "nll", "ece"}),
    ],
)
def test_other_objectives_train_and_are_measured(kind, measures):
    session = play(start("fedavg", **of_kind(kind)))
    for row in session.record.metrics[-1]["scores"].values():
        assert measures <= row["test"].keys()
        assert row["test"]["avg"] > 80
        assert row["test"]["avg"] == pytest.approx(row["test"][worker(session).scenario.task.main])


def test_errors_of_a_regression_are_in_the_units_of_the_target():
    session = play(start("fedavg", **of_kind("regression")))
    found = session.record.metrics[-1]["scores"]["global"]["test"]
    held = session.federation.domains["north"].test
    session.server.net.load_state_dict(session.server.shared)
    with torch.no_grad():
        out = session.server.net.eval()(held.x[held.rows]).logits[:, 0] * 10 + 40
    error = (out - held.labels).double().numpy()
    assert found["by_domain"]["north"]["mae"] == pytest.approx(np.abs(error).mean(), rel=1e-5)
    assert found["by_domain"]["north"]["rmse"] == pytest.approx(
        np.sqrt((error**2).mean()), rel=1e-5
    )


@pytest.mark.parametrize("method", ["mixup", "ditto", "groupdro", "scaffold", "fedbn", "moon"])
def test_methods_that_know_no_classes_train_on_numbers(method):
    session = play(start(method, **of_kind("regression", rounds=2)))
    assert all(bool(v.isfinite().all()) for v in testing.everything(session).values())


@pytest.mark.parametrize("method", ["f2dc", "fpl", "csac", "feddebias"])
def test_methods_of_classes_refuse_numbers_by_name(method):
    scenario = tiny_scenario(**of_kind("regression"))
    with pytest.raises(ConfigError, match=r"is for classification; the objective .* is regression"):
        check_needs(build(method), scenario, 4)


def test_the_same_bits_of_a_regression_in_a_pool():
    config, whole = configure("fedavg", tiny_scenario(**of_kind("regression", rounds=2)))
    there = prepare(config, whole, None, Options(transport="pool", workers=2))
    try:
        here = play(start("fedavg", **of_kind("regression", rounds=2)))
        testing.require_same(here, play(there), "in process and in a pool")
    finally:
        there.transport.close()


def test_confusion_is_reported_of_test_samples_unless_switched_off():
    row = play(start("fedavg"), 1).record.metrics[-1]["scores"]["personal"]
    assert sum(n for _, _, n in row["test"]["confusion"]["dark"]) == row["test"]["samples"]["dark"]
    assert "confusion" not in row["val"]
    row = play(start("fedavg", confusion=False), 1).record.metrics[-1]["scores"]
    assert not any("confusion" in split for p in row.values() for split in p.values())


# unlabelled samples
def test_hidden_labels_are_gone_and_no_sample_is():
    session, whole = start("fedavg", labelled=0.3), start("fedavg")
    for name, site in session.federation.sites.items():
        data, full = site.data, whole.federation.sites[name].data.train
        assert len(data.train) == max(1, round(0.3 * len(full)))
        assert bool((data.unlabelled.labels == -1).all())
        rows = torch.cat([data.train.rows, data.unlabelled.rows]).sort().values
        assert torch.equal(rows, full.rows.sort().values)
        assert whole.federation.sites[name].data.unlabelled is None
    assert "30%" in session.server.scenario.confounders()["labels"]


@dataclass(frozen=True)
class Semi(Part):
    needs = frozenset({"client_unlabelled"})


def test_unlabelled_samples_have_to_be_there():
    check_needs(Method((Semi(),)), tiny_scenario(labelled=0.5), 4)
    with pytest.raises(ConfigError, match=r"semi needs unlabelled samples .*labelled=0.1"):
        check_needs(Method((Semi(),)), tiny_scenario(), 4)


# a public set with labels
def test_a_public_set_keeps_its_labels_only_where_they_are_allowed():
    allow = ("client_val", "public_set")
    hidden = start("fedavg", public="tiny", allow=allow)
    told = start("fedavg", public="tiny", allow=(*allow, "public_labels"))
    assert set(hidden.server.resources["public_set"].labels.tolist()) == {-1}
    for side in (told.server.resources, worker(told).resources):
        assert set(side["public_set"].labels.tolist()) == {0, 1, 2, 3}


def test_a_public_set_with_other_classes_is_refused():
    @register_dataset("five classes")
    def five():
        x, y = torch.zeros(5, 8, 8, 3, dtype=torch.uint8), torch.arange(5)
        return {"d": Domain("d", x, y, torch.zeros(5, dtype=torch.uint8), tuple("abcde"))}

    allow = ("client_val", "public_set", "public_labels")
    with pytest.raises(DataError, match=r"public set 'five classes' has label 4; labels go from 0"):
        start("fedavg", public="five classes", allow=allow)


def test_a_data_set_of_numbers_makes_a_scenario_of_numbers():
    found = find_scenario("made regression")
    y = made("regression")["north"].y[:80].double().numpy()
    assert found.objective == "regression"
    assert found.target == pytest.approx((y.mean(), y.std()), rel=0.05)  # rounded to two digits
    assert find_scenario("made multi-label").objective == "multi-label"


# registries
PLUGIN = '''
from fedshift import Analysis, Resource, register_analysis, register_resource
from fedshift.data.registry import register_dataset


@register_resource("tides")
class Tides(Resource):
    """High or low water."""

    doc = "the tides of each day"

    def open(self, federation, scenario, side):
        return federation.unseen.inputs if side == "client" else None


@register_analysis("drift-length")
class DriftLength(Analysis):
    """How far the model has moved."""

    title = "length of the way"
    reads_updates = False

    def measure(self, server, updates, federation):
        ways = [(server.shared[k] - server.initial[k]).square().sum() for k in server.parameters]
        return {"drift": float(sum(ways)) ** 0.5}
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """One file for all tests: a name belongs to one module."""
    path = tmp_path_factory.mktemp("plugin") / "tides.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture
def plugin(file, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_PLUGINS", str(file))


@dataclass(frozen=True)
class Outdoors(Part):
    needs = frozenset({"tides"})


@pytest.mark.usefixtures("plugin")
def test_a_resource_of_one_file_is_checked_and_opened():
    with pytest.raises(NotAllowedError, match=r"outdoors needs the tides .*add 'tides'"):
        check_needs(Method((Outdoors(),)), tiny_scenario(), 4)
    session = start(Method((Outdoors(),)), allow=("tides",))
    assert len(worker(session).resources["tides"]) == 12
    assert "tides" not in session.server.resources


@pytest.mark.usefixtures("plugin")
def test_an_analysis_of_one_file_is_measured_and_keeps_streaming():
    session = play(start("fedavg", analyses=("drift-length",)), 1)
    from fedshift.engine.round import streams

    assert streams(session.server)
    moved = session.server.shared
    length = sum(
        float((moved[k].double() - session.server.initial[k].double()).square().sum())
        for k in session.server.parameters
    )
    assert session.record.metrics[0]["drift-length"]["drift"] == pytest.approx(
        length**0.5, rel=1e-4
    )


def test_an_unknown_resource_or_analysis_is_told_with_the_nearest():
    with pytest.raises(
        ConfigError, match=r"allow .*no resource is called 'public_sett'.*public_set"
    ):
        tiny_scenario(allow=("public_sett",))
    with pytest.raises(ConfigError, match=r"no analysis is called 'group-efect'.*group-effect"):
        tiny_scenario(analyses=("group-efect",))


# trainable tensors outside the net
@dataclass(frozen=True)
class Scaled(Part):
    """Logits times a number that is trained besides the net."""

    def begin(self, client):
        client.scratch[self.name]["scale"] = nn.Parameter(torch.ones(()))
        return client.scratch[self.name].items()

    def task_loss(self, client, step):
        return client.task.loss(step.out.logits * client.scratch[self.name]["scale"], step.y)

    def uploads(self, model):
        return {"train": {"scale": PayloadSpec()}}

    def finish(self, client):
        return {"scale": client.scratch[self.name]["scale"].detach()}


def test_tensors_that_begin_returns_are_trained(replies):
    session = play(start(Method((Scaled(),))), 1)
    for update in replies(session, 1).values():
        assert float(update.payload["scaled/scale"]) != 1.0


# balanced classes
def test_weights_of_classes_are_those_of_scikit_learn():
    y = np.array([0] * 6 + [1] * 3 + [3])
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=y)
    found = balanced_weights(torch.tensor(y), 5)
    np.testing.assert_allclose(found[[0, 1, 3]], expected, rtol=1e-6)
    assert found[[2, 4]].tolist() == [0.0, 0.0]


def test_a_weighted_loss_by_hand():
    logits, y = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.5, 0.0]]), torch.tensor([0, 1, 0])
    weight = balanced_weights(y, 2)  # 3/4 and 3/2
    each = torch.nn.functional.cross_entropy(logits, y, reduction="none").numpy()
    expected = (np.array([0.75, 1.5, 0.75]) * each).sum() / 3.0
    assert float(CLASSIFICATION.loss(logits, y, weight=weight)) == pytest.approx(expected)


def test_balanced_sampling_draws_every_class_equally_often(open_client):
    session = start("fedavg", class_balance="sampling")
    client = open_client(session, "dark-0")
    train = client.site.data.train
    skewed = torch.cat([train.rows[train.labels == 0]] * 9 + [train.rows[train.labels == 1]])
    data = replace(client.site.data, train=replace(train, rows=skewed))
    client.site = replace(client.site, data=data)
    drawn = worker(session).training._balanced(client)(4000)
    shares = torch.bincount(data.train.labels[drawn], minlength=4) / 4000
    assert float(shares[0]) == pytest.approx(0.5, abs=5 * (0.25 / 4000) ** 0.5)
    assert shares[2:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("balance", ["weights", "sampling"])
def test_balance_is_a_choice_of_the_scenario_and_changes_training(balance):
    plain, balanced = play(start("fedavg"), 1), play(start("fedavg", class_balance=balance), 1)
    left, right = plain.server.shared, balanced.server.shared
    assert any(not torch.equal(left[k], right[k]) for k in left)
    assert balance in balanced.server.scenario.confounders()["class balance"]
    with pytest.raises(ConfigError, match="class_balance needs classes"):
        tiny_scenario(**of_kind("regression", class_balance=balance))
