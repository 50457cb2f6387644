"""What a curious server reconstructs, and what it does not: the attacks of ``scripts/leaks.py``.

The tiny scenario: 8x8 colour images of four patterns, four sites. An attack has to find a site's
own images, and to be no better than a guess where a privacy part is promised to stop it.
"""

from __future__ import annotations

import importlib.util
import math
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from fedshift.base.errors import FedshiftError
from fedshift.cli import main
from fedshift.privacy.accountant import epsilon
from fedshift.testing import start

spec = importlib.util.spec_from_file_location(
    "leaks", Path(__file__).parents[2] / "scripts" / "leaks.py"
)
leaks = importlib.util.module_from_spec(spec)
sys.modules["leaks"] = leaks  # dataclasses look their module up
spec.loader.exec_module(leaks)

SITE, OTHER = "dark-0", "dark-1"
MLP = {"backbone": "mlp", "backbone_options": {"norm": "none", "hidden": 400}, "epochs": None}


def update(method, **changes):
    """A run, what the site was sent, and what it replied in round 1."""
    session = start(method, **(MLP | {"steps": 1, "batch_size": 1, "lr": 0.05} | changes))
    before = dict(session.server.shared)
    return session, before, leaks.ask(session, SITE, "train", 1).shared


def attacked(session, before, after, count=1):
    g = leaks.gradient(before, after, session.server.scenario.lr)
    found = leaks.layer_inputs(g["layer1.0.weight"], g["layer1.0.bias"], count)
    return leaks.judge("", found, leaks.pair(session, SITE, OTHER), count)


def test_one_step_on_one_image_is_that_image():
    seen = attacked(*update("fedavg"))
    assert seen.own_mean == pytest.approx(1.0, abs=1e-3)
    assert seen.recovered == 1
    assert seen.other_mean < 0.9  # the same pattern at another site, with other noise
    nearest = seen.truth[0]
    assert (seen.found[0] - nearest).abs().max() < 0.01  # pixels are 4 wide


def test_of_a_batch_the_images_that_a_unit_saw_alone_are_recovered():
    seen = attacked(*update("fedavg", batch_size=2), count=2)
    assert seen.own_mean > 0.98
    assert seen.other_mean < 0.9


def test_the_label_of_one_image_is_told_by_the_head():
    session, before, after = update("fedavg")
    g = leaks.gradient(before, after, session.server.scenario.lr)
    seen = attacked(session, before, after)
    site = leaks.pair(session, SITE, OTHER)[0]
    assert int(g["head.bias"].argmin()) == int(site.labels[seen.own[0].argmax()])


@pytest.mark.parametrize("randomness", ["seed", "system"])
def test_local_noise_leaves_nothing_of_it(randomness):
    part = f"fedavg + local-dp[clip=1, noise=1, randomness={randomness}]"
    seen = attacked(*update(part, private_at_new_site="refuse"))
    assert seen.recovered == 0
    assert abs(seen.own_mean - seen.other_mean) < 0.2
    assert seen.own_mean < 0.6


def test_who_knows_the_seed_takes_seeded_noise_off():
    """Why a deployment refuses randomness=seed: the noise is drawn again and subtracted."""
    part = "fedavg + local-dp[clip=100, noise=0.01, randomness=seed]"
    session, before, after = update(part, private_at_new_site="refuse")
    drawn = leaks.seeds.generator(0, 1, SITE, "local-dp")
    order = [k for k in after if k in session.server.parameters]
    clean = {k: after[k] - torch.randn(after[k].shape, generator=drawn) for k in order}
    assert attacked(session, before, clean).own_mean > 0.99
    assert attacked(session, before, after).recovered == 0


def test_of_a_secure_sum_no_single_image_is_seen():
    """All that the server has is the mean of four sites' steps: it cannot tell one's images."""
    changes = {"steps": 1, "batch_size": 1, "lr": 0.05, "private_at_new_site": "refuse"}
    session = start("fedavg + secure-aggregation[randomness=system]", **(MLP | changes))
    before = dict(session.server.shared)
    session.advance()
    summed = attacked(session, before, session.server.shared)
    assert summed.own_mean < 0.95
    assert abs(summed.own_mean - summed.other_mean) < 0.05
    assert attacked(*update("fedavg")).own_mean > 0.999


