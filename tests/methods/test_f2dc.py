"""Wang et al., 2026, Eqs. 5, 7, 9, 10 and 11; where the modules live; which stages they follow."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError, NotAllowedError
from fedshift.core.loop import Batch, Step
from fedshift.core.message import Update
from fedshift.core.method import Method
from fedshift.core.net import Output, Scope, load
from fedshift.core.objective import score
from fedshift.core.registry import BACKBONES, build
from fedshift.methods.f2dc.method import (
    DecoupleAndCorrect,
    corrector_loss,
    decoupler_loss,
    wrong_label,
)
from fedshift.methods.f2dc.weights import DomainAware, domain_aware_weights, domain_discrepancy
from fedshift.testing import everything, play, start, worker

NAME = DecoupleAndCorrect().name
QUICK = {"steps": 2, "evaluate_every": 100}


def cross_entropy(logits, target):
    """Mean over rows of -sum_c target log softmax."""
    exp = np.exp(logits - logits.max(1, keepdims=True))
    return -(target * np.log(exp / exp.sum(1, keepdims=True))).sum(1).mean()


def equation_5(pooled, logits, y, wrong, tau):
    """L_DFD as it stands in the paper, with its log exp; labels as indices."""
    plus, minus = pooled
    s = (plus * minus).sum(1) / np.linalg.norm(plus, axis=1) / np.linalg.norm(minus, axis=1)
    onehot = np.eye(logits.shape[2])
    right, false = (cross_entropy(z, onehot[t]) for z, t in zip(logits, (y, wrong), strict=True))
    return np.log(np.exp(s / tau)).mean() + right + false


@pytest.fixture
def drawn():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 5)
    return {
        "pooled": rng.normal(size=(3, 5, 7)),
        "logits": rng.normal(size=(3, 5, 4)),
        "y": y,
        "wrong": (y + 1) % 4,
        "soft": rng.dirichlet(np.ones(4), 5),
        "main": rng.normal(size=(5, 4)),
    }


@pytest.mark.parametrize("tau", [0.06, 0.5])
def test_the_decouplers_loss_is_equation_5(drawn, tau):
    pooled, logits = drawn["pooled"][:2], drawn["logits"][:2]
    given = [torch.from_numpy(v) for v in (pooled, logits, drawn["y"], drawn["wrong"])]
    expected = equation_5(pooled, logits, drawn["y"], drawn["wrong"], tau)
    assert float(decoupler_loss(*given, tau)) == pytest.approx(expected, rel=1e-9)


def test_its_gradient_is_that_of_equation_5(drawn):
    y, wrong = drawn["y"], drawn["wrong"]
    fixed = {"pooled": drawn["pooled"][:2], "logits": drawn["logits"][:2]}
    leaves = {k: torch.from_numpy(v).clone().requires_grad_() for k, v in fixed.items()}
    decoupler_loss(
        **leaves, y=torch.from_numpy(y), wrong=torch.from_numpy(wrong), tau=0.3
    ).backward()
    for key, scenario in (("pooled", (0, 1, 2)), ("pooled", (1, 4, 6)), ("logits", (1, 2, 3))):
        slope = 0.0
        for side in (1, -1):
            moved = {k: v.copy() for k, v in fixed.items()}
            moved[key][scenario] += side * 1e-6
            slope += side * equation_5(moved["pooled"], moved["logits"], y, wrong, 0.3) / 2e-6
        assert float(leaves[key].grad[scenario]) == pytest.approx(slope, rel=1e-5)


def test_the_correctors_loss_is_equation_7(drawn):
    logits = torch.from_numpy(drawn["logits"][2])
    hard, soft = (torch.from_numpy(drawn[k]) for k in ("y", "soft"))
    expected = cross_entropy(drawn["logits"][2], np.eye(4)[drawn["y"]])
    assert float(corrector_loss(logits, hard)) == pytest.approx(expected, rel=1e-9)
    expected = cross_entropy(drawn["logits"][2], drawn["soft"])
    assert float(corrector_loss(logits, soft)) == pytest.approx(expected, rel=1e-9)


def test_the_wrong_label_is_the_best_class_but_the_true_one():
    logits = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [-5.0, -4.0, -9.0]])
    assert wrong_label(logits, torch.tensor([0, 1, 1])).tolist() == [2, 0, 0]
    mixed = torch.tensor([[0.7, 0.3, 0.0], [0.4, 0.6, 0.0], [0.1, 0.5, 0.4]])
    assert wrong_label(logits, mixed).tolist() == [2, 0, 0]


def steps(drawn, y):
    """A step whose net has two necks, and what the numbers of each are."""
    logits = torch.from_numpy(drawn["main"]).requires_grad_()
    aux = {}
    for i, stage in enumerate(("block2", "block3")):
        for key in ("pooled", "logits"):
            aux[f"{NAME}-{stage}/{key}"] = torch.from_numpy(np.roll(drawn[key], i, axis=1))
    aux["other/pooled"] = torch.zeros(1)
    out = Output(logits, torch.zeros(5, 7), {}, aux)
    return Step(Batch(torch.zeros(5, 1), torch.from_numpy(y)), out, "model")


@pytest.mark.parametrize("labels", ["y", "soft"])
def test_equation_9_averages_the_stages_and_takes_y_hat_from_the_classifier(drawn, labels):
    part = DecoupleAndCorrect(tau=0.2, lam1=0.7, lam2=1.9)
    step = steps(drawn, drawn[labels])
    target = drawn["soft"] if labels == "soft" else np.eye(4)[drawn["y"]]
    label = target.argmax(1)
    ranked = np.argsort(-drawn["main"], axis=1)
    wrong = np.where(ranked[:, 0] == label, ranked[:, 1], ranked[:, 0])
    terms = []
    for i in range(2):
        pooled, logits = (np.roll(drawn[k], i, axis=1) for k in ("pooled", "logits"))
        plus, minus = pooled[0], pooled[1]
        norms = np.linalg.norm(plus, axis=1) * np.linalg.norm(minus, axis=1)
        dfd = ((plus * minus).sum(1) / norms).mean() / 0.2
        dfd += cross_entropy(logits[0], target) + cross_entropy(logits[1], np.eye(4)[wrong])
        terms.append(0.7 * dfd + 1.9 * cross_entropy(logits[2], target))
    assert float(part.loss(None, step)) == pytest.approx(np.mean(terms), rel=1e-9)


# domain-aware weights


def weights_of_the_paper(n, total, domains, classes, alpha, beta):
    """Eqs. 10 and 11 as they stand, with vectors over classes."""
    p = []
    for n_k in n:
        b, g = np.full(classes, n_k / total), np.full(classes, 1 / domains)
        d = np.sqrt(0.5 * ((b - g) ** 2).sum())
        p.append(1 / (1 + np.exp(-(alpha * n_k / total - beta * d))))
    return np.array(p) / np.sum(p)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.4), (3.0, 0.0), (0.5, 2.0)])
def test_the_weights_are_equations_10_and_11(alpha, beta):
    n = np.array([30.0, 80.0, 15.0, 75.0, 100.0])
    share = torch.from_numpy(n / n.sum())
    found = domain_aware_weights(share, domain_discrepancy(share, 4, 7), alpha, beta)
    np.testing.assert_allclose(found, weights_of_the_paper(n, 300, 4, 7, alpha, beta), rtol=1e-12)


def test_a_client_with_the_share_of_one_domain_has_no_discrepancy():
    assert float(domain_discrepancy(torch.tensor(0.25), 4, 10)) == 0.0
    assert float(domain_discrepancy(torch.tensor(0.75), 4, 8)) == pytest.approx(2 * 0.5)


def test_without_beta_and_with_equal_sizes_the_weights_are_uniform():
    share = torch.full((7,), 1 / 7, dtype=torch.float64)
    for beta in (0.0, 0.4):
        found = domain_aware_weights(share, domain_discrepancy(share, 4, 10), 1.0, beta)
        np.testing.assert_allclose(found, 1 / 7, rtol=1e-12)


@pytest.mark.parametrize("total", ["participants", "all"])
def test_the_round_is_averaged_with_these_weights(replies, total):
    method = build(f"f2dc[alpha=6,beta=5,total={total}]")
    session = play(start(method, clients_per_round=3, **QUICK), 1)
    updates = replies(session, 1)
    n = [u.examples for u in updates]
    every = sum(u.examples for u in session.server.roster.values())
    assert len(set(n)) > 1
    assert sum(n) < every
    weights = weights_of_the_paper(n, sum(n) if total == "participants" else every, 2, 4, 6, 5)
    assert weights.sum() == pytest.approx(1)
    key = "head.weight"
    mean = sum(w * u.shared[key].double().numpy() for w, u in zip(weights, updates, strict=True))
    np.testing.assert_allclose(session.server.shared[key], mean, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("total", "counted"), [("participants", 90), ("all", 200)])
def test_q_counts_every_domain_of_the_federation_not_only_those_that_are_there(total, counted):
    sizes = {"a-0": 30, "a-1": 60, "b-0": 50, "c-0": 60}
    roster = {
        k: Update(k, "enrol", 0, examples=n, facts={"domain": k[0]}) for k, n in sizes.items()
    }
    server = SimpleNamespace(roster=roster, net=SimpleNamespace(classes=5))
    updates = [Update(k, "train", 1, examples=sizes[k]) for k in ("a-0", "a-1")]
    found = DomainAware(alpha=4.0, beta=3.0, total=total)(server, updates)
    np.testing.assert_allclose(found, weights_of_the_paper([30, 60], counted, 3, 5, 4, 3))


def test_domains_have_to_be_known():
    with pytest.raises(
        NotAllowedError, match=r"domain-aware needs .*add 'domain_ids' to its allow"
    ):
        start("f2dc", allow=("client_val",))
    start("fedavg + decouple-and-correct", allow=("client_val",))


# where the modules live


def test_local_modules_never_leave_and_shared_ones_are_averaged(replies):
    local, shared = (play(start(m, **QUICK), 1) for m in ("f2dc", "f2dc[modules=shared]"))
    extra = {k for k in worker(local).initial if k.startswith("extra.")}
    assert len({k.split(".")[2] for k in extra}) == 3  # A_D, A_C and m
    assert worker(local).keys(Scope.PRIVATE) == extra
    assert not extra & local.server.shared.keys()
    assert extra <= shared.server.shared.keys()
    assert not worker(shared).keys(Scope.PRIVATE)
    assert all(extra <= u.shared.keys() for u in replies(shared, 1))


def test_global_scores_a_domain_with_the_modules_of_its_own_clients(state_of):
    session = play(start("f2dc", protocols=("personal", "global"), rounds=1))
    found = session.record.metrics[-1]["scores"]["global"]["test"]
    net = session.server.net
    by_domain = {}
    for client, site in session.federation.sites.items():
        load(net, session.server.shared, state_of(session, client, "net"))
        counted = score(lambda x: net.eval()(x).logits, site.data.test)
        by_domain.setdefault(site.domain, []).append(counted["accuracy"])
    for domain, values in by_domain.items():
        assert found["domains"][domain] == pytest.approx(np.mean(values))


def test_a_new_site_gets_what_the_scenario_declares():
    rows = {}
    for private_at_new_site in ("refuse", "mean", "none"):
        session = play(start("f2dc", private_at_new_site=private_at_new_site, rounds=2))
        rows[private_at_new_site] = session.record.metrics[-1]["scores"]
    assert "unseen" not in rows["refuse"]
    assert rows["mean"]["unseen"] != rows["none"]["unseen"]
    assert rows["mean"]["global"] == rows["none"]["global"] == rows["refuse"]["global"]


def test_the_scored_map_changes_scores_and_no_tensor(same):
    final = play(start("f2dc", rounds=1))
    for scored in ("robust", "related", "rectified"):
        other = play(start(f"f2dc[scored={scored}]", rounds=1))
        same(everything(final), everything(other))
        a, b = (s.record.metrics[-1]["scores"]["global"]["test"] for s in (final, other))
        assert a["loss"] != b["loss"]


# which stages

SPATIAL = {
    ("alexnet-bn", 64): "conv5",
    ("cnn", 16): "block3",
    ("feddebias-cnn", 16): "conv4",
    ("fedka-cnn", 32): "conv2",
    ("lenet", 32): "conv2",
    ("resnet10", 32): "layer4",
    ("resnet18", 64): "layer4",
    ("vgg11", 32): "block5",
}
NARROW = {"width": 0.125}


@pytest.mark.parametrize(("backbone", "size"), SPATIAL)
def test_last_is_the_last_stage_with_maps_of_every_backbone(backbone, size):
    entry = BACKBONES.get(backbone)
    options = NARROW if isinstance(getattr(entry.options.get("width"), "default", 0), float) else {}
    net = entry.build((3, size, size), 4, **options)
    part = DecoupleAndCorrect()
    part.build(net)
    stage = SPATIAL[backbone, size]
    assert list(net.extra) == [f"{NAME}-{stage}"]
    x, y = torch.randn(3, 3, size, size), torch.tensor([0, 1, 3])
    out = net.train()(x)
    term = part.loss(None, Step(Batch(x, y), out, "model"))
    (term + torch.nn.functional.cross_entropy(out.logits, y)).backward()
    assert all(p.grad is not None for p in net.parameters())


def test_several_stages_by_name_and_all_of_them():
    for words, expected in (
        ("block1+block3", ["block1", "block3"]),
        ("block3, block1", ["block1", "block3"]),
        ("all", ["block1", "block2", "block3"]),
    ):
        net = BACKBONES.get("cnn").build((3, 16, 16), 4)
        DecoupleAndCorrect(stages=words).build(net)
        assert list(net.extra) == [f"{NAME}-{stage}" for stage in expected]
    session = play(start("f2dc[stages=block1+block3]", **QUICK), 1)
    assert {k.split(".")[1] for k in worker(session).keys(Scope.PRIVATE)} == {
        f"{NAME}-block1",
        f"{NAME}-block3",
    }


def test_a_backbone_without_maps_is_one_clear_line():
    with pytest.raises(
        ConfigError, match=r"no stage .* \(layer1 \(500,\).*use a conv.*resnet10"
    ) as e:
        start("f2dc", backbone="mlp", backbone_options={})
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("stage", ["flatten", "layer4", ""])
def test_a_stage_without_maps_is_named_with_those_that_have_some(stage):
    with pytest.raises(ConfigError, match=f"names '{stage}', .* has block1, block2, block3; give"):
        start(Method((DecoupleAndCorrect(stages=stage or "block1+"),)))


# switches and company


@pytest.fixture(scope="module")
def first_round():
    """The head after one round of a method, at one step per visit: enough to tell runs apart."""
    return lambda words: play(start(words, **QUICK), 1).server.shared["head.weight"]


@pytest.fixture(scope="module")
def plain(first_round):
    return first_round("f2dc")


@pytest.mark.parametrize(
    "switch",
    [
        "sigma=1",
        "tau=1",
        "lam1=0",
        "lam2=0",
        "stages=all",
        "width=50",
        "depth=3",
        "noise=logistic-pair",
        "alpha=9",
        "beta=9",
    ],
)
def test_every_switch_changes_the_run(first_round, plain, switch):
    assert not torch.equal(plain, first_round(f"f2dc[{switch}]"))


def test_noise_at_test_changes_the_scores_only(same):
    plain, noisy = (play(start(m, rounds=1)) for m in ("f2dc", "f2dc[noise_at_test=true]"))
    same(everything(plain), everything(noisy))
    a, b = (s.record.metrics[-1]["scores"]["global"]["test"]["loss"] for s in (plain, noisy))
    assert a != b


@pytest.mark.parametrize("setting", ["sigma=0", "modules=global", "scored=f", "depth=4", "beta=-1"])
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ConfigError, match=setting.partition("=")[0]):
        build(f"f2dc[{setting}]")


def test_removing_a_half_leaves_the_other():
    assert build("f2dc - mean") == build("fedavg + decouple-and-correct")
    assert build("f2dc - decouple-and-correct").aggregate.weights == DomainAware()


@pytest.mark.parametrize(
    "other", ["fedavg", "moon", "fedbn", "scaffold", "ditto", "mixup", "fedrep"]
)
def test_the_modules_plug_into_other_methods(other):
    session = play(start(f"{other} + {NAME}", **QUICK), 2)
    assert all(NAME in u["losses"] for u in session.record.metrics)
