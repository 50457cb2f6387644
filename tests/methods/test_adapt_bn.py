"""Statistics of the new site, for any method: the control of methods that adapt."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.base.errors import ConfigError
from fedshift.evaluate.protocols import evaluate
from fedshift.testing import play, start


def scores(session):
    return evaluate(session.server, session.transport, session.federation, session.record)


def test_the_first_layers_statistics_are_those_of_the_new_sites_inputs():
    session = play(start("fedavg + adapt-bn"), 2)
    scores(session)  # adapts server.net last
    inputs = session.federation.unseen.inputs
    x, _ = inputs.take(torch.arange(len(inputs)))
    entries = session.server.net.state_dict()
    maps = F.conv2d(x, entries["block1.0.weight"], padding=1).numpy()
    rows = maps.transpose(1, 0, 2, 3).reshape(4, -1)
    np.testing.assert_allclose(entries["block1.1.running_mean"], rows.mean(1), atol=1e-5)


def test_only_the_adapted_protocol_differs_from_the_method_without_it():
    plain, adapted = (play(start(f"fedavg{tail}")) for tail in ("", " + adapt-bn"))
    assert all(torch.equal(v, adapted.server.shared[k]) for k, v in plain.server.shared.items())
    before, after = scores(plain), scores(adapted)
    assert {p for p in before if before[p] != after[p]} == {"unseen-adapted"}


def test_a_backbone_without_batch_norm_is_refused():
    with pytest.raises(ConfigError, match="adapt-bn estimates BatchNorm statistics"):
        start("fedavg + adapt-bn", backbone_options={"norm": "group"})
