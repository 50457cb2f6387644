"""Adapting needs no label, has the closed form of its part, and speaks up where it hurts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedshift
from fedshift import Part
from fedshift.adapting.adapt import adapt_net, parts_of
from fedshift.adapting.keep import digest
from fedshift.adapting.opening import open_site
from fedshift.adapting.verdict import judge
from fedshift.base.errors import ConfigError, DataError, RunError
from fedshift.cli import main
from fedshift.data.samples import as_input
from fedshift.engine.federation import federate_for
from fedshift.testing import tiny

WAYS = ("adapt-bn", "tent", "t3a", "shot")


def entries(model) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in model.net.state_dict().items()}


def test_statistics_are_those_of_the_new_sites_inputs(run, site):
    """The first layer's mean and variance are those of its maps, by NumPy."""
    found = entries(fedshift.adapt(run, site, with_="adapt-bn").model)
    x = as_input(tiny()["tinted"].x)
    maps = F.conv2d(x, found["block1.0.weight"], padding=1).numpy()
    rows = maps.transpose(1, 0, 2, 3).reshape(maps.shape[1], -1)
    np.testing.assert_allclose(found["block1.1.running_mean"], rows.mean(1), atol=1e-5)
    np.testing.assert_allclose(found["block1.1.running_var"], rows.var(1, ddof=1), rtol=1e-4)


def test_a_brighter_site_moves_means_by_the_kernels_sums_alone(run):
    """conv(x + b) = conv(x) + b * sum of the kernel, away from the border."""
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 200, (64, 8, 8, 3), dtype=np.uint8))
    step = (as_input(x[:1] + 20) - as_input(x[:1])).mean()
    one, other = (
        entries(fedshift.adapt(run, images.numpy(), with_="adapt-bn", site="s").model)
        for images in (x, x + 20)
    )
    kernel = one["block1.0.weight"]  # (4, 3, 3, 3)
    # padding with zeros: of the kernel's taps only those inside the image count
    inside = F.conv2d(torch.full((1, 3, 8, 8), float(step)), kernel, padding=1).mean((0, 2, 3))
    moved = other["block1.1.running_mean"] - one["block1.1.running_mean"]
    torch.testing.assert_close(moved, inside, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_labels_never_change_the_adapted_model(run, site, tmp_path, way):
    """Permuted, missing or all wrong: every bit of the model and the verdict is the same."""
    tinted, rng = tiny()["tinted"], np.random.default_rng(1)
    x, y = tinted.x.numpy(), tinted.y.numpy()
    for name, told in {"permuted": rng.permutation(y), "one": np.zeros_like(y)}.items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=told)
    np.savez(tmp_path / "none.npz", x=x)
    files = [site, *(tmp_path / f"{n}.npz" for n in ("permuted", "one", "none"))]
    found = [fedshift.adapt(run, file, with_=way, site="s", force=True) for file in files]
    assert len({digest(one.model.net) for one in found}) == 1
    assert len({str(one.verdict) for one in found}) == 1
    assert found[3].scores is None
    assert found[0].scores.before != found[2].scores.before


def test_parts_and_verdict_are_handed_no_label(run, site):
    seen = []

    class Spy(Part):
        def adapt(self, net, unlabelled, scoring):
            seen.append(unlabelled.labels.unique().tolist())

    at = open_site(run, site, None, None, None)
    assert bool(at.data.known.all())
    adapt_net(at.model, [Spy()], at.data.unlabelled)
    assert seen == [[-1]]


def test_the_numbers_are_those_of_the_protocol(tmp_path):
    """On the unseen domain's own inputs it is what the run scored as unseen-adapted."""
    from fedshift.testing import tiny_scenario

    result = fedshift.run("fedavg + tent", tiny_scenario(rounds=1), out=tmp_path, quiet=True)
    at = open_site(tmp_path, tiny()["tinted"].x.numpy(), "s", None, None)
    unseen = federate_for(at.model.method, at.model.config.scenario, 0).unseen
    model = fedshift.load_model(tmp_path)  # the random numbers are those of the run's own model
    adapt_net(model, parts_of(model, "own")[1], unseen.inputs)
    right = [model.logits(x).argmax(1) == y for x, y in unseen.test.chunks()]
    accuracy = 100 * float(torch.cat(right).double().mean())
    assert accuracy == pytest.approx(result.outcome("unseen-adapted").metrics.domains["tinted"])


