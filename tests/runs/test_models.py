"""The model that a run reports is on disk, complete, and predicts as it did when it was scored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedshift
from fedshift.base.errors import FedshiftError, RunError
from fedshift.base.tensor_files import read_tensors
from fedshift.core.config import configure
from fedshift.engine.federation import federate
from fedshift.experiment.run import run
from fedshift.experiment.session import Options, prepare
from fedshift.runs.best import keep_round, settle
from fedshift.runs.record import Record, client_store
from fedshift.testing import tiny_scenario

SITES = ["bright-0", "bright-1", "dark-0", "dark-1"]
METHODS = ["fedavg", "fedbn", "local", "ditto", "fdse", "fedrep", "fedper", "scaffold"]


def accuracy(model: fedshift.Model, samples: fedshift.Samples) -> float:
    x, y = samples.take(torch.arange(len(samples)))
    return 100 * float((model.logits(x).argmax(1) == y).double().mean())


def worse_later(**changes: object):
    """A scenario whose later rounds are worse, so that an early one is selected."""
    return tiny_scenario(rounds=3, lr=0.3, lr_decay=1.0, **changes)


@pytest.mark.parametrize("method", METHODS)
def test_every_sites_model_scores_what_the_selected_round_reports(method, tmp_path: Path):
    scenario = worse_later()
    result = run(method, scenario, out=tmp_path / "r", quiet=True)
    sites = federate(scenario, 0).sites
    reported = result.outcome("personal")
    for site in SITES:
        model = fedshift.load_model(result, site)
        assert model.round == reported.round
        assert accuracy(model, sites[site].data.test) == reported.metrics.clients[site]


@pytest.mark.parametrize(("method", "rule"), [("fedavg", "refuse"), ("fedbn", "mean")])
def test_the_model_for_all_scores_what_is_reported(method, rule, tmp_path: Path):
    scenario = worse_later(private_at_new_site=rule)
    result = run(method, scenario, out=tmp_path / "r", quiet=True)
    made = federate(scenario, 0)
    for protocol, domains in (("global", made.domains), ("unseen", {"tinted": made.unseen})):
        model = fedshift.load_model(tmp_path / "r", protocol=protocol)
        reported = result.outcome(protocol)
        assert model.round == reported.round
        for name, splits in domains.items():
            assert accuracy(model, splits.test) == reported.metrics.domains[name]
    x, _ = made.unseen.test.take(torch.arange(3))
    assert set(model.predict(x)) <= set("abcd")


def test_the_selected_round_is_kept_and_no_other(tmp_path: Path):
    early = next(
        (seed, r)
        for seed in range(8)
        if (r := run("fedbn", worse_later(), seed=seed, quiet=True)).outcome("personal").round < 3
    )
    seed, in_memory = early
    result = run("fedbn", worse_later(), seed=seed, out=tmp_path / "r", quiet=True)
    chosen = in_memory.outcome("personal").round
    folders = sorted(p.name for p in (tmp_path / "r" / "best").iterdir())
    assert folders == [str(chosen), "model.json"]
    states = [int(p.stem) for p in (tmp_path / "r" / "checkpoints" / "clients").rglob("*.saf*")]
    assert chosen not in states or chosen == 2  # the store keeps rounds 2 and 3
    meta = read_tensors(tmp_path / "r" / "best.safetensors")[1]
    assert meta["round"] == chosen == result.outcome("personal").round
    private = fedshift.load_model(result, "dark-0").net.state_dict()
    last = read_tensors(tmp_path / "r" / "weights.safetensors")[0]
    assert private.keys() > last.keys()


def test_a_pool_keeps_the_same_model(tmp_path: Path):
    scenario = worse_later()
    run("fedbn", scenario, out=tmp_path / "a", quiet=True)
    run("fedbn", scenario, out=tmp_path / "b", quiet=True, transport="pool", workers=2)
    one, two = (fedshift.load_model(tmp_path / n, "dark-0").net.state_dict() for n in "ab")
    assert all(torch.equal(one[k], two[k]) for k in one)


def test_the_model_of_a_round_that_was_not_committed_is_not_taken(tmp_path: Path, monkeypatch):
    config, whole = configure("fedbn", tiny_scenario(rounds=3, selection="oracle"))
    session = prepare(config, whole, tmp_path / "r")
    session.advance()
    kept = fedshift.load_model(tmp_path / "r", "dark-0").net.state_dict()

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    score = Record.keep_best
    monkeypatch.setattr(Record, "_close", killed)
    monkeypatch.setattr(  # whatever its score, round 2 is kept before its commit
        Record,
        "keep_best",
        lambda self, model, scoring, row: score(
            self,
            model,
            scoring,
            row
            | {
                "scores": {
                    p: {s: m | {"avg": 101.0} for s, m in v.items()}
                    for p, v in row["scores"].items()
                }
            },
        ),
    )
    with pytest.raises(KeyboardInterrupt):
        session.advance()
    assert (tmp_path / "r" / "best" / "2").is_dir()
    assert (tmp_path / "r" / "best" / "1").is_dir()
    model = fedshift.load_model(tmp_path / "r", "dark-0")
    assert model.round == 1
    assert all(torch.equal(v, kept[k]) for k, v in model.net.state_dict().items())
    monkeypatch.undo()
    again = prepare(config, whole, tmp_path / "r", Options(resume=True))
    assert not (tmp_path / "r" / "best" / "2").exists()
    assert again.server.round == 1
    assert fedshift.load_model(tmp_path / "r", "dark-0").round == 1


def test_what_has_no_model_says_why(tmp_path: Path):
    result = run("fedbn", tiny_scenario(rounds=1), out=tmp_path / "r", quiet=True)
    with pytest.raises(RunError, match="keeps entries private, so there is no one model for all"):
        fedshift.load_model(result)
    with pytest.raises(FedshiftError, match="no site of this run is called 'dork-0'; did you mean"):
        fedshift.load_model(result, "dork-0")
    with pytest.raises(RunError, match="give the run an out"):
        fedshift.load_model(run("fedavg", tiny_scenario(rounds=1), quiet=True))
    for file in (tmp_path / "r" / "best" / "1" / "clients").iterdir():
        file.unlink()
    (tmp_path / "r" / "best" / "1" / "clients").rmdir()  # as in a deployment
    with pytest.raises(RunError, match="private entries of site 'dark-0' never left it"):
        fedshift.load_model(result, "dark-0")


def test_the_last_round_is_kept_where_it_is_the_selected_one(tmp_path: Path):
    result = run("fedbn", worse_later(selection="last"), out=tmp_path / "r", quiet=True)
    assert fedshift.load_model(result, "dark-0").round == 3


def test_scores_that_arrive_a_round_late_keep_the_states_of_their_own_round(tmp_path: Path):
    store = client_store(tmp_path)
    for round_ in (1, 2):  # client b was not visited in round 2
        store.save("a", round_, {"net": {"w": torch.tensor(float(round_))}})
    store.save("b", 1, {"net": {"w": torch.tensor(1.0)}})
    keep_round(tmp_path, 1, {}, {})
    keep_round(tmp_path, 2, {}, {})
    kept = {
        (round_, client): float(
            read_tensors(tmp_path / "best" / f"{round_}/clients/{client}.safetensors")[0]["net/w"]
        )
        for round_ in (1, 2)
        for client in "ab"
    }
    assert kept == {(1, "a"): 1.0, (1, "b"): 1.0, (2, "a"): 2.0, (2, "b"): 1.0}
    settle(tmp_path, {2}, 2)
    assert [p.name for p in (tmp_path / "best").iterdir()] == ["2"]
