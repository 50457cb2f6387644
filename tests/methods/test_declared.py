"""What parts declare: which values their settings take, and who reads single updates."""

from __future__ import annotations

import pytest

from fedshift.base.errors import ConfigError
from fedshift.core.component import settings_of, with_setting
from fedshift.core.registry import METHODS, build

DECLARED = {item.name: item for name in METHODS.entries() for item in build(name).declared}

WEIGHTS = """
add.lr adagrad.lr adam.lr yogi.lr momentum.lr adagrad.tau adam.tau yogi.tau
proximal.mu model-contrast.mu personal-model.lam dynamic-dual.alpha dynamic-dual.clip
balanced-output.lam contrastive-projector.mu contrastive-projector.tau1 contrastive-projector.tau2
cluster-prototypes.lam_contrast cluster-prototypes.lam_consistency
cross-layer-calibration.lam decouple-and-correct.lam1 decouple-and-correct.lam2
domain-aware.alpha domain-aware.beta exponential-weights.eta semantic-acquisition.acquisition
embedding-matching.gamma federated-voting.gamma global-disentangler.gamma
statistics-consistency.lam statistics-consistency.adapt_lr norm-clip.norm
central-dp.noise local-dp.noise
"""
DIVISORS = """
model-contrast.tau cluster-prototypes.tau decouple-and-correct.sigma decouple-and-correct.tau
similarity-mixing.tau mixup.alpha geometric-median.nu
central-dp.clip local-dp.clip central-dp.delta local-dp.delta
"""
SHARES = """
adagrad.b1 adagrad.b2 adam.b1 adam.b2 yogi.b1 yogi.b2 momentum.beta distance-weights.beta
semantic-acquisition.smoothing statistics-consistency.gamma top-k.fraction
"""
MINORITIES = "krum.attackers multi-krum.attackers trimmed-mean.trim"
COUNTS = """
decouple-and-correct.width embedding-matching.kernels
embedding-matching.matched head-then-body.head_epochs pseudo-data.per_client
pseudo-data.per_sample secure-aggregation.bits
"""
OR_NONE = """
cross-layer-calibration.channels federated-voting.voting_batch pseudo-data.local_samples
pseudo-data.size statistics-consistency.adapt_epochs
"""
OTHERS = {  # smallest and largest that are taken; None: no limit
    "consistent-mean.tau": (-1.0, 1.0),  # a cosine
    "decompose-layers.G": (2, None),  # of one channel none is left to erase with
    "embedding-matching.factor": (1.0, None),
    "embedding-matching.target_samples": (2, None),  # a kernel matrix needs two
    "global-disentangler.target_samples": (2, None),
    "federated-voting.voting_samples": (2, None),
    "secure-aggregation.threshold": (0.5, 1.0),  # half: no two sums of disjoint sites
    "central-dp.delta": (1e-300, 0.5),
    "local-dp.delta": (1e-300, 0.5),
    "statistics-consistency.beta": (None, None),  # the weight may fall with depth
}
LIMITS = {
    **dict.fromkeys(WEIGHTS.split(), (0.0, None)),
    **dict.fromkeys(SHARES.split(), (0.0, 1.0)),
    **dict.fromkeys(MINORITIES.split(), (0.0, 0.5)),
    **dict.fromkeys(COUNTS.split(), (1, None)),
    **dict.fromkeys(OR_NONE.split(), (0, None)),
    **OTHERS,
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
    assert found == {*LIMITS, *DIVISORS.split()}


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


@pytest.mark.parametrize("setting", DIVISORS.split())
def test_what_is_divided_by_is_above_zero(setting):
    with pytest.raises(ConfigError):
        changed(setting, 0.0)
    assert changed(setting, 0.25) == 0.25


def test_parts_that_read_single_updates_say_so():
    """A sum would not do for them: secure aggregation and central noise have to refuse them."""
    rules = {"median", "trimmed-mean", "krum", "multi-krum", "norm-clip", "geometric-median"}
    fdse, fedheal = (
        {"layer-consensus", "similarity-mixing"},
        {"consistent-mean", "distance-weights"},
    )
    others = {"cluster-prototypes", "divergence-fusion", "federated-voting", "central-dp"}
    found = {name for name, item in DECLARED.items() if item.needs_individual_updates}
    assert found == rules | fdse | fedheal | others


def test_parts_that_send_something_of_the_data_say_what():
    """``fedshift ledger`` prints it, and privacy parts refuse them for it."""
    told = {
        "pseudo-data": "means of 10 training inputs",
        "cluster-prototypes": "class means of features",
        "loss-probe": "training loss",
        "control-variates": "mean of gradients",
        "embedding-matching": "features of target inputs",
        "global-disentangler": "features of target inputs",
    }
    assert {name for name, item in DECLARED.items() if item.shares} == told.keys()
    for name, words in told.items():
        assert words in DECLARED[name].shares
