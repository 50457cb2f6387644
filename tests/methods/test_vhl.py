"""Tang et al., ICML 2022: virtual samples as common targets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.base import seeds
from fedshift.core.loop import Batch, Step
from fedshift.core.registry import build
from fedshift.methods.vhl.method import VirtualData, wider
from fedshift.methods.vhl.virtual import decode, random_decoder, virtual_noise
from fedshift.testing import play, start

NAME = VirtualData().name


def test_noise_is_separated_by_class():
    """64 dimensions: means are 0.3 * sqrt(2 * 64) apart, samples 0.1 * 8 from their mean."""
    with seeds.fork(0):
        z, y = virtual_noise(5, 500)
    assert y.bincount().tolist() == [100] * 5
    means = np.stack([z[y == c].numpy().mean(0) for c in range(5)])
    between = np.linalg.norm(means[:, None] - means, axis=2)[np.triu_indices(5, 1)]
    around = np.linalg.norm(z.numpy() - means[y.numpy()], axis=1)
    assert between.mean() == pytest.approx(0.3 * np.sqrt(128), rel=0.1)
    assert around.mean() == pytest.approx(0.8, rel=0.1)


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 20, 33), (2, 3, 3), (17,)])
def test_virtual_inputs_have_the_shape_of_real_ones_and_are_standardised(shape):
    with seeds.fork(1):
        x = decode(random_decoder(shape), torch.randn(6, 64), shape)
    assert x.shape == (6, *shape)
    flat = x.flatten(1).numpy()
    np.testing.assert_allclose(flat.mean(1), 0, atol=1e-5)
    np.testing.assert_allclose(flat.std(1), 1, rtol=1e-4)


def test_further_outputs_make_the_cross_entropy_that_of_2k_classes():
    rng = np.random.default_rng(0)
    own, further = (torch.from_numpy(rng.normal(size=(6, 3))) for _ in range(2))
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    whole = F.cross_entropy(torch.cat([own, further], 1), y, reduction="none")
    parts = F.cross_entropy(own, y, reduction="none") + wider(own, further)
    torch.testing.assert_close(parts, whole)


def test_virtual_samples_are_classified_as_the_second_k_of_2k_classes(open_client):
    """Weight 3 times the cross-entropy at K + y, and what the further outputs cost real samples."""
    session = start("vhl")
    part = VirtualData(alpha=3.0, align=0.0, within=0.0, size=6)
    client, twin = (open_client(session, "dark-0") for _ in range(2))  # the same draws
    part.begin(client)
    net, held = client.net.eval(), client.scratch[NAME]
    x, y = client.site.data.train.take(torch.arange(5))
    real = net(x)
    found = part.loss(client, Step(Batch(x, y), real, "model")).detach()
    rows = torch.randint(2000, (6,), generator=twin.generator(NAME))
    out = net(decode(held["decoder"], held["noise"][rows], net.shape))
    further = [net.extra[NAME](o.features).detach().numpy() for o in (out, real)]
    both = np.concatenate([out.logits.detach().numpy(), further[0]], 1).astype(float)
    picked = both[np.arange(6), rows.numpy() % 4 + 4]  # the classes come in turn
    virtual = np.mean(np.log(np.exp(both).sum(1)) - picked)
    own = real.logits.detach().numpy().astype(float)
    cost = np.log1p(np.exp(further[1]).sum(1) / np.exp(own).sum(1)).mean()
    assert float(found) == pytest.approx(3.0 * virtual + cost, rel=1e-4)


def supcon(z, y, others, labels, tau):
    """Anchor by anchor; the anchors are the first of the others."""
    total = 0.0
    for i, (z_i, y_i) in enumerate(zip(z, y, strict=True)):
        s = others @ z_i / np.linalg.norm(others, axis=1) / np.linalg.norm(z_i) / tau
        rest = np.arange(len(others)) != i
        same = rest & (labels == y_i)
        if same.any():
            total += np.log(np.exp(s[rest]).sum()) - s[same].mean()
    return total / len(z)


def test_real_features_are_contrasted_with_real_and_virtual_ones_of_their_class():
    rng = np.random.default_rng(2)
    z, v, y, w = (
        rng.normal(size=(4, 3)),
        rng.normal(size=(5, 3)),
        np.array([0, 1, 1, 2]),
        np.array([0, 0, 1, 2, 2]),
    )
    part = VirtualData(align=2.0, within=0.5, tau=0.4)
    z_, v_ = (torch.from_numpy(a).requires_grad_() for a in (z, v))
    eye = torch.eye(3).double()
    found = part.contrasts((z_, eye[y]), (v_, eye[w]))
    both = np.concatenate([z, v]), np.concatenate([y, w])
    expected = 2.0 * supcon(z, y, *both, 0.4) + 0.5 * supcon(v, w, v, w, 0.4)
    assert float(found.detach()) == pytest.approx(expected)
    VirtualData(within=0.0).contrasts((z_, eye[y]), (v_, eye[w])).backward()
    assert z_.grad.any()
    assert not v_.grad.any()  # constants for the real ones


def test_every_site_and_round_has_the_same_virtual_set_and_nothing_is_sent(open_client, replies):
    session = start("vhl")
    held = []
    for client in ("dark-0", "bright-1"):
        found = open_client(session, client)
        VirtualData().begin(found)
        held.append(found.scratch[NAME])
    assert torch.equal(held[0]["noise"], held[1]["noise"])
    weights = [list(h["decoder"].parameters()) for h in held]
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    play(session, 1)
    assert all(not u.payload for u in replies(session, 1))


def test_without_its_terms_vhl_trains_as_fedavg(same):
    fedavg = play(start("fedavg"), 2).server.shared
    vhl = play(start(build("vhl", alpha=0.0, align=0.0, within=0.0)), 2).server.shared
    same(fedavg, {k: v for k, v in vhl.items() if not k.startswith("extra.")})


def test_mixed_samples_and_vectors_work():
    session = play(start("vhl + mixup", backbone_options={"width": 4}), 1)
    assert all(v.isfinite().all() for v in session.server.shared.values())
