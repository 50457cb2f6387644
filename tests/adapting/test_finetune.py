"""Fine-tuning moves what it says and nothing else, and never leaves a worse loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedshift
from fedshift.adapting.finetune import split
from fedshift.adapting.keep import digest
from fedshift.base.errors import ConfigError, DataError
from fedshift.cli import main
from fedshift.core.net import batch_norm_keys, head_keys
from fedshift.core.objective import CLASSIFICATION
from fedshift.data.samples import Samples
from fedshift.testing import tiny


def changed(run, model) -> set[str]:
    before = fedshift.load_model(run).net.state_dict()
    return {k for k, v in model.net.state_dict().items() if not torch.equal(v, before[k])}


@pytest.mark.parametrize("layers", ["head", "bn", "all"])
def test_a_rate_of_zero_is_the_identity(run, site, layers):
    found = fedshift.finetune(run, site, layers=layers, lr=0.0, epochs=2)
    assert digest(found.model.net) == digest(fedshift.load_model(run).net)
    assert (found.epoch, found.scores.change) == (0, 0.0)


def test_the_head_alone_moves_and_the_body_keeps_its_bits(run, site):
    found = fedshift.finetune(run, site, layers="head", lr=0.05, epochs=5)
    assert changed(run, found.model) == head_keys(found.model.net)


def test_scale_and_shift_move_and_statistics_stay(run, site):
    found = fedshift.finetune(run, site, layers="bn", lr=0.05, epochs=5)
    net = found.model.net
    norms = {k for k in batch_norm_keys(net) if k.endswith((".weight", ".bias"))}
    assert changed(run, found.model) == norms | head_keys(net)


def test_all_parameters_move_and_no_statistics(run, site):
    found = fedshift.finetune(run, site, layers="all", lr=0.02, epochs=5)
    assert changed(run, found.model) == {k for k, _ in found.model.net.named_parameters()}


def test_it_stops_where_the_held_out_loss_was_lowest(run, site, monkeypatch):
    """Held-out samples of other labels than the trained ones only lose: it stays as it was."""
    from fedshift.adapting import finetune as module

    def at_odds(labelled, task):
        train, held = split(labelled, task)
        return train, replace(held, y=(held.y + 1) % 4)

    monkeypatch.setattr(module, "split", at_odds)
    found = fedshift.finetune(run, site, layers="all", lr=0.02, epochs=20)
    assert found.epoch == 0
    assert not changed(run, found.model)
    assert any("no epoch was better" in line for line in found.lines())


def test_labels_are_learnt_from_the_samples_that_have_one(run, tmp_path):
    """Rows with -1 have none; the others say that every class is the next one."""
    tinted = tiny()["tinted"]
    y = (tinted.y.numpy() + 1) % 4
    y[:8] = -1
    np.savez(tmp_path / "s.npz", x=tinted.x.numpy(), y=y)
    found = fedshift.finetune(run, tmp_path / "s.npz", layers="all", lr=0.05, epochs=60)
    assert found.trained + found.scores.samples == 32
    assert found.scores.before < 50 < found.scores.after


def test_every_class_is_held_out_and_trained_on():
    y = torch.tensor([0] * 10 + [1] * 4 + [2])
    train, held = split(Samples(torch.zeros(15, 2), y, torch.arange(15)), CLASSIFICATION)
    assert train.labels.bincount().tolist() == [7, 2, 1]
    assert held.labels.bincount(minlength=3).tolist() == [3, 2, 0]
    assert sorted([*train.rows.tolist(), *held.rows.tolist()]) == list(range(15))


def test_the_held_out_samples_are_not_trained_on(run, site, monkeypatch):
    from fedshift.adapting import finetune as module

    seen: list[torch.Tensor] = []
    loop = module.descend

    def watched(net, batches, turns, log):
        kept = list(batches)
        seen.extend(batch.x for batch in kept)
        loop(net, kept, turns, log)

    monkeypatch.setattr(module, "descend", watched)
    found = fedshift.finetune(run, site, epochs=1, lr=0.01)
    assert sum(map(len, seen)) == found.trained == 40 - found.scores.samples


def test_without_labels_it_says_what_is_missing(run, tmp_path):
    with pytest.raises(DataError, match="0 labelled samples; fine-tuning needs 4: images in"):
        fedshift.finetune(run, tiny()["tinted"].x.numpy())
    np.savez(tmp_path / "s.npz", x=tiny()["tinted"].x.numpy(), y=np.full(40, 7))
    with pytest.raises(DataError, match="label 7; labels go from 0 to 3"):
        fedshift.finetune(run, tmp_path / "s.npz")
    with pytest.raises(ConfigError, match="layers is 'body'; it takes one of head, bn, all"):
        fedshift.finetune(run, tiny()["tinted"].x.numpy(), layers="body")


def test_the_command_writes_a_model_that_predicts(run, site, tmp_path, capsys):
    out = tmp_path / "m"
    with pytest.raises(SystemExit) as stop:
        main(["finetune", str(run), "--site", str(site), "--layers", "bn", "--epochs", "3",
              "--lr", "0.01", "--name", "clinic", "-o", str(out)])  # fmt: skip
    assert stop.value.code == 0
    assert "held out: accuracy" in capsys.readouterr().out
    assert len(fedshift.load_model(out, "clinic").predict(tiny()["tinted"].x.numpy())) == 40
