"""The weighted mean, by hand."""

from __future__ import annotations

import pytest
import torch

from fedshift.core.aggregate import weighted_mean

TREES = [{"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)} for _ in range(2)]


@pytest.mark.parametrize("weights", [[1.0], [0.2, 0.3, 0.5]])
def test_a_weight_too_few_or_too_many_is_an_error(weights):
    """A lost update must not be a mean with weights that no longer sum to one."""
    with pytest.raises(ValueError, match=r"zip\(\) argument 2 is (shorter|longer)"):
        weighted_mean(iter(TREES), torch.tensor(weights))


def test_counters_take_the_largest_and_nothing_is_written_into_an_update():
    trees = [
        {"n": torch.tensor(n), "w": torch.tensor([w])} for n, w in ((4, 1.0), (9, 3.0), (2, 8.0))
    ]
    found = weighted_mean(iter(trees), torch.tensor([0.5, 0.25, 0.25]))
    assert int(found["n"]) == 9
    assert found["w"].tolist() == [0.5 + 0.75 + 2.0]
    assert [int(t["n"]) for t in trees] == [4, 9, 2]
    assert [float(t["w"]) for t in trees] == [1.0, 3.0, 8.0]
