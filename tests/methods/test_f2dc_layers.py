"""Wang et al., 2026, Eqs. 3, 4 and 6, and the modules that compute them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.seeds import generator
from fedshift.core.net import call_frozen
from fedshift.core.registry import BACKBONES, build
from fedshift.methods.f2dc.layers import (
    DecouplingNeck,
    Mask,
    concrete_mask,
    convolutions,
    correction,
    logistic_like,
    pool,
    related_part,
)

RNG = np.random.default_rng(0)
SHAPE = (5, 6, 3, 2)


def mask_of_the_paper(s, g_a, g_b, sigma):
    """Eq. 3 as it stands."""
    p = 1 / (1 + np.exp(-s))
    on = np.exp((np.log(p) + g_a) / sigma)
    off = np.exp((np.log(1 - p) + g_b) / sigma)
    return on / (on + off)


def neck(scored="final", at_test=False, draws=1):
    mask = Mask(0.1, draws=draws, at_test=at_test)
    made = DecouplingNeck(6, 4, mask=mask, width=8, depth=2, scored=scored).double()
    with torch.no_grad():
        for key, value in made.state_dict().items():
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape, generator=generator(key)) - 0.3)
            if key.endswith("running_var"):
                value.fill_(0.7)
    return made


@pytest.fixture
def maps():
    return torch.from_numpy(RNG.normal(size=SHAPE))


@pytest.mark.parametrize("sigma", [0.1, 0.5, 2.0])
def test_the_mask_is_equation_3(sigma):
    s, g_a, g_b = RNG.normal(size=(3, *SHAPE))
    found = concrete_mask(*map(torch.from_numpy, (s, g_a - g_b)), sigma)
    np.testing.assert_allclose(found, mask_of_the_paper(s, g_a, g_b, sigma), rtol=1e-9)


def test_towards_sigma_0_the_mask_is_binary_and_the_sign_of_the_noisy_score():
    s, g = map(torch.from_numpy, RNG.normal(size=(2, *SHAPE)))
    mask = concrete_mask(s, g, 1e-6)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(mask == 1, s + g > 0)


def test_the_noise_is_distributed_as_the_difference_of_two_gumbel_draws():
    n = 200_000
    a, b = RNG.gumbel(size=(2, n))
    drawn = logistic_like(torch.empty(n, dtype=torch.float64), generator("noise")).numpy()
    levels = np.linspace(0.02, 0.98, 25)
    np.testing.assert_allclose(np.quantile(drawn, levels), np.quantile(a - b, levels), atol=0.06)
    assert drawn.var() == pytest.approx(np.pi**2 / 3, rel=0.02)


@pytest.mark.parametrize(("draws", "variance"), [(1, np.pi**2 / 3), (2, 2 * np.pi**2 / 3)])
def test_the_pair_of_logistic_draws_has_twice_the_variance(draws, variance):
    mask = Mask(1e3, draws=draws, at_test=False)  # M = 1/2 + noise / 4 sigma
    found = 4e3 * (mask(torch.zeros(200_000, dtype=torch.float64)) - 0.5)
    assert float(found.var()) == pytest.approx(variance, rel=0.03)


@pytest.mark.parametrize("sigma", [1e-6, 0.1, 5.0])
def test_the_two_halves_always_add_up_to_the_map(maps, sigma):
    for dtype in (torch.float32, torch.float64):
        f = maps.to(dtype)
        mask = concrete_mask(f, logistic_like(f), sigma)
        rest, related = related_part(f, mask)
        torch.testing.assert_close(mask * f + related, f)  # Eq. 4
        torch.testing.assert_close(related, f - mask * f)
        torch.testing.assert_close(rest, 1 - mask)


@pytest.mark.parametrize("training", [True, False])
def test_every_map_of_the_neck_is_equations_4_and_6(maps, training, monkeypatch):
    """Robust, related, rectified and final by NumPy, from the mask and A_C's answer."""
    made = neck().train(training)
    seen = {}
    made.mask.register_forward_hook(lambda _m, _x, out: seen.update(mask=out.detach()))
    made.corrector.register_forward_hook(
        lambda _m, x, out: seen.update(into=x[0].detach(), residual=out.detach())
    )
    out, aux = made(maps)
    f, mask, residual = maps.numpy(), seen["mask"].numpy(), seen["residual"].numpy()
    plus, minus = mask * f, (1 - mask) * f
    star = minus + (1 - mask) * residual
    np.testing.assert_allclose(seen["into"], minus, atol=1e-12)
    np.testing.assert_allclose(out.detach(), plus + star, atol=1e-12)
    if training:
        pooled = np.stack([m.mean((2, 3)) for m in (plus, minus, star)])
        np.testing.assert_allclose(aux["pooled"].detach(), pooled, atol=1e-12)
        weight, bias = (p.detach().numpy() for p in made.classifier.parameters())
        np.testing.assert_allclose(aux["logits"].detach(), pooled @ weight.T + bias, atol=1e-12)
        return
    assert aux == {}
    for name, map_ in {"robust": plus, "related": minus, "rectified": star}.items():
        monkeypatch.setattr(made, "scored", name)
        np.testing.assert_allclose(made(maps)[0].detach(), map_, atol=1e-12)


