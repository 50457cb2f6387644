"""FedBR, ICML 2023: Eqs. 2, 3, 5 and 6, and the order of Algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import functional_call

from fedshift.base import seeds, tree
from fedshift.core.loop import Batch, Step, shuffled_rows
from fedshift.core.registry import build
from fedshift.methods.feddebias.contrast import Features, contrast, cosines, overlaps
from fedshift.methods.feddebias.method import BalancedOutput, balance
from fedshift.methods.feddebias.projector import ContrastiveProjector
from fedshift.methods.feddebias.pseudo_data import PseudoData
from fedshift.methods.feddebias.pseudo_output import pseudo_inputs, pseudo_output
from fedshift.testing import finite_and_moving, play, start, worker

NAME = ContrastiveProjector().name
PSEUDO = PseudoData().name
PUBLIC = {"public": "tiny", "allow": ("public_set", "client_val", "server_unlabelled")}
WIDTHS = (6, 5)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# the equations, in NumPy


def cosine(a, b):
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def l_con(w, z_p, z_g, z_x, tau1, tau2, overlap=None):
    """Eq. 5 with P(z) = tanh(z w); with ``overlap`` its denominator has Eq. 6."""

    def project(z):
        return np.tanh(z @ w)

    rest = z_p if overlap is None else z_p - overlap[:, None] * z_x
    near = np.exp(tau1 * cosine(project(z_p), project(z_g)))
    far = np.exp(tau2 * cosine(project(rest), project(z_x)))
    return -np.log(near / (near + far)).mean()


def ours(w, z, taus, overlap=None):
    return contrast(*cosines(lambda x: torch.tanh(x @ w), Features(*z), overlap), *taus)


@pytest.fixture
def drawn(rng):
    """Projection weights, the three features, overlaps."""
    w = rng.normal(size=WIDTHS)
    return w, [rng.normal(size=(4, WIDTHS[0])) for _ in range(3)], rng.uniform(size=4)


@pytest.mark.parametrize("taus", [(2.0, 2.0), (2.0, 0.5), (0.7, 3.0)])
@pytest.mark.parametrize("mixed", [False, True], ids=["Eq. 5", "Eq. 6"])
def test_the_contrast_is_equation_5_and_6(drawn, taus, mixed):
    w, z, overlap = drawn
    own = overlap if mixed else None
    found = ours(
        torch.from_numpy(w),
        map(torch.from_numpy, z),
        taus,
        torch.from_numpy(overlap) if mixed else None,
    )
    assert float(found) == pytest.approx(l_con(w, *z, *taus, own), rel=1e-9)


@pytest.mark.parametrize("mixed", [False, True], ids=["Eq. 5", "Eq. 6"])
def test_its_gradients_are_those_of_the_equations(drawn, mixed):
    """Central differences of the NumPy version, in theta and in all three features."""
    w, z, overlap = drawn
    own = overlap if mixed else None
    leaves = [torch.from_numpy(a.copy()).requires_grad_() for a in (w, *z)]
    ours(
        leaves[0], leaves[1:], (2.0, 0.5), None if own is None else torch.from_numpy(own)
    ).backward()
    values, h = [w, *z], 1e-6
    for which, leaf in enumerate(leaves):
        for at in ((0, 0), (3, 2), (1, 4)):
            slopes = []
            for sign in (1, -1):
                moved = [v.copy() for v in values]
                moved[which][at] += sign * h
                slopes.append(l_con(moved[0], *moved[1:], 2.0, 0.5, own))
            slope = (slopes[0] - slopes[1]) / (2 * h)
            assert float(leaf.grad[at]) == pytest.approx(slope, rel=1e-5, abs=1e-9)


def test_tau2_of_zero_only_draws_to_the_anchor(drawn):
    w, (z_p, z_g, z_x), _ = drawn
    near = cosine(np.tanh(z_p @ w), np.tanh(z_g @ w))
    found = ours(torch.from_numpy(w), map(torch.from_numpy, (z_p, z_g, z_x)), (2.0, 0.0))
    assert float(found) == pytest.approx(np.log1p(np.exp(-2 * near)).mean())


def test_the_factors_multiply_the_cosine():
    one = torch.ones(3)
    assert float(contrast(one, -one, 3.0, 3.0)) == pytest.approx(np.log1p(np.exp(-6.0)), rel=1e-5)


def test_the_balance_is_the_cross_entropy_to_the_pseudo_label(rng):
    logits, y_p = rng.normal(size=(5, 4)), rng.dirichlet(np.ones(4), 5)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    soft = np.exp(logs)
    for target in (y_p, np.full((5, 4), 0.25)):
        leaf = torch.from_numpy(logits.copy()).requires_grad_()
        given = None if target is not y_p else torch.from_numpy(y_p)
        found = balance(leaf, given)
        found.backward()
        assert float(found.detach()) == pytest.approx(-(target * logs).sum(1).mean())
        np.testing.assert_allclose(leaf.grad, (soft - target) / 5, rtol=1e-6, atol=1e-12)


def test_overlaps_take_classes_and_soft_labels(rng):
    y_p, y = rng.dirichlet(np.ones(4), 3), np.array([2, 0, 2])
    expected = (y_p * np.eye(4)[y]).sum(1)
    np.testing.assert_allclose(overlaps(torch.from_numpy(y_p), torch.from_numpy(y)), expected)
    soft = rng.dirichlet(np.ones(4), 3)
    found = overlaps(torch.from_numpy(y_p), torch.from_numpy(soft))
    np.testing.assert_allclose(found, (y_p * soft).sum(1))


# Algorithm 1, on one batch, written out


def one_step(session, lam, mu, *, max_step=True):
    """Entries after lines 8 to 11 on the first batch of dark-0, by plain gradients."""
    server, site = session.server, session.federation.sites["dark-0"]
    lr, size = server.scenario.lr, server.scenario.batch_size
    rows = seeds.generator(server.seed, 1, "dark-0", "batches")
    first = next(shuffled_rows(len(site.data.train), size, rows, epochs=None, steps=1))
    x, y = site.data.train.take(first)
    x_p = server.state[PSEUDO]["batch"]
    entries = {k: v.clone().requires_grad_() for k, v in server.shared.items()}
    theta = {k for k in entries if k.startswith("extra.")}
    net = server.net.train()

    def forward(x):
        return functional_call(net, entries, (x,))

    def project(z):
        for i in (0, 2, 4):
            z = z @ entries[f"extra.{NAME}.{i}.weight"].T + entries[f"extra.{NAME}.{i}.bias"]
            z = z.relu() if i < 4 else z
        return z / z.norm(dim=1, keepdim=True)

    def l_con(z_p, z_g, z_x):
        p, g, d = project(z_p), project(z_g), project(z_x)
        near, far = (2.0 * (p * g).sum(1)).exp(), (2.0 * (p * d).sum(1)).exp()
        return -(near / (near + far)).log().mean()

    out, pseudo = forward(x), forward(x_p)
    z = (pseudo.features, pseudo.features.detach(), out.features)  # phi_i is phi_g on batch 1
    if max_step:
        rise = torch.autograd.grad(l_con(*(f.detach() for f in z)), [entries[k] for k in theta])
        for key, slope in zip(theta, rise, strict=True):
            entries[key] = (entries[key] + lr * slope).detach().requires_grad_()
    task = -out.logits.log_softmax(1)[torch.arange(len(y)), y].mean()
    flat = -pseudo.logits.log_softmax(1).mean()
    model = [k for k in entries if k not in theta]
    total = task + lam * flat + mu * l_con(*z)
    fall = torch.autograd.grad(total, [entries[k] for k in model])
    stepped = {k: entries[k] - lr * s for k, s in zip(model, fall, strict=True)}
    return {k: v.detach() for k, v in (entries | stepped).items()}


@pytest.mark.parametrize("max_step", [True, False])
def test_one_batch_is_algorithm_1(max_step):
    """The projector goes up with features held; the model goes down with the new projector."""
    words = f"feddebias[lam=0.7,mu=1.5,max_step={max_step}]"
    session = start(words, steps=1, backbone_options={"width": 4, "norm": "group"}, lr=0.5)
    session.server.round = 1
    expected = one_step(session, 0.7, 1.5, max_step=max_step)
    found = worker(session).visit(session.server.broadcast("train", "dark-0")).shared
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-6, msg=key)
        moved = float((found[key] - session.server.shared[key]).abs().max())
        assert (moved > 1e-4) is (max_step or not key.startswith("extra.")), key


def visiting(open_client, session, method, client="dark-0"):
    """A client in a visit with a batch, after every part's ``begin``, on a net that has moved."""
    opened = open_client(session, client)
    for part in method.parts:
        part.begin(opened)
    with torch.no_grad():
        for parameter in opened.net.parameters():
            parameter.mul_(1.2)
    x, y = opened.site.data.train.take(torch.arange(4))
    batch = Batch(x, y)
    for part in method.parts:
        batch = part.batch(opened, batch)
    opened.net.train()
    return opened, batch


