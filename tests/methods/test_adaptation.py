"""TENT, T3A, SHOT and BatchNorm statistics at a new site, without labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.base import seeds, tree
from fedshift.base.errors import ConfigError, DataError
from fedshift.core.loop import Batch, Step
from fedshift.core.net import Output, batch_norm_buffers, head_keys, load
from fedshift.core.part import Scoring
from fedshift.core.registry import METHODS, build
from fedshift.data.samples import Samples
from fedshift.evaluate.protocols import evaluate
from fedshift.methods.shared.adaptation import entropy, mean_entropy
from fedshift.methods.shot import Shot, pseudo_labels
from fedshift.methods.t3a import T3a, most_certain, templates
from fedshift.methods.tent import Tent, affine
from fedshift.testing import play, start

PARTS = ("adapt-bn", "tent", "t3a", "shot")
SCORING = Scoring(None, {}, seeds.generator)


@pytest.fixture(scope="module")
def trained():
    """A session after two rounds, with its model in ``server.net``."""
    return play(start("fedavg"), 2)


@pytest.fixture
def net(trained):
    load(trained.server.net, trained.server.shared)
    return trained.server.net


@pytest.fixture
def inputs(trained):
    return trained.federation.unseen.inputs


def only(inputs, rows):
    return Samples(inputs.x, inputs.y, inputs.rows[rows], inputs.pixels)


def numpy_entropy(logits):
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return -(p * np.log(p)).sum(1), p


def test_entropies_are_their_formulas():
    logits = np.random.default_rng(0).normal(size=(6, 4))
    h, p = numpy_entropy(logits)
    np.testing.assert_allclose(entropy(torch.from_numpy(logits)).numpy(), h, rtol=1e-9)
    mean = p.mean(0)
    found = mean_entropy(torch.from_numpy(logits))
    assert float(found) == pytest.approx(-(mean * np.log(mean)).sum())
    assert float(entropy(torch.zeros(1, 7))) == pytest.approx(np.log(7))


@pytest.mark.parametrize("name", PARTS)
def test_each_is_a_method_and_a_part_for_any_other(name):
    assert METHODS.entries()[name].group == "adaptation"
    assert [p.name for p in build(name).parts] == [name]
    assert [p.name for p in build(f"fedprox + {name}").parts] == ["proximal", name]
    assert [p.name for p in build(f"fedavg + {name} - {name}").parts] == []


@pytest.mark.parametrize("name", PARTS)
def test_a_site_without_inputs_leaves_the_model_as_it_was(net, inputs, same, name):
    before = tree.clone(net.state_dict())
    build(name).parts[0].adapt(net, only(inputs, slice(0)), SCORING)
    same(before, net.state_dict())


@pytest.mark.parametrize("part", [Tent(adapt_epochs=0), Shot(adapt_epochs=0)])
def test_no_steps_leave_the_model_as_it_was(net, inputs, same, part):
    before = tree.clone(net.state_dict())
    part.adapt(net, inputs, SCORING)
    same(before, net.state_dict())


@pytest.mark.parametrize("name", PARTS)
def test_training_is_that_of_fedavg_and_only_the_adapted_score_differs(trained, name, same):
    adapted = play(start(f"fedavg + {name}"), 2)
    same(trained.server.shared, adapted.server.shared)
    before, after = (
        evaluate(s.server, s.transport, s.federation, s.record) for s in (trained, adapted)
    )
    assert {p for p in before if before[p] != after[p]} == {"unseen-adapted"}


@pytest.mark.parametrize("part", [Tent(), Shot()])
def test_one_input_is_refused(net, inputs, part):
    with pytest.raises(DataError, match="gives 1 input to adapt to; BatchNorm needs 2"):
        part.adapt(net, only(inputs, slice(1)), SCORING)


def test_tent_refuses_a_net_without_batch_norm():
    with pytest.raises(ConfigError, match="tent trains the scale and shift of BatchNorm, and this"):
        start("tent", backbone_options={"norm": "group"})


def test_tent_moves_the_scale_and_shift_of_batch_norm_and_nothing_else_but_statistics(net, inputs):
    before = tree.clone(net.state_dict())
    Tent().adapt(net, inputs, SCORING)
    moved = {k for k, v in net.state_dict().items() if not torch.equal(v, before[k])}
    names = {k for k, _ in affine(net)}
    assert names == {f"block{i}.1.{k}" for i in (1, 2, 3) for k in ("weight", "bias")}
    assert names <= moved <= names | batch_norm_buffers(net)


def test_one_step_of_tent_is_adams_first_step_against_the_entropy(net, inputs):
    """Adam's first step is lr times the sign of the gradient; one batch holds all inputs."""
    x, _ = inputs.take(torch.arange(len(inputs)))
    named = affine(net)
    logs = net.train()(x).logits.log_softmax(1)
    loss = -(logs.exp() * logs).sum(1).mean()
    gradients = torch.autograd.grad(loss, [p for _, p in named])
    before = [p.detach().clone() for _, p in named]
    Tent(adapt_lr=0.01, adapt_batch=len(inputs)).adapt(net, inputs, SCORING)
    for (_, p), old, g in zip(named, before, gradients, strict=True):
        sure = g.abs() > 1e-4
        step = (p.detach() - old)[sure].numpy()
        np.testing.assert_allclose(step, -0.01 * np.sign(g[sure].numpy()), rtol=1e-2)