def test_a_site_like_the_training_data_changes_no_more_than_sampling_does(run):
    """Statistics of the training inputs, then of a fresh half of them: within standard errors."""
    model = fedshift.load_model(run)
    made = federate_for(model.method, model.config.scenario, 0)
    x = torch.cat([s.train.x[s.train.rows] for s in made.domains.values()])
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
    whole = entries(fedshift.adapt(run, x.numpy(), with_="adapt-bn", site="s").model)
    half = entries(fedshift.adapt(run, x[::2].numpy(), with_="adapt-bn", site="s").model)
    maps = F.conv2d(as_input(x), whole["block1.0.weight"], padding=1).mean((2, 3))  # (n, 4)
    error = maps.std(0) / len(x[::2]) ** 0.5
    gap = (whole["block1.1.running_mean"] - half["block1.1.running_mean"]).abs()
    assert bool((gap < 4 * error).all())


class Collapse(Part):
    """A planted part: afterwards every input is of the first class."""

    def adapt(self, net, unlabelled, scoring):
        with torch.no_grad():
            net.head_module.bias[0] += 1e4


def test_a_collapse_is_refused_and_may_be_forced(run, site, tmp_path, monkeypatch, capsys):
    planted = lambda model, with_: ("planted", [Collapse()])  # noqa: E731
    monkeypatch.setattr("fedshift.adapting.adapt.parts_of", planted)
    with pytest.raises(RunError, match=r"as if of 1\.0 classes instead of"):
        fedshift.adapt(run, site, out=tmp_path / "m")
    assert not (tmp_path / "m").exists()
    typed = ["adapt", str(run), "--site", str(site), "-o", str(tmp_path / "m")]
    with pytest.raises(SystemExit) as stop:
        main(typed)
    told = capsys.readouterr().err
    assert (stop.value.code, told.count("\n"), "--force" in told) == (2, 1, True)
    with pytest.raises(SystemExit) as stop:
        main([*typed, "--force"])
    assert stop.value.code == 0
    assert "warning: predictions collapse" in capsys.readouterr().out
    assert set(fedshift.load_model(tmp_path / "m").predict(tiny()["tinted"].x.numpy())) == {"a"}


def test_a_model_that_moves_away_from_the_second_opinion_is_warned_of(run, site):
    """A planted part that swaps two classes: confidence and balance are as before."""

    class Swap(Part):
        def adapt(self, net, unlabelled, scoring):
            with torch.no_grad():
                for entry in net.head_module.parameters():
                    entry.copy_(entry[[1, 0, 3, 2]])

    at = open_site(run, site, None, None, None)
    verdict = judge(adapt_net(at.model, [Swap()], at.data.unlabelled))
    assert not verdict.collapse
    assert any("moves away from what BatchNorm" in one for one in verdict.warnings)


def test_the_adapted_model_is_read_like_a_run(run, site, tmp_path, capsys):
    out = tmp_path / "m"
    found = fedshift.adapt(run, site, out=out, site="clinic")
    x = tiny()["tinted"].x.numpy()
    model = fedshift.load_model(out)
    assert (model.site, model.sites, model.round) == ("clinic", ("clinic",), found.model.round)
    assert digest(model.net) == digest(found.model.net)
    assert list(model.predict(x)) == list(found.model.predict(x))
    story = json.loads((out / "adapted.json").read_text())["steps"][0]
    before = fedshift.load_model(run)
    assert (story["from"]["sha256"], story["sha256"]) == (digest(before.net), digest(model.net))
    assert (story["with"], story["samples"], story["site"]) == ("adapt-bn", 40, "clinic")
    with pytest.raises(SystemExit) as stop:
        main(["card", str(out)])
    told = capsys.readouterr().out
    assert stop.value.code == 0
    assert "## Changed for a site" in told
    assert "before it was changed" in told
    with pytest.raises(RunError, match="is a model changed for a site"):
        fedshift.load(out)
    with pytest.raises(RunError, match="exists already"):
        fedshift.adapt(run, site, out=out)


