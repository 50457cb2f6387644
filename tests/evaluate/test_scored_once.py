"""One model on one set of samples is scored once, and no number moves by it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedshift.core.registry import build
from fedshift.data.samples import Samples
from fedshift.engine import visit
from fedshift.engine.scored_once import ScoredOnce, same_samples, scores_alike
from fedshift.experiment.run import run
from fedshift.testing import tiny_scenario


def samples(rows=(0, 1)) -> Samples:
    return Samples(torch.zeros(4, 3), torch.zeros(4).long(), torch.tensor(rows))


def test_the_same_model_and_samples_are_scored_once_and_anything_else_again():
    once, asked, held = ScoredOnce(), [], samples()
    model = {"w": torch.tensor([1.0, 2.0])}

    def score() -> dict[str, float]:
        asked.append(1)
        return {"count": float(len(asked))}

    assert once.score(model, held, score) == once.score(model, held, score) == {"count": 1.0}
    once.score(model, replace(held, rows=held.rows.clone()), score)[""] = 0.0  # a copy is theirs
    assert once.score(model, held, score) == {"count": 1.0}
    assert once.score(model, replace(held, rows=torch.tensor([0, 2])), score) == {"count": 2.0}
    model["w"][1] = 3.0  # trained in place, as the resident net is
    assert once.score(model, held, score) == {"count": 3.0}


def test_samples_are_the_same_if_they_are_the_same_rows_of_the_same_arrays():
    held = samples()
    assert same_samples(held, replace(held, rows=torch.tensor([0, 1])))
    assert not same_samples(held, replace(held, rows=torch.tensor([1, 0])))
    assert not same_samples(held, replace(held, x=held.x.clone()))
    assert not same_samples(held, replace(held, y=held.y.clone()))
    assert not same_samples(held, replace(held, pixels="unit"))
    assert not same_samples(held, replace(held, domains=torch.zeros(4).long()))


def test_parts_that_predict_or_add_modules_are_scored_for_every_client():
    assert scores_alike(build("fedavg"))
    assert scores_alike(build("scaffold"))
    assert not scores_alike(build("f2dc"))  # its modules may draw noise


@pytest.mark.parametrize(("method", "times"), [("fedavg", 2 * 2), ("fedbn", 4 * 2)])
def test_clients_of_one_domain_under_one_model_are_scored_once(method, times, monkeypatch):
    """Four clients in two domains, validation and test; FedBN's have a model each."""
    asked = []
    real = visit.score
    monkeypatch.setattr(visit, "score", lambda *a, **k: asked.append(1) or real(*a, **k))
    scenario = tiny_scenario(rounds=1, protocols=("personal",), epochs=1)
    found = run(method, scenario, quiet=True)
    assert len(asked) == times
    asked.clear()
    monkeypatch.setattr(ScoredOnce, "score", lambda self, model, held, score: score())
    alone = run(method, scenario, quiet=True)
    assert len(asked) == 4 * 2
    assert found.history[0]["scores"] == alone.history[0]["scores"]