def test_the_max_step_has_no_gradient_outside_the_projector(open_client):
    method = build("feddebias")
    client, batch = visiting(open_client, start(method), method)
    (phase,) = method.phases(client)
    high, low = phase.players
    terms = high.objective(client, Step(batch, high.forward(client, batch), high.name))
    sum(terms.values()).backward()
    touched = {k for k, p in client.net.named_parameters() if p.grad is not None}
    assert touched == {k for k, _ in high.train(client)}
    assert all(k.startswith(f"extra.{NAME}.") for k in touched)
    names = {k for k, _ in client.net.named_parameters()}
    assert {k for k, _ in low.train(client)} == names - touched
    assert low.objective is None  # the base player, with every part's term


def test_both_steps_share_one_forward(open_client, monkeypatch):
    method = build("feddebias")
    client, batch = visiting(open_client, start(method), method)
    (phase,) = method.phases(client)
    outs = [player.forward(client, batch) for player in phase.players]
    assert outs[0] is outs[1]
    assert pseudo_output(client, batch) is pseudo_output(client, batch)


def test_the_anchor_is_the_received_model_on_the_pseudo_data(open_client):
    method = build("feddebias")
    session = play(start(method), 1)
    client, batch = visiting(open_client, session, method)
    part = method.parts[2]
    z = part._features(client, Step(batch, client.net(batch.x), "model"))
    site = session.server.net.eval()
    site.load_state_dict(client.received)
    x_p = pseudo_inputs(client)
    torch.testing.assert_close(z.anchor, site(x_p).features.detach())
    assert not z.anchor.requires_grad
    assert z.pseudo.requires_grad
    assert z.data.requires_grad
    assert not torch.allclose(z.pseudo, z.anchor)