def test_an_adapted_model_is_exported_and_adapted_again(run, site, tmp_path):
    fedshift.adapt(run, site, out=tmp_path / "m", site="clinic")
    made = fedshift.export(tmp_path / "m", tmp_path / "x" / "m.safetensors", "safetensors")
    assert made.parity.holds
    again = fedshift.adapt(tmp_path / "m", site, with_="t3a", out=tmp_path / "n")
    steps = json.loads((tmp_path / "n" / "adapted.json").read_text())["steps"]
    assert [one["with"] for one in steps] == ["adapt-bn", "t3a"]
    assert steps[1]["from"]["sha256"] == steps[0]["sha256"]
    assert digest(fedshift.load_model(tmp_path / "n").net) == digest(again.model.net)


def test_no_sample_label_or_prediction_is_written(run, site, tmp_path):
    fedshift.adapt(run, site, out=tmp_path / "m")
    held = tiny()["tinted"].x.numpy()
    for file in (p for p in (tmp_path / "m").rglob("*") if p.is_file()):
        assert held[0].tobytes()[:48] not in file.read_bytes()
        assert "predictions" not in file.name


def test_a_run_without_one_model_says_whose_to_start_from(private, site, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["adapt", str(private), "--site", str(site), "-o", str(tmp_path / "m")])
    told = capsys.readouterr().err
    assert stop.value.code == 2
    assert "start from that of a site: bright-0, bright-1, dark-0, dark-1" in told
    assert "--start " in told
    with pytest.raises(SystemExit) as stop:
        main(["adapt", str(private), "--site", str(site), "--start", "dark-0", "--with", "own",
              "-o", str(tmp_path / "m"), "--json"])  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert (stop.value.code, found["site"], found["verdict"]["warnings"]) == (0, "tinted", [])
    own, new = fedshift.load_model(private, "dark-0"), fedshift.load_model(tmp_path / "m")
    same = [k for k, v in own.net.state_dict().items() if torch.equal(v, new.net.state_dict()[k])]
    changed = own.net.state_dict().keys() - set(same)
    assert changed
    assert all(k.rpartition(".")[2].startswith(("running", "num_batches")) for k in changed)
    assert found["with"] == "fedbn"


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("own", "fedavg has no way to adapt"),
        ("mixup", "mixup has no way to adapt"),
        ("fdse", "finds none"),
        ("tend", "did you mean tent"),
    ],
)
def test_what_cannot_adapt_is_refused(run, site, way, told):
    with pytest.raises(fedshift.FedshiftError, match=told):
        fedshift.adapt(run, site, with_=way)


def test_one_input_and_no_input_are_refused(run, tmp_path):
    with pytest.raises(DataError, match="the site has 1 input"):
        fedshift.adapt(run, tiny()["tinted"].x[:1].numpy())
    with pytest.raises(DataError, match="no folder with images"):
        fedshift.adapt(run, tmp_path)
    with pytest.raises(DataError, match=r"shape \(3, 9, 9\); the model takes \(3, 8, 8\)"):
        fedshift.adapt(run, np.zeros((4, 9, 9, 3), np.uint8))
    few = fedshift.adapt(run, tiny()["tinted"].x[:9].numpy())
    assert any(one.startswith("9 inputs are few") for one in few.verdict.warnings)


def test_parts_for_classes_are_refused_for_numbers(run, site):
    at = open_site(run, site, None, None, None)
    scenario = at.model.config.scenario.model_copy(update={"objective": "regression"})
    config = at.model.config.model_copy(update={"scenario": scenario})
    with pytest.raises(ConfigError, match="tent is for classification, and the model is for reg"):
        parts_of(replace(at.model, config=config), "tent")


def test_a_run_directory_is_not_changed(run, site, tmp_path):
    def state() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}

    before = state()
    fedshift.adapt(run, site, with_="shot", out=tmp_path / "m")
    assert state() == before
