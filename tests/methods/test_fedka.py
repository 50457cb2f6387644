"""Sun et al., ACML 2022: the two client terms, what travels for them, and exact reductions."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F

from fedshift.base.errors import ConfigError, NotAllowedError
from fedshift.core.loop import Batch, Step
from fedshift.core.method import Method
from fedshift.core.net import call_frozen
from fedshift.core.part import Part, Phase
from fedshift.core.registry import build
from fedshift.data.registry import register_dataset
from fedshift.data.samples import Domain, split_rows
from fedshift.engine.preflight import check_needs
from fedshift.methods.fedka.equations import coefficient
from fedshift.methods.fedka.method import EmbeddingMatching, GlobalDisentangler
from fedshift.methods.shared.budget import visit_batches
from fedshift.methods.shared.mmd import mk_mmd
from fedshift.testing import play, start, tiny, tiny_scenario, worker

GRANTS = ("client_val", "domain_ids", "server_unlabelled", "client_target_unlabelled")
PARTS = ("global-disentangler", "embedding-matching", "federated-voting")
SUBSETS = [
    tuple(p for p, out in zip(PARTS, left, strict=True) if out)
    for left in product((False, True), repeat=3)
]


@register_dataset("tiny-doubled")
def tiny_doubled():
    """The toy images at 16x16, which fedka-cnn can take."""

    def double(d):
        x = d.x.repeat_interleave(2, 1).repeat_interleave(2, 2)
        return Domain(d.name, x, d.y, d.split, d.classes)

    return {name: double(d) for name, d in tiny().items()}


def shared(method, *, rounds=None, **changes):
    return play(start(method, **changes), rounds).server.shared


def backbone(entries):
    return {k: v for k, v in entries.items() if not k.startswith("extra.")}


@pytest.mark.parametrize("target_at", ["server", "client"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimiser": "adam", "lr": 0.01, "optimiser_state": "keep", "weight_decay": 0.01},
        {"bn": "recompute", "steps": 5},
    ],
    ids=["sgd", "adam", "recompute"],
)
def test_lambda_0_is_fedavg(same, target_at, changes):
    method = f"fedka[gamma=0, target_at={target_at}, matched=8]"
    found = shared(method, allow=GRANTS, **changes)
    same(backbone(found), shared("fedavg", allow=GRANTS, **changes))
    assert any(k.startswith("extra.global-disentangler") for k in found)


def test_lambda_0_is_fedavg_with_dropout_too(same):
    changes = {
        "data": "tiny-doubled",
        "backbone": "fedka-cnn",
        "backbone_options": {"width": 0.1, "dropout": 0.5},
        "rounds": 1,
    }
    same(backbone(shared("fedka[gamma=0, matched=8]", **changes)), shared("fedavg", **changes))


@pytest.mark.parametrize("without", SUBSETS, ids=lambda w: "-".join(p[0] for p in w) or "all")
def test_every_ablation_runs_and_moves_what_it_keeps(same, without):
    method = build("fedka", matched=8).without(*without)
    found = shared(method, rounds=1)
    plain = shared("fedavg", rounds=1)
    if len(without) == 3:
        same(found, plain)
    else:
        assert any(not torch.equal(v, plain[k]) for k, v in backbone(found).items())
    assert ("global-disentangler" in without) == (found.keys() == plain.keys())


@pytest.mark.parametrize("method", ["fedka", "fedka[target_at=client]"])
@pytest.mark.parametrize(
    "changes",
    [
        {"data": "tiny-doubled", "backbone": "fedka-cnn", "backbone_options": {"width": 0.1}},
        {
            "data": "bowls",
            "domains": ("left", "right"),
            "unseen": "far",
            "backbone": "mlp",
            "backbone_options": {"hidden": 6, "features": 5},
        },
    ],
    ids=["two-layer head", "vectors"],
)
@pytest.mark.usefixtures("bowls")
def test_images_with_a_deep_head_and_vectors_are_aligned_on_their_features(method, changes):
    session = play(start(method, allow=GRANTS, rounds=2, **changes))
    width = session.server.net.shapes()["features"][0]
    first = session.server.shared["extra.global-disentangler.0.weight"]
    assert first.shape == (100, width)
    losses = session.record.metrics[-1]["losses"]
    assert losses.keys() == {"task", "global-disentangler", "embedding-matching"}


def sent(session, round_):
    """Payload of the training mail of a round, by client."""
    seen = session.transport.seen
    return {
        m.client: m.payload
        for m in seen
        if m.task == "train" and m.round == round_ and not hasattr(m, "steps")
    }


@pytest.mark.parametrize("first", PARTS[:2])
def test_features_of_the_target_are_what_travels_once_and_nothing_returns(first, replies):
    method = build("fedka", target_samples=7)
    method = method.without("global-disentangler") if first == PARTS[1] else method
    session = play(start(method))
    rounds = [sent(session, r) for r in (1, 2, 3)]
    for messages in rounds:
        assert all(payload.keys() == {f"{first}/target"} for payload in messages.values())
    tables = [messages["dark-0"][f"{first}/target"] for messages in rounds]
    width = session.server.net.shapes()["features"][0]
    assert [t.shape for t in tables] == [(7, width)] * 3
    assert not torch.equal(tables[0], tables[1])
    assert all(u.payload == {} for r in (1, 2, 3) for u in replies(session, r))


def test_they_are_rows_of_the_sent_encoder_in_eval_mode():
    session = start(build("fedka", target_samples=7))
    play(session, 1)
    model = session.server.shared
    play(session, 1)
    table = next(iter(sent(session, 2)["dark-0"].values()))
    target = session.federation.unseen.inputs
    x, _ = target.take(torch.arange(len(target)))
    known = call_frozen(session.server.net, session.server.initial | model, x).features
    gaps = torch.cdist(table.double(), known.double())  # (7, all)
    assert float(gaps.min(1).values.max()) < 1e-5
    assert len(gaps.argmin(1).unique()) == 7


def test_with_the_target_at_the_clients_nothing_is_sent():
    session = play(start("fedka[target_at=client]", allow=GRANTS), 1)
    assert all(payload == {} for payload in sent(session, 1).values())


def visit(open_client, method, **changes):
    """A client in round 2 of 3 with mail, and a batch."""
    session = play(start(method, allow=GRANTS, **changes), 1)
    session.server.round = 2
    client = open_client(session, "dark-0")
    client.net.train()
    x, y = client.site.data.train.take(torch.arange(4))
    return client, Batch(x, y, index=3)


def gradients(net, term):
    net.zero_grad()
    term.backward()
    return {k: p.grad.clone() for k, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("target_at", ["server", "client"])
def test_f_d_learns_at_full_weight_and_the_encoder_against_it_by_lambda(open_client, target_at):
    method = build("fedka", target_at=target_at, target_samples=12)
    client, batch = visit(open_client, method)
    part = method.parts[0]
    f_d = client.net.extra[part.name]
    lam = coefficient((3 + 1 * visit_batches(client)) / (3 * visit_batches(client)), 5.0)

    def plain():
        """Eq. 2 without a reversal, and the features that it may move."""
        source = client.net(batch.x).features
        if target_at == "server":
            held = client.inbox["global-disentangler/target"]
            target = held[[(12 + i) % 12 for i in range(4)]]  # fourth batch of four
        else:
            known = client.resources["client_target_unlabelled"]
            client._generators.clear()
            rows = torch.randint(len(known), (4,), generator=client.generator(part.name))
            target = client.net(known.take(rows)[0]).features
            client._generators.clear()
        zeros, ones = torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.long)
        return F.cross_entropy(f_d(source), zeros) + F.cross_entropy(f_d(target), ones)

    expected = plain()
    wanted = gradients(client.net, expected)
    term = part.loss(client, Step(batch, client.net(batch.x), "model"))
    assert float(term.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    found = gradients(client.net, term)
    assert found.keys() == wanted.keys()
    for key, gradient in found.items():
        factor = 1.0 if key.startswith("extra.") else -lam
        torch.testing.assert_close(gradient, factor * wanted[key], rtol=1e-4, atol=1e-6)
    assert not any(k.startswith("head") for k in found)


def test_lambda_counts_batches_and_rounds_from_0(open_client):
    part = GlobalDisentangler()
    client, batch = visit(open_client, "fedka", steps=5)
    step = Step(batch, None, "model")
    assert part.lam(client, step) == pytest.approx(coefficient((3 + 5) / 15, 5.0))
    client.round, batch.index = 1, 0
    assert part.lam(client, step) == 0.0


@pytest.mark.parametrize("size", [2, 4, 7, 21, 22, 50])
@pytest.mark.parametrize("epochs", [1, 3])
def test_the_batches_of_a_visit_are_those_that_are_played(open_client, size, epochs):
    session = start("fedavg", batch_size=size, epochs=epochs, rounds=1)
    client = open_client(session, "dark-0")
    batches = split_rows(torch.arange(client.examples), size)
    assert visit_batches(client) == epochs * len(batches)


def feed(part, client, batches):
    """The terms of a visit, batch by batch."""
    return [part.loss(client, Step(b, client.net(b.x), "model")) for b in batches]


def some_batches(client, n=6, size=4):
    train = client.site.data.train
    rows = torch.arange(n * size) % len(train)
    return [Batch(*train.take(r), index=i) for i, r in enumerate(rows.split(size))]


def test_matching_waits_for_enough_samples_and_takes_the_rest_at_the_end(open_client):
    part = EmbeddingMatching(matched=15)
    client, _ = visit(open_client, Method((part,)), steps=6)
    batches = some_batches(client)
    terms = feed(part, client, batches)
    assert [t is not None for t in terms] == [False, False, False, True, False, True]
    table = client.inbox["embedding-matching/target"]  # 12 inputs of the toy target
    for term, group, first in ((terms[3], batches[:4], 0), (terms[5], batches[4:], 16)):
        x = torch.cat([b.x for b in group])
        source = client.net(x).features
        target = table[[(first + i) % len(table) for i in range(len(x))]]
        lam = coefficient((group[-1].index + 6) / 18, 5.0)
        expected = lam * mk_mmd(source, target)
        assert float(term.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert client.scratch[part.name] == {}


def test_matching_moves_the_encoder_only(open_client):
    part = EmbeddingMatching(matched=1)
    client, batch = visit(open_client, Method((part,)))
    out = client.net(batch.x)
    term = part.loss(client, Step(batch, out, "model"))
    lam = part.lam(client, Step(batch, out, "model"))
    table = client.inbox["embedding-matching/target"]
    expected = lam * mk_mmd(out.features, table[:4])  # the fourth batch of four, of 12 rows
    assert float(term.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    moved = gradients(client.net, term)
    assert moved
    assert all(k.startswith("block") for k in moved)


def test_with_the_target_at_the_client_the_received_encoder_makes_its_features(open_client):
    part = EmbeddingMatching(matched=1, target_at="client")
    client, batch = visit(open_client, Method((part,)))
    known = client.resources["client_target_unlabelled"]
    rows = torch.randint(len(known), (4,), generator=client.generator(part.name))
    client._generators.clear()
    target = call_frozen(client.net, client.received, known.take(rows)[0]).features
    out = client.net(batch.x)
    term = part.loss(client, Step(batch, out, "model"))
    lam = part.lam(client, Step(batch, out, "model"))
    assert float(term.detach()) == pytest.approx(
        float((lam * mk_mmd(out.features, target)).detach()), rel=1e-5
    )


def test_the_released_sum_and_the_released_last_batch(open_client):
    plain = EmbeddingMatching(matched=8)
    client, _ = visit(open_client, Method((plain,)), steps=6)
    batches = some_batches(client)[:2]

    def value(part):
        return float(feed(part, client, batches)[1].detach())

    assert value(EmbeddingMatching(matched=8, kernel_sum=True)) == pytest.approx(5 * value(plain))
    last = value(EmbeddingMatching(matched=8, last_batch_only=True))
    table = client.inbox["embedding-matching/target"]
    alone = mk_mmd(client.net(batches[1].x).features, table[4:8])
    assert last == pytest.approx(float(alone.detach()) * coefficient(7 / 18, 5.0) / 2, rel=1e-5)


class Short(Part):
    """A visit that ends before its budget, so that nothing is matched."""

    def phases(self, client):
        return (Phase(steps=1),)


def test_inputs_that_were_gathered_are_not_kept(state_of):
    session = play(start(Method((EmbeddingMatching(matched=1000), Short()))), 1)
    for client in session.server.roster:
        assert state_of(session, client, "embedding-matching") == {}


@pytest.mark.parametrize(
    "setting",
    [
        "target_samples=5",
        "gamma=2",
        "kernels=3",
        "factor=3",
        "matched=8",
        "kernel_sum=true",
        "last_batch_only=true",
        "target_at=client",
    ],
)
def test_every_setting_changes_something(setting):
    base, found = (
        shared(f"fedka{given} - federated-voting", allow=GRANTS, steps=6, rounds=2)
        for given in ("", f"[{setting}]")
    )
    assert any(not torch.equal(v, base[k]) for k, v in backbone(found).items())


@pytest.mark.parametrize("method", ["fedka", *(f"fedavg + {p}" for p in PARTS)])
def test_without_a_target_one_line_says_what_to_give(method):
    alone = tiny_scenario(unseen=None, protocols=("personal",))
    with pytest.raises(ConfigError, match=r"needs .*the target.*unseen='DOMAIN'"):
        check_needs(build(method), alone, 4)
    closed = alone.change(allow=("client_val",))
    with pytest.raises(
        NotAllowedError, match=r"add 'server_unlabelled' to its allow and .*unseen='DOMAIN'"
    ):
        check_needs(build(method), closed, 4)
    with pytest.raises(NotAllowedError, match="add 'server_unlabelled' to its allow"):
        check_needs(build(method), tiny_scenario(allow=("client_val",)), 4)


def test_target_inputs_at_the_clients_have_to_be_allowed():
    with pytest.raises(NotAllowedError, match="add 'client_target_unlabelled'"):
        start("fedka[target_at=client]")
    closed = tiny_scenario(allow=("client_target_unlabelled",))
    check_needs(build("fedka[target_at=client] - federated-voting"), closed, 4)


def test_what_is_shared_depends_on_where_the_target_is():
    told = [p.shares for p in build("fedka").parts]
    assert [bool(t) for t in told] == [True, True, False]
    assert [p.shares for p in build("fedka", target_at="client").parts] == ["", "", ""]


def test_a_wrong_place_is_refused():
    with pytest.raises(ConfigError, match="it takes one of server, client"):
        build("fedka[target_at=cloud]")


def test_the_composition_with_private_batch_norm_runs():
    session = play(start("fedbn + global-disentangler + embedding-matching", rounds=2))
    assert worker(session).scopes["extra.global-disentangler.1.running_mean"].name == "PRIVATE"
