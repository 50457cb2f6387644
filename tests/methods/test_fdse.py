"""Wang et al., CVPR 2025: Eqs. 4 to 7, what travels, the reductions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base import seeds, tree
from fedshift.base.errors import ConfigError
from fedshift.core.loop import Batch, Step
from fedshift.core.net import Scope
from fedshift.core.part import Part
from fedshift.core.registry import BACKBONES, build, register_backbone
from fedshift.methods.fdse.consistency import StatisticsConsistency
from fedshift.methods.fdse.decompose import decompose, decomposed
from fedshift.methods.fdse.layers import LayerForm
from fedshift.methods.fdse.method import DecomposeLayers
from fedshift.methods.fdse.statistics import depth_weights, layer_gap, running
from fedshift.testing import everything, play, start, worker

NAME = StatisticsConsistency().name
SHORT = {"rounds": 2, "steps": 2, "protocols": ("personal",), "evaluate_every": 2}
RAW = "fdse - layer-consensus - similarity-mixing - statistics-consistency"


@register_backbone("cnn-in-two")
def cnn_in_two(shape, classes, width=4):
    """The tiny scenario's net, taken apart by hand with the weights that the part would draw."""
    net = BACKBONES.get("cnn").build(shape, classes, width)
    with seeds.fork(0, "build", "decompose-layers"):
        decompose(net, LayerForm())
    return net


class PrivateErasers(Part):
    """FedBN's idea on erasers: whatever Sec. 4.3 does not share stays at home."""

    def scope(self, net):
        out = {}
        for path, layer in decomposed(net):
            inner = [f"dse.{k}" for k in layer.dse.state_dict()]
            inner += [f"bn_dse.{k}" for k in layer.bn_dse.state_dict()]
            out |= {f"{path}.{k}": Scope.PRIVATE for k in (*inner, "bias")}
        return out


# Eqs. 4 to 7


def test_running_statistics_are_equation_5_with_the_gradient_of_the_batch_only():
    before, now = (torch.randn(4, requires_grad=True) for _ in range(2))
    found = running(before, now, 0.9)
    np.testing.assert_allclose(
        found.detach(), 0.9 * before.detach().numpy() + 0.1 * now.detach().numpy(), rtol=1e-6
    )
    found.sum().backward()
    assert before.grad is None
    np.testing.assert_allclose(now.grad, 0.1, rtol=1e-6)


def gap(mean, var, mean_g, var_g):
    """Eq. 6 as it stands in the paper."""
    d = len(mean)
    sizes = np.abs(var).sum() - np.abs(var_g).sum()
    return np.linalg.norm(mean - mean_g) ** 2 / d + (sizes / d) ** 2


def test_the_gap_is_equation_6():
    rng = np.random.default_rng(0)
    mean, mean_g = rng.normal(size=(2, 7))
    var, var_g = rng.uniform(0.1, 2, size=(2, 7))
    found = layer_gap(*map(torch.from_numpy, (mean, var, mean_g, var_g)))
    assert float(found) == pytest.approx(gap(mean, var, mean_g, var_g), rel=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.001, 0.5])
def test_depth_weights_are_equation_7(beta):
    powers = np.exp(beta * np.arange(1, 8))
    np.testing.assert_allclose(depth_weights(7, beta), powers / powers.sum(), rtol=1e-12)
    assert depth_weights(3, 0.7)[2] > depth_weights(3, 0.7)[0]


def visit(session, open_client, part):
    """A client of round 2 whose visit has begun, and three batches."""
    client = open_client(session, "dark-0", worker(session).store.load("dark-0", before=2))
    client.net.train()
    part.begin(client)
    train = client.site.data.train
    return client, [Batch(*train.take(torch.arange(i, i + 4))) for i in (0, 4, 1)]


def inputs_of(net, run):
    """What each BN_DFE reads while ``run`` runs, in the order of depth."""
    seen = []
    handles = [
        net.get_submodule(layer.norm_path).register_forward_pre_hook(
            lambda _, args: seen.append(args[0].detach().double().numpy())
        )
        for _, layer in decomposed(net)
    ]
    out = run()
    for handle in handles:
        handle.remove()
    return out, seen


def received(client):
    """mu_g and var_g of each layer."""
    for _, layer in decomposed(client.net):
        yield tuple(
            client.received[f"{layer.norm_path}.running_{k}"].double().numpy()
            for k in ("mean", "var")
        )