def test_after_tent_the_statistics_are_those_of_the_site(net, inputs):
    Tent(adapt_lr=0.0, adapt_batch=len(inputs)).adapt(net, inputs, SCORING)
    x, _ = inputs.take(torch.arange(len(inputs)))
    entries = net.state_dict()
    maps = F.conv2d(x, entries["block1.0.weight"], padding=1).numpy()
    rows = maps.transpose(1, 0, 2, 3).reshape(len(entries["block1.1.weight"]), -1)
    np.testing.assert_allclose(entries["block1.1.running_mean"], rows.mean(1), atol=1e-5)
    np.testing.assert_allclose(entries["block1.1.running_var"], rows.var(1, ddof=1), rtol=1e-4)


def test_the_supports_of_least_entropy_stay_in_each_class():
    h = torch.tensor([0.5, 0.1, 0.3, 0.2, 0.9, 0.4])
    labels = torch.tensor([0, 0, 2, 0, 2, 3])
    assert most_certain(h, labels, 2).tolist() == [False, True, True, True, True, True]
    assert most_certain(h, labels, 1).tolist() == [False, True, True, False, False, True]
    assert most_certain(h, labels, 0).all()


def test_a_template_is_the_normalised_sum_of_directions():
    supports = torch.tensor([[2.0, 0.0], [0.0, 5.0], [3.0, 4.0]])
    found = templates(supports, torch.tensor([0, 0, 1]), 2)
    np.testing.assert_allclose(found, [[2**-0.5, 2**-0.5], [0.6, 0.8]], rtol=1e-6)


def test_the_new_head_is_the_mean_direction_of_its_old_row_and_the_features_of_its_class(
    net, inputs
):
    """All inputs are supports: each feature in its predicted class, with the head's own row."""
    x, _ = inputs.take(torch.arange(len(inputs)))
    out = net.eval()(x)
    z, y = out.features.detach().numpy(), out.logits.argmax(1).numpy()
    w = net.head_module.weight.detach().numpy().copy()
    unit = lambda a: a / np.linalg.norm(a, axis=-1, keepdims=True)  # noqa: E731
    expected = [unit(unit(w[c]) + unit(z[y == c]).sum(0)) for c in range(4)]
    before = tree.clone(net.state_dict())
    T3a(keep=0).adapt(net, inputs, SCORING)
    np.testing.assert_allclose(net.head_module.weight.detach(), expected, rtol=1e-4, atol=1e-6)
    assert not net.head_module.bias.any()
    rest = net.state_dict().keys() - head_keys(net)
    assert all(torch.equal(net.state_dict()[k], before[k]) for k in rest)


def test_with_one_support_per_class_the_new_row_is_the_direction_of_the_surest(net, inputs):
    """Rows of the head are supports too, as sure as the head, bias included, is of them."""
    with torch.no_grad():
        net.head_module.weight.mul_(4.0)
        net.head_module.bias.copy_(torch.tensor([2.0, -3.0, 0.0, 1.0]))
    x, _ = inputs.take(torch.arange(len(inputs)))
    z = net.eval()(x).features.detach().double().numpy()
    w, b = (p.detach().double().numpy() for p in net.head_module.parameters())
    supports = np.concatenate([w, z])
    labels = np.concatenate([np.arange(4), (z @ w.T + b).argmax(1)])
    h, _ = numpy_entropy(supports @ w.T + b)
    surest = [supports[labels == c][h[labels == c].argmin()] for c in range(4)]
    T3a(keep=1).adapt(net, inputs, SCORING)
    expected = [row / np.linalg.norm(row) for row in surest]
    np.testing.assert_allclose(net.head_module.weight.detach(), expected, rtol=1e-4, atol=1e-6)


def test_t3a_refuses_a_head_that_is_not_linear(net):
    with pytest.raises(ConfigError, match="t3a replaces the weights of a linear head, and this"):
        start(
            "t3a",
            backbone="bowl",
            backbone_options={},
            data="bowls",
            domains=("left",),
            unseen=None,
            protocols=("global",),
        )