def test_a_mixture_has_the_anchor_of_its_own_batch_unless_it_is_kept_stale(open_client):
    method = build("feddebias[kind=mixture]")
    client, batch = visiting(open_client, start(method, **PUBLIC), method)
    fresh, stale = (ContrastiveProjector(stale_anchor=s) for s in (False, True))
    first = [part._anchor(client, batch) for part in (fresh, stale)]
    assert torch.equal(*first)
    later = Batch(batch.x, batch.y)
    method.parts[0].batch(client, later)
    assert not torch.equal(fresh._anchor(client, later), first[0])
    assert torch.equal(stale._anchor(client, later), first[1])


@pytest.mark.parametrize("correction", [True, False])
def test_a_mixture_has_the_correction_of_equation_6(open_client, correction):
    method = build(f"feddebias[kind=mixture,correction={correction}]")
    client, batch = visiting(open_client, start(method, **PUBLIC), method)
    part, state = method.parts[2], client.scratch[PSEUDO]
    step = Step(batch, client.net(batch.x), "model")
    z = part._features(client, step)
    overlap = state["y"][torch.arange(4), batch.y] if correction else None
    near, far = cosines(client.net.extra[NAME], z, overlap)
    expected = 0.5 * float(contrast(near, far, 2.0, 2.0).detach())
    assert float(part.loss(client, step).detach()) == pytest.approx(expected, rel=1e-6)


def test_a_batch_of_another_length_is_paired_as_far_as_it_goes(open_client):
    method = build("feddebias[size=6]")
    client, batch = visiting(open_client, start(method), method)
    part = method.parts[2]
    z = part._features(client, Step(batch, client.net(batch.x), "model"))
    assert [len(f) for f in z] == [4, 4, 4]
    torch.testing.assert_close(z.pseudo, pseudo_output(client, batch).features[:4])
    longer = Batch(*client.site.data.train.take(torch.arange(9)))
    z = part._features(client, Step(longer, client.net(longer.x), "model"))
    assert [len(f) for f in z] == [6, 6, 6]


# identities


def backbone(session):
    return {k: v for k, v in session.server.shared.items() if not k.startswith("extra.")}


@pytest.mark.parametrize("kind", ["rsm", "mixture"])
def test_feddebias_without_weights_is_fedavg(same, kind):
    given = PUBLIC | {"momentum": 0.9, "weight_decay": 1e-2, "clip": 5.0}
    plain = play(start("fedavg", **given))
    debiased = play(start(f"feddebias[lam=0,mu=0,kind={kind}]", **given))
    same(plain.server.shared, backbone(debiased))


def test_taking_both_components_away_is_fedavg(same):
    bare = play(start("feddebias - balanced-output - contrastive-projector"), 2)
    same(play(start("fedavg"), 2).server.shared, bare.server.shared)


def test_a_component_whose_weight_is_zero_is_a_component_less(same):
    one = play(start("feddebias[mu=0]"), 2), play(start("feddebias - contrastive-projector"), 2)
    two = play(start("feddebias[lam=0]"), 2), play(start("feddebias - balanced-output"), 2)
    for left, right in (one, two):
        same(backbone(left), backbone(right))