@pytest.mark.parametrize("statistics", ["per-channel", "channel-average"])
def test_the_loss_is_equations_4_to_7_over_the_batches_of_a_visit(open_client, statistics):
    part = StatisticsConsistency(lam=3.0, beta=0.4, gamma=0.8, statistics=statistics)
    client, batches = visit(play(start("fdse"), 1), open_client, part)
    targets = list(received(client))
    kept = [(mean.copy(), var.copy()) for mean, var in targets]
    powers = np.exp(0.4 * np.arange(1, 4))
    for batch in batches:
        out, seen = inputs_of(client.net, lambda b=batch: client.net(b.x))
        term = part.loss(client, Step(batch, out, "model"))
        expected = 0.0
        for l, x in enumerate(seen):  # noqa: E741
            released = statistics == "channel-average"  # BN's running variance is unbiased
            f, v = x.mean((0, 2, 3)), x.var((0, 2, 3), ddof=int(released))
            kept[l] = 0.8 * kept[l][0] + 0.2 * f, 0.8 * kept[l][1] + 0.2 * v
            mean, var = kept[l]
            if released:  # two numbers per layer, on top of the EMA
                mean, var = 0.8 * mean + 0.2 * f.mean(), 0.8 * var + 0.2 * f.var(ddof=1)
            expected += powers[l] / powers.sum() * gap(mean, var, *targets[l])
        assert float(term.detach()) == pytest.approx(3.0 * expected, rel=1e-4)


def test_the_gradient_of_the_last_bias_is_the_closed_form(open_client):
    """The bias moves the mean of its own layer alone: lam w_L (2 / d)(mu_hat - mu_g)(1 - gamma)."""
    part = StatisticsConsistency(lam=2.0, beta=0.3, gamma=0.9)
    client, batches = visit(play(start("fdse"), 1), open_client, part)
    layer = decomposed(client.net)[-1][1]
    mean_g, _ = list(received(client))[-1]
    mean = mean_g.copy()
    for batch in batches[:2]:
        client.net.zero_grad()
        out, seen = inputs_of(client.net, lambda b=batch: client.net(b.x))
        part.loss(client, Step(batch, out, "model")).backward()
        mean = 0.9 * mean + 0.1 * seen[-1].mean((0, 2, 3))
        weight = np.exp(0.9) / np.exp(0.3 * np.arange(1, 4)).sum()
        slope = 2.0 * weight * 2 / len(mean) * (mean - mean_g) * 0.1
        np.testing.assert_allclose(layer.bias.grad.numpy(), slope, rtol=2e-3, atol=1e-7)
    assert all(p.grad is not None for p in layer.dfe.parameters())  # extractors learn from it too


def test_another_forward_in_between_does_not_count(open_client):
    part = StatisticsConsistency()
    session = play(start("fdse"), 1)
    client, (batch, other, _) = visit(session, open_client, part)
    out = client.net(batch.x)
    alone = part.loss(client, Step(batch, out, "model"))
    client, _ = visit(session, open_client, part)
    out = client.net(batch.x)
    client.net(other.x)
    assert torch.equal(part.loss(client, Step(batch, out, "model")), alone)


def test_the_term_starts_in_round_2_and_leaves_nothing(replies, state_of):
    session = play(start("fdse"), 2)
    assert all(NAME not in u.metrics for u in replies(session, 1))
    assert all(u.metrics[NAME] > 0 for u in replies(session, 2))
    state = worker(session).store.load("dark-0", before=3)
    assert set(state) == {"net"}
    layers = [layer for _, layer in decomposed(worker(session).net)]
    assert not any(layer.watched or layer.seen for layer in layers)


# what travels


def test_erasers_are_personal_and_their_statistics_private(replies):
    session = play(start("fdse"), 1)
    path = "block1.0"
    personal = {f"{path}.{k}" for k in ("dse.weight", "bn_dse.weight", "bn_dse.bias", "bias")}
    scopes = session.server.scopes
    here = {k: s for k, s in scopes.items() if k.startswith("block1.")}
    assert {k for k, s in here.items() if s is Scope.PERSONAL} == personal
    private = {k for k, s in here.items() if s is Scope.PRIVATE}
    names = ("running_mean", "running_var", "num_batches_tracked")
    assert private == {f"{path}.bn_dse.{k}" for k in names}
    assert scopes["head.weight"] is scopes["block1.1.running_mean"] is Scope.SHARED
    for update in replies(session, 1):
        assert not private & (update.shared.keys() | update.personal.keys())


def test_half_of_alexnet_is_uploaded():
    sizes = {}
    for method in ("fedbn", "fdse"):
        net = BACKBONES.get("alexnet-bn").build((3, 64, 64), 7, width=0.25)
        whole = build(method)
        for part in whole.parts:
            part.build(net)
        kept = {k for k, s in whole.scopes(net).items() if s is not Scope.PRIVATE}
        sizes[method] = tree.nbytes(tree.pick(net.state_dict(), kept))
    assert sizes["fdse"] / sizes["fedbn"] == pytest.approx(0.5, abs=0.02)


def test_only_participants_move(same):
    session = start("fdse", clients_per_round=2, rounds=4)
    server = session.server
    initial = tree.pick(server.initial, server.keys(Scope.PERSONAL))
    held = dict.fromkeys(server.roster, initial)
    for round_ in range(1, 5):
        play(session, 1)
        cohort = server.scenario.cohort(0, round_, list(server.roster))
        for client in server.roster:
            if client in cohort:
                found = server.personal_of(client)
                assert any(not torch.equal(found[k], v) for k, v in held[client].items())
                held[client] = tree.clone(found)
            else:
                same(server.personal_of(client), held[client])


