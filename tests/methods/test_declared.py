"""What parts declare: which values their settings take, and who reads single updates."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedshift.base.errors import ConfigError
from fedshift.core.component import settings_of, with_setting
from fedshift.core.registry import METHODS, build

DECLARED = {item.name: item for name in METHODS.entries() for item in build(name).declared}

FILES = [
    tomllib.loads(path.read_text())
    for path in sorted(Path(__file__).parent.glob("declared/*.toml"))
]
RANGES = {
    "weights": (0.0, None),
    "shares_of_one": (0.0, 1.0),
    "minorities": (0.0, 0.5),
    "counts": (1, None),
    "counts_or_none": (0, None),
}


def listed(key):
    """All names that the files have under ``key``."""
    return [name for file in FILES for name in file.get(key, [])]


def tables(key):
    """All entries of the tables called ``key``."""
    return {name: value for file in FILES for name, value in file.get(key, {}).items()}


DIVISORS = listed("divisors")
LIMITS = {name: limits for key, limits in RANGES.items() for name in listed(key)}
LIMITS |= {
    name: tuple(None if end == "" else end for end in ends)
    for name, ends in tables("limits").items()
}


def changed(setting, value):
    owner, key = setting.split(".")
    return getattr(with_setting(DECLARED[owner], key, value), key)


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def test_every_number_is_in_one_of_the_lists():
    found = {
        f"{name}.{one.name}"
        for name, item in DECLARED.items()
        for one in settings_of(item)
        if is_number(getattr(item, one.name)) and not one.metadata["choices"]
    }
    assert found == {*LIMITS, *DIVISORS}


@pytest.mark.parametrize("setting", LIMITS)
def test_a_number_outside_its_limits_is_refused_and_the_limit_is_not(setting):
    low, high = LIMITS[setting]
    step = 1 if isinstance(low, int) else 1e-9
    if low is not None:
        assert changed(setting, low) == low
        with pytest.raises(ConfigError):
            changed(setting, low - step)
    if high is not None:
        assert changed(setting, high) == high
        with pytest.raises(ConfigError):
            changed(setting, high + step)


@pytest.mark.parametrize("setting", DIVISORS)
def test_what_is_divided_by_is_above_zero(setting):
    with pytest.raises(ConfigError):
        changed(setting, 0.0)
    assert changed(setting, 0.25) == 0.25


def test_parts_that_read_single_updates_say_so():
    """A sum would not do for them: secure aggregation and central noise have to refuse them."""
    found = {name for name, item in DECLARED.items() if item.needs_individual_updates}
    assert found == {*listed("individual")}


def test_parts_that_send_something_of_the_data_say_what():
    """``fedshift ledger`` prints it, and privacy parts refuse them for it."""
    told = tables("shares")
    assert {name for name, item in DECLARED.items() if item.shares} == told.keys()
    for name, words in told.items():
        assert words in DECLARED[name].shares