def test_pseudo_data_leaves_batch_norm_statistics_to_the_data():
    """After one step they are FedAvg's: both saw the same batch with the same weights."""
    plain, debiased = (start(m, steps=1) for m in ("fedavg", "feddebias"))
    a, b = (
        worker(s).visit(s.server.broadcast("train", "dark-0")).shared for s in (plain, debiased)
    )
    statistics = [k for k in a if "running" in k or "num_batches" in k]
    assert statistics
    assert all(torch.equal(a[k], b[k]) for k in statistics)
    assert not all(torch.equal(a[k], b[k]) for k in a)


def test_normalisation_of_pseudo_data_is_by_running_statistics(open_client):
    method = build("feddebias")
    client, batch = visiting(open_client, play(start(method), 1), method)
    before = tree.clone(client.net.state_dict())
    found = pseudo_output(client, batch).logits
    assert all(m.training for m in client.net.modules())
    assert all(torch.equal(before[k], v) for k, v in client.net.state_dict().items())
    torch.testing.assert_close(found, client.net.eval()(pseudo_inputs(client)).logits)


def test_the_max_step_is_no_further_local_step(replies):
    for words in ("fedavg", "feddebias"):
        found = {u.client: u.steps for u in replies(play(start(words), 1), 1)}
        assert found == {u.client: u.steps for u in replies(play(start("fedavg"), 1), 1)}


def test_the_projector_is_averaged_and_unused_by_the_net(replies):
    session = play(start("feddebias", weights="uniform"), 1)
    updates = replies(session, 1)
    for key in (k for k in session.server.shared if k.startswith("extra.")):
        expected = np.mean([u.shared[key].numpy() for u in updates], axis=0)
        np.testing.assert_allclose(session.server.shared[key], expected, rtol=1e-4, atol=1e-6)
    net = session.server.net.eval()
    x, _ = session.federation.unseen.test.take(torch.arange(4))
    before = net(x).logits
    for parameter in net.extra[NAME].parameters():
        parameter.data.zero_()
    assert torch.equal(before, net(x).logits)


@pytest.mark.parametrize(
    ("projection", "widths"),
    [
        ("paper", lambda d: [(256, d), (256, 256), (128, 256)]),
        ("released", lambda d: [(2 * d, d), (2 * d, 2 * d), (d, 2 * d)]),
        ("none", lambda d: []),
    ],
)
def test_the_projection_has_three_layers(projection, widths):
    net = start(f"feddebias[projection={projection}]").server.net
    d = net.head_module.in_features
    found = [tuple(p.shape) for p in net.extra[NAME].parameters() if p.dim() == 2]
    assert found == widths(d)
    if found:
        kinds = [type(m).__name__ for m in net.extra[NAME]]
        assert kinds == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]


SWITCHES = ["lam=1", "mu=2", "tau1=1", "tau2=0.5", "max_step=false", "projection=released"]
SWITCHES += ["projection=none", "refresh=once", "per_sample=6", "per_client=2", "size=7"]
MIXTURE = ["local_samples=0", "local_samples=3", "correction=false", "stale_anchor=true"]


def test_every_switch_changes_something():
    plain = backbone(play(start("feddebias", rounds=2)))
    for switch in SWITCHES:
        other = backbone(play(start(f"feddebias[{switch}]", rounds=2)))
        assert any(not torch.equal(plain[k], other[k]) for k in plain), switch
    plain = backbone(play(start("feddebias[kind=mixture]", rounds=1, **PUBLIC)))
    for switch in MIXTURE:
        other = backbone(play(start(f"feddebias[kind=mixture,{switch}]", rounds=1, **PUBLIC)))
        assert any(not torch.equal(plain[k], other[k]) for k in plain), switch


@pytest.mark.parametrize("words", ["feddebias + mixup", "feddebias + scaffold + moon + fedbn"])
def test_other_methods_stack_on_top(words):
    finite_and_moving(words)


def test_the_papers_mixtures_have_each_others_images():
    from fedshift.experiment.scenario import find_scenario

    found = {n: find_scenario(f"feddebias/{n}").public for n in ("cifar10", "cifar100", "pacs")}
    assert found == {"cifar10": "cifar100", "cifar100": "cifar10", "pacs": None}
    assert find_scenario("feddebias/clean-cifar10").public == "cifar100"


def test_the_terms_are_logged_by_name(replies):
    (update, *_) = replies(play(start("feddebias"), 1), 1)
    terms = {"task", BalancedOutput().name, NAME, f"{NAME}/max"}
    assert set(update.metrics) == terms