def test_the_correction_is_gated_and_pooling_is_the_mean(maps):
    rest, residual = maps.sigmoid(), maps * 3
    np.testing.assert_allclose(correction(rest, residual), rest.numpy() * residual.numpy())
    np.testing.assert_allclose(pool(maps), maps.numpy().mean((2, 3)))


def test_while_training_the_scored_map_is_not_asked_for(maps):
    made = neck("related", draws=1).train()
    made.mask.eval()  # without noise, to compare
    out, _ = made(maps)
    made.scored = "final"
    assert torch.equal(out, made(maps)[0])


def test_the_mask_is_noisy_in_training_and_fixed_at_inference(maps):
    made = neck()
    assert not torch.equal(made.train()(maps)[0], made(maps)[0])
    made.eval()
    assert torch.equal(made(maps)[0], made(maps)[0])
    scores = made.decoupler(maps)
    np.testing.assert_allclose(
        made.mask(scores).detach(), 1 / (1 + np.exp(-scores.detach().numpy() / 0.1)), rtol=1e-9
    )


def test_noise_at_test_is_noise_but_the_same_each_time(maps):
    plain, noisy = neck().eval(), neck(at_test=True).eval()
    before = torch.random.get_rng_state()
    first = noisy(maps)[0]
    assert torch.equal(first, noisy(maps)[0])
    assert not torch.equal(first, plain(maps)[0])
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_corrector_that_answers_zero_leaves_the_backbone_as_it_is():
    net = BACKBONES.get("cnn").build((3, 16, 16), 4)
    x = torch.randn(3, 3, 16, 16, generator=generator("x"))
    bare = net.eval()(x).logits
    build("f2dc").parts[0].build(net)
    with torch.no_grad():
        net.extra["decouple-and-correct-block3"].corrector[-1].weight.zero_()
    assert torch.equal(net.eval()(x).logits, bare)
    assert torch.equal(call_frozen(net.train(), net.state_dict(), x).logits, bare)


def count(module):
    return sum(p.numel() for p in module.parameters())


def test_two_convolutions_of_the_text_and_three_of_the_released_code():
    two = 512 * 64 * 9 + 2 * 64 + 64 * 512 * 9
    assert count(convolutions(512, 64, 2)) == two
    assert count(convolutions(512, 50, 3)) == 483_500
    for settings, modules in (("", 2 * two), ("[depth=3,width=50]", 2 * 483_500)):
        net = BACKBONES.get("resnet10").build((3, 32, 32), 7)
        assert count(net) == 4_901_703
        build(f"f2dc{settings}").parts[0].build(net)
        assert count(net) == 4_901_703 + modules + 512 * 7 + 7


def test_gradients_reach_every_module_of_the_neck_and_the_map(maps):
    made = neck().train()
    f = maps.clone().requires_grad_()
    _, aux = made(f)
    aux["logits"].square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in made.parameters())
    assert f.grad.abs().sum() > 0