# reductions


def test_with_everything_off_and_shared_erasers_it_is_fedavg_on_the_decomposed_net(same):
    fedavg = play(start("fedavg", backbone="cnn-in-two"))
    method = build(RAW, erasers="shared")
    fdse = play(start(method))
    same(fedavg.server.shared, fdse.server.shared)


def test_with_everything_off_it_is_fedbn_on_the_erasers(same, state_of):
    whole = build("fedavg").plus(PrivateErasers())
    fedbn = play(start(whole, backbone="cnn-in-two"))
    fdse = play(start(RAW))
    same(fedbn.server.shared, fdse.server.shared)
    for client in fdse.server.roster:
        kept = state_of(fdse, client, "net") | fdse.server.personal_of(client)
        same(dict(sorted(state_of(fedbn, client, "net").items())), dict(sorted(kept.items())))


def test_no_weight_on_the_consistency_is_no_consistency(same):
    a, b = play(start("fdse[lam=0]")), play(start(f"fdse - {NAME}"))
    same(a.server.shared, b.server.shared)


def test_mixing_at_the_limits_is_the_mean_and_ones_own(replies):
    for tau, expected in (("inf", "mean"), ("1e-9", "own")):
        session = play(start(f"fdse[tau={tau}]"), 1)
        sent = {u.client: u.personal for u in replies(session, 1)}
        for client in session.server.roster:
            for key, value in session.server.personal_of(client).items():
                stacked = torch.stack([t[key] for t in sent.values()]).double()
                wanted = stacked.mean(0) if expected == "mean" else sent[client][key].double()
                # a bias that only noise has moved may be parallel to another's
                np.testing.assert_allclose(value.double(), wanted, atol=1e-6)


def test_consensus_opposes_no_client_in_a_run(replies):
    session = start("fdse")
    before = session.server.shared
    play(session, 1)
    modules = {k.rpartition(".")[0] for k in session.server.parameters}
    for module in modules:
        keys = [k for k in session.server.parameters if k.rpartition(".")[0] == module]

        def step(entries, keys=keys):
            return torch.cat([(entries[k] - before[k]).double().flatten() for k in keys])

        moved = step(session.server.shared)
        for update in replies(session, 1):
            own = step(update.shared)
            assert float(moved @ own) >= -1e-5 * float(moved.norm() * own.norm())


@pytest.fixture(scope="module")
def plain():
    return everything(play(start("fdse", **SHORT)))


@pytest.mark.parametrize(
    "switch",
    [
        "G=4",
        "form=literal",
        "inner_relu=false",
        "erasers=shared",
        "leave=block2",
        "lam=2",
        "beta=1",
        "gamma=0.5",
        "statistics=channel-average",
        "tau=0.01",
        "layer-consensus.unit=tensor",
        "similarity-mixing.unit=tensor",
    ],
)
def test_every_switch_changes_something(switch, plain):
    changed = everything(play(start(f"fdse[{switch}]", **SHORT)))
    same = plain.keys() == changed.keys() and all(
        plain[k].shape == changed[k].shape and torch.equal(plain[k], changed[k]) for k in plain
    )
    assert not same


# ablations


@pytest.mark.parametrize(
    ("words", "parts", "rule"),
    [
        ("fdse", ["decompose-layers", NAME, "similarity-mixing"], "layer-consensus"),
        ("fdse - layer-consensus", ["decompose-layers", NAME, "similarity-mixing"], "mean"),
        ("fdse - similarity-mixing", ["decompose-layers", NAME], "layer-consensus"),
        (f"fdse - {NAME}", ["decompose-layers", "similarity-mixing"], "layer-consensus"),
        (RAW, ["decompose-layers"], "mean"),
    ],
)
def test_table_3_is_made_by_taking_parts_away(words, parts, rule):
    method = build(words)
    assert [p.name for p in method.parts] == parts
    assert method.aggregate.name == rule


def test_every_ablation_differs():
    runs = [
        everything(play(start(words, **SHORT)))
        for words in (
            "fdse",
            "fdse - layer-consensus",
            "fdse - similarity-mixing",
            f"fdse - {NAME}",
        )
    ]
    keys = [k for k in runs[0] if k.startswith(("shared/", "personal/"))]
    for i, a in enumerate(runs):
        for b in runs[i + 1 :]:
            assert any(not torch.equal(a[k], b[k]) for k in keys)


def test_the_part_composes_with_others():
    session = play(start("fedprox + decompose-layers + statistics-consistency + mixup"), 2)
    assert isinstance(session.server.method.parts[1], DecomposeLayers)
    assert session.server.method.aggregate.name == "mean"


@pytest.mark.parametrize(("method", "changes"), [("fdse", {"bn": "local"}), ("fdse + fedbn", {})])
def test_targets_that_stay_at_each_client_are_refused_before_round_1(method, changes):
    with pytest.raises(ConfigError, match=r"all clients share.*bn=local.*fdse - statistics"):
        start(method, **changes)
    start(f"{method} - statistics-consistency", **changes)