def test_means_of_ten_images_are_images_to_who_knows_the_seed():
    session = start("feddebias", backbone_options={"width": 4}, batch_size=4, epochs=1)
    first = leaks.ask(session, SITE, "enrol", 0)
    part = session.server.method.parts[0]
    session.server.state[part.name] = {"batch": first.payload[f"{part.name}/means"]}
    messages = [first, leaks.ask(session, SITE, "train", 1)]
    found = leaks.unmixed(messages, first.examples, part)
    own = leaks.images(leaks.pair(session, SITE, OTHER)[0])
    assert first.examples <= 2 * part.per_client  # as many equations as images
    assert (found - own).abs().max() < 1e-3
    blind = leaks.unmixed(messages[:1], first.examples, part)
    assert (blind - own).abs().max() > 0.1


def test_a_mean_of_one_image_never_leaves():
    with pytest.raises(FedshiftError, match="contains an input of the site"):
        start("feddebias[per_sample=1]")


@pytest.mark.parametrize("part", ["local-dp", "secure-aggregation", "central-dp"])
@pytest.mark.parametrize("method", ["feddebias", "fpl"])
def test_privacy_parts_refuse_methods_that_send_means(method, part):
    with pytest.raises(FedshiftError, match=part):
        start(f"{method} + {part}", private_at_new_site="refuse")


def test_the_head_of_a_convolutional_net_tells_the_feature_of_one_image():
    cnn = {"backbone": "cnn", "backbone_options": {"width": 8, "norm": "group"}}
    session, before, after = update("fedavg", **cnn)
    found = leaks.head_features(leaks.gradient(before, after, session.server.scenario.lr), 1)
    own = leaks.images(leaks.pair(session, SITE, OTHER)[0])
    features = leaks.call(leaks.worker(session).net.eval(), before, own).features.detach()
    apart = (features - found).norm(dim=1) / found.norm()
    assert apart.min() < 1e-3
    assert apart.sort().values[1] > 0.05


def test_inversion_finds_an_image_with_the_wanted_feature():
    session = start("fedavg", backbone_options={"width": 8, "norm": "group"})
    net, entries = leaks.worker(session).net.eval(), session.server.shared
    wanted, others = (
        leaks.call(net, entries, leaks.images(one)).features.detach()
        for one in leaks.pair(session, SITE, OTHER)
    )
    found = leaks.invert(net, entries, wanted[:2], steps=100)
    reached = (leaks.call(net, entries, found).features - wanted[:2]).norm(dim=1)
    assert (reached < 0.5 * torch.cdist(wanted[:2], others).amin(1)).all()


def test_the_measure_knows_an_image_from_another():
    x = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    usual = torch.zeros(3, 8, 8)
    near = leaks.correlations(2 * x + 1, x, usual)
    assert near.diagonal().tolist() == pytest.approx([1.0] * 3)
    assert near.fill_diagonal_(0).abs().max() < 0.3
    flat = (x[0] - x[0].mean()).flatten().double(), (x[1] - x[1].mean()).flatten().double()
    by_hand = float(flat[0] @ flat[1] / math.sqrt(flat[0] @ flat[0] * (flat[1] @ flat[1])))
    assert float(leaks.correlations(x[:1], x[1:2], usual)) == pytest.approx(by_hand)


PAGE = Path(__file__).parents[2] / "docs" / "leaks.md"


def test_the_commands_of_the_page_run_as_they_are_printed(tmp_path, monkeypatch, capsys):
    """With a smaller net; the ledger names what FedDebias sends."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    typed = [shlex.split(line) for block in blocks for line in block.splitlines()]
    assert [words[0] for words in typed] == ["fedshift", "fedshift", "python"]
    small = ("--set", "scenario.epochs=1", "--set", "backbone.width=4", "--workers", "1")
    once = ("--set", "pseudo-data.refresh=once")  # also on the page
    for words, more in zip(typed, ((*small, *once), ()), strict=False):
        with pytest.raises(SystemExit) as stop:
            main([*words[1:], *more])
        assert not stop.value.code, capsys.readouterr().err
    assert "means of 10 training inputs, once" in capsys.readouterr().out
    assert (PAGE.parents[1] / typed[2][1]).exists()


def test_the_page_shows_the_scripts_table_and_small_pictures():
    text = PAGE.read_text()
    pictures = re.findall(r"\]\((assets/[^)]+)\)", text)
    assert len(pictures) == 4
    assert sum((PAGE.parent / one).stat().st_size for one in pictures) < 150_000
    assert '--8<-- "docs/tables/leaks.md"' in text
    table = (PAGE.parent / "tables" / "leaks.md").read_text()
    assert "means of 10 images, six messages and the seed | 1.00" in table


def test_the_epsilon_of_the_page():
    told = float(re.search(r"\(epsilon ([\d.]+) for one update", PAGE.read_text())[1])
    assert told == pytest.approx(epsilon(1.0, 1, delta=1e-5), abs=0.05)