def test_pseudo_labels_follow_the_clusters_and_not_a_single_wrong_prediction():
    """Two far clusters; one sample of the first is predicted as the second with little margin."""
    z = torch.tensor([[5.0, 0.0], [5.2, 0.1], [4.9, -0.1], [0.0, 5.0], [0.1, 5.2]])
    p = torch.tensor([[0.9, 0.1, 0], [0.9, 0.1, 0], [0.45, 0.55, 0], [0.1, 0.9, 0], [0.1, 0.9, 0]])
    assert pseudo_labels(z, p).tolist() == [0, 0, 0, 1, 1]


def test_a_class_that_is_never_predicted_gets_no_pseudo_label():
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(size=(30, 3))).float()
    p = torch.from_numpy(rng.dirichlet((1, 1, 1), size=30)).float()
    p[:, 1] = p[:, [0, 2]].amin(1) / 2  # never the largest
    assert set(pseudo_labels(z, p / p.sum(1, keepdim=True)).tolist()) <= {0, 2}


def test_shot_leaves_the_head_alone_and_trains_everything_below(net, inputs):
    before = tree.clone(net.state_dict())
    Shot(adapt_epochs=2).adapt(net, inputs, SCORING)
    own = head_keys(net)
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key]) is (key in own), key


def test_one_step_of_shot_goes_down_its_objective(net, inputs):
    """One batch of all inputs: the step is lr times gradient and decay, momentum starting at 0."""
    x, _ = inputs.take(torch.arange(len(inputs)))
    out = net.eval()(x)
    y = pseudo_labels(out.features.detach(), out.logits.detach().softmax(1))
    logits = net.train()(x).logits
    p, logs = logits.softmax(1), logits.log_softmax(1)
    mean = p.mean(0)
    picked = logs[torch.arange(len(y)), y]
    loss = -(p * logs).sum(1).mean() + (mean * mean.log()).sum() - 0.3 * picked.mean()
    name, w = "block2.0.weight", net.get_parameter("block2.0.weight")
    (g,) = torch.autograd.grad(loss, [w])
    old = w.detach().clone()
    Shot(adapt_epochs=1, adapt_lr=0.1, adapt_batch=len(inputs)).adapt(net, inputs, SCORING)
    expected = -0.1 * (g + 0.001 * old)
    moved = net.get_parameter(name).detach() - old
    np.testing.assert_allclose(moved.numpy(), expected.numpy(), rtol=1e-2, atol=1e-6)


def test_shot_labels_anew_before_each_pass_and_carries_its_momentum(net, inputs):
    """Two steps on all inputs, beside the same in plain torch; the site's labels stay unread."""
    before, labels = tree.clone(net.state_dict()), inputs.y.clone()
    x, _ = inputs.take(torch.arange(len(inputs)))
    moved = {k: p for k, p in net.named_parameters() if k not in head_keys(net)}
    velocity = {k: torch.zeros_like(p) for k, p in moved.items()}
    for _ in range(2):
        out = net.eval()(x)
        y = pseudo_labels(out.features.detach(), out.logits.detach().softmax(1))
        logits = net.train()(x).logits
        p, logs = logits.softmax(1), logits.log_softmax(1)
        loss = -(p * logs).sum(1).mean() + (p.mean(0) * p.mean(0).log()).sum()
        slopes = torch.autograd.grad(loss + 0.3 * F.nll_loss(logs, y), list(moved.values()))
        with torch.no_grad():
            for (k, w), g in zip(moved.items(), slopes, strict=True):
                velocity[k] = 0.9 * velocity[k] + g + 0.001 * w
                w.sub_(0.1 * velocity[k])
    expected = tree.clone(moved)
    load(net, before)
    Shot(adapt_epochs=2, adapt_lr=0.1, adapt_batch=len(inputs)).adapt(net, inputs, SCORING)
    for k, w in expected.items():
        found = net.get_parameter(k).detach()
        np.testing.assert_allclose(found, w.detach(), rtol=1e-2, atol=1e-5, err_msg=k)
    assert not net.training
    assert torch.equal(inputs.y, labels)


def test_diverse_predictions_cost_less_than_equal_ones():
    """The objective is 0 for one class everywhere, and -log K for sure and balanced predictions."""
    y = torch.arange(3)
    worth = {}
    for name, logits in (("one", torch.tensor([[50.0, 0, 0]] * 3)), ("each", 50.0 * torch.eye(3))):
        out = Output(logits, torch.zeros(3, 1))
        worth[name] = float(Shot(beta=0.0).objective(Step(Batch(y, y), out, "shot"))["shot"])
    assert worth["one"] == pytest.approx(0.0, abs=1e-6)
    assert worth["each"] == pytest.approx(-np.log(3), rel=1e-5)
