"""Centralised training on the union of the sites' data."""

from __future__ import annotations

import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.registry import build
from fedshift.data.dealing.partitions import PerDomain, Pooled
from fedshift.engine.federation import federate, federate_for
from fedshift.engine.preflight import require_secret
from fedshift.testing import play, start, tiny_scenario


def test_deepall_is_fedavg_with_one_client_that_holds_everything(same):
    pooled = play(start("fedavg", partition=Pooled(clients_per_domain=2)), 2)
    deepall = play(start("deepall"), 2)
    same(pooled.server.shared, deepall.server.shared)
    rows = [s.record.metrics[-1]["scores"]["unseen"]["test"] for s in (pooled, deepall)]
    assert rows[0] == rows[1]


def test_the_union_has_every_training_sample_of_every_site_once():
    scenario = tiny_scenario(partition=PerDomain(clients_per_domain=2))
    federation = federate(scenario, 0)
    apart, domains = federation.sites.values(), federation.domains.values()
    (whole,) = federate_for(build("deepall"), scenario, 0).sites.values()
    rows = lambda samples: sorted(map(tuple, samples.x[samples.rows].flatten(1).tolist()))  # noqa: E731
    each = [row for site in apart for row in rows(site.data.train)]
    assert rows(whole.data.train) == sorted(each)
    assert rows(whole.data.val) == sorted(row for d in domains for row in rows(d.val))
    assert rows(whole.data.test) == sorted(row for d in domains for row in rows(d.test))
    assert len(federate_for(build("fedavg"), scenario, 0).sites) == 4


def test_every_protocol_scores_the_one_model_on_the_domains_of_the_scenario():
    scores = play(start("deepall"), 1).record.metrics[-1]["scores"]
    assert scores["personal"]["test"] == scores["global"]["test"]
    assert set(scores["personal"]["test"]["domains"]) == {"dark", "bright"}


def test_sampling_of_clients_does_not_matter(same):
    all_, some = (play(start("deepall", **given), 1) for given in ({}, {"clients_per_round": 2}))
    same(all_.server.shared, some.server.shared)


def test_a_deployment_refuses_it():
    with pytest.raises(ConfigError, match="pooled-sites needs the data of all sites in one place"):
        require_secret(build("deepall"))


def test_statistics_that_stay_at_sites_are_refused():
    with pytest.raises(ConfigError, match="pooled-sites has one model, and bn=local"):
        start("deepall", bn="local")


def test_parts_of_other_methods_train_on_the_union_as_well():
    session = play(start("deepall + mixup"), 1)
    assert list(session.server.roster) == ["pooled"]
    assert all(torch.isfinite(v).all() for v in session.server.shared.values())
