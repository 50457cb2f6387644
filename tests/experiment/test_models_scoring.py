"""A loaded model predicts with the payload that its method sends for scoring."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import fedshift
from fedshift.core.method import Method
from fedshift.core.part import Part
from fedshift.testing import tiny_scenario


@dataclass(frozen=True)
class Preferring(Part):
    """The class that the server names wins."""

    def send_scoring(self, server, client):
        return {"bias": torch.tensor([0.0, 0.0, 1e6, 0.0])}

    def predict(self, net, x, scoring):
        return net(x).logits + scoring.payload(self)["bias"]


def test_a_loaded_model_has_what_its_parts_predict_with(tmp_path):
    method = Method((Preferring(),))
    fedshift.run(method, tiny_scenario(rounds=1), out=tmp_path, quiet=True)
    for site in ("dark-0", None):
        model = fedshift.load_model(tmp_path, site, method=method)
        assert model.predict(torch.zeros(3, 3, 8, 8)) == ["c", "c", "c"]
