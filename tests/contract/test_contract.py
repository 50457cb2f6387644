"""Every registered method, third-party ones included, keeps the contract."""

from __future__ import annotations

import pytest

from fedshift.core.registry import METHODS
from fedshift.testing import CONTRACT

STACKS = ["moon + scaffold + mixup", "fedbn + fedprox + fedadam", "ditto + groupdro"]


@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
@pytest.mark.parametrize("method", [*METHODS.entries(), *STACKS])
def test_contract(method, clause):
    clause(method)
