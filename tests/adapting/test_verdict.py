"""What is seen without labels, by formulas of its own; and what the rule makes of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import entropy

import fedshift
from fedshift.adapting.verdict import (
    Signals,
    batch_norm_shift,
    effective_classes,
    judge,
    signals_of,
)
from fedshift.experiment.alike import misfit, spread
from fedshift.testing import tiny


def logits(classes: list[int], outputs: int = 4) -> torch.Tensor:
    return 5.0 * torch.nn.functional.one_hot(torch.tensor(classes), outputs).float()


def test_the_effective_number_of_classes_is_the_exponential_of_the_entropy():
    found = effective_classes(logits([0, 0, 0, 1, 2, 2]))
    assert found == pytest.approx(np.exp(entropy([3 / 6, 1 / 6, 2 / 6])))


def test_signals_are_shares_of_inputs():
    before, after, second = logits([0, 1, 2, 3]), logits([0, 1, 2, 0]), logits([1, 1, 2, 0])
    seen = signals_of(before, after, second, 0.5)
    p = np.exp(5) / (np.exp(5) + 3)
    assert (seen.samples, seen.outputs, seen.changed, seen.shift) == (4, 4, 0.25, 0.5)
    assert seen.agreement == (0.5, 0.75)
    assert seen.confidence == pytest.approx((p, p))
    assert seen.classes == pytest.approx((4, np.exp(entropy([0.5, 0.25, 0.25]))))


@pytest.mark.parametrize(
    ("seen", "collapse", "warnings", "notes"),
    [
        (Signals(64, 10, (6.0, 7.0), (0.5, 0.6), 0.3, (0.6, 1.0), 0.5), False, 0, 0),
        (Signals(64, 10, (9.0, 5.3), (0.5, 0.6), 0.3, (0.6, 1.0), 0.5), True, 0, 0),
        (Signals(31, 10, (6.0, 7.0), (0.5, 0.6), 0.3, (0.6, 1.0), 0.5), False, 1, 0),
        (Signals(64, 10, (6.0, 7.0), (0.5, 0.6), 0.7, (0.6, 1.0), 0.5), False, 1, 0),
        (Signals(64, 10, (6.0, 7.0), (0.5, 0.6), 0.3, (0.6, 0.5), 0.5), False, 1, 0),
        (Signals(64, 10, (6.0, 7.0), (0.6, 0.5), 0.3, (0.6, 1.0), 0.5), False, 1, 0),
        (Signals(64, 10, (6.0, 7.0), (0.5, 0.6), 0.3, (0.6, 1.0), 0.05), False, 0, 1),
        (Signals(64, 10, (4.0, 4.5), (0.5, 0.6), 0.3, (0.6, 1.0), 0.5), False, 1, 0),
        (Signals(64, 10, (9.0, 8.0), (0.5, 0.6), 0.3, (0.6, 1.0), 0.5), False, 1, 0),
        (Signals(64, 10, (9.0, 8.2), (0.5, 0.6), 0.3, (0.6, 1.0), 0.5), False, 0, 0),
        (Signals(64, 10, (1.9, 1.8), (0.5, 0.6), 0.3, (0.6, 1.0), 0.5), False, 1, 0),
        (Signals(64, 2, (1.9, 1.8), (0.5, 0.6), 0.3, (0.6, 1.0), 0.5), False, 0, 0),
        (Signals(64), False, 0, 0),
    ],
)
def test_each_rule_speaks_for_itself(seen, collapse, warnings, notes):
    found = judge(seen)
    assert (bool(found.collapse), len(found.warnings), len(found.notes)) == (
        collapse, warnings, notes,
    )  # fmt: skip
    assert found.warned == (collapse or warnings > 0)


def test_the_shift_is_in_deviations_of_the_training_statistics(run):
    net = fedshift.load_model(run).net
    before = {k: v.clone() for k, v in net.state_dict().items()}
    after = dict(before)
    layers = [k.rpartition(".")[0] for k in before if k.endswith("running_mean")]
    for i, layer in enumerate(layers, start=1):
        after[f"{layer}.running_mean"] = before[f"{layer}.running_mean"] + i * before[
            f"{layer}.running_var"
        ].sqrt()  # fmt: skip
    n = len(layers)
    assert batch_norm_shift(net, before, after) == pytest.approx((n + 1) / 2, rel=1e-4)


def test_the_misfit_is_the_gaussians_expected_minus_log_likelihood():
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(3, 2, 5, 5))
    means, variances = rng.normal(size=(4, 2)), rng.uniform(0.5, 2, (4, 2))
    found = misfit(spread(torch.from_numpy(maps)), *map(torch.from_numpy, (means, variances)))
    z = (maps[:, None] - means[None, :, :, None, None]) ** 2 / variances[None, :, :, None, None]
    each = (np.log(variances)[None, :, :, None, None] + z) / 2
    np.testing.assert_allclose(found, each.mean((2, 3, 4)))


def test_inputs_look_most_like_those_of_their_own_look(private, run):
    model = fedshift.load_model(private, "dark-0")
    for look in ("dark", "bright"):
        x = tiny()[look].x.numpy()
        found = model.predict(x)
        right = [site.startswith(look) for site in found.most_like]
        assert np.mean(right) > 0.9
        assert found.columns()["most_like"] == found.most_like
    assert fedshift.load_model(run).predict(x).most_like is None
    assert "most_like" not in fedshift.load_model(run).predict(x).columns()
