"""What an unseen site and a seen domain get of entries that never leave their clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedshift
from fedshift.base.errors import ConfigError
from fedshift.core.component import setting
from fedshift.core.method import Method
from fedshift.core.net import Neck, Scope, load
from fedshift.core.part import Part
from fedshift.engine.federation import federate
from fedshift.evaluate.protocols import evaluate
from fedshift.experiment.compare import plan
from fedshift.testing import play, start, tiny_scenario, worker


class Turned(Neck):
    """Adds a learnt map; its weight starts at one, so it matters from the first round."""

    def __init__(self, width):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.ones(width, 1, 1))

    def forward(self, maps):
        return maps * 0.1 + self.shift, {}


@dataclass(frozen=True)
class Homely(Part):
    """A private neck whose owners score the domain themselves."""

    stay: bool = setting(True, "whether the clients score")
    head_too: bool = setting(False, "keep a bias of the head as well")

    @property
    def scored_at_sites(self):
        return self.stay

    def build(self, net):
        stage = next(iter(net.stages))
        net.insert(self.name, Turned(net.shapes()[stage][0]), after=stage)

    def scope(self, net):
        out = {f"extra.{self.name}.shift": Scope.PRIVATE}
        return out | ({f"{net.head_path}.bias": Scope.PRIVATE} if self.head_too else {})


def scores(session):
    return evaluate(session.server, session.transport, session.federation, session.record)


def accuracy(net, samples):
    x, y = samples.take(torch.arange(len(samples)))
    with torch.no_grad():
        return 100 * np.mean((net.eval()(x).logits.argmax(1) == y).numpy())


def test_a_domain_scored_at_home_is_the_mean_over_its_clients():
    session = play(start(Method((Homely(),)), scored="trained"))
    site = worker(session)
    own = {}
    for client in session.server.roster:
        private = site.store.load(client, before=session.server.round + 1)["net"]
        load(site.net, session.server.shared | private)
        domain = session.federation.domains[session.federation.sites[client].domain]
        own.setdefault(session.federation.sites[client].domain, []).append(
            accuracy(site.net, domain.test)
        )
    found = scores(session)["global"]["test"]
    assert found.domains == pytest.approx({d: np.mean(v) for d, v in own.items()})


def test_scored_at_sites_no_private_entry_travels_and_new_sites_are_refused():
    session = play(start(Method((Homely(),))))
    assert "unseen" not in scores(session)
    assert not any("shift" in k for m in session.transport.seen for k in m.personal | m.shared)
    assert "global" not in scores(play(start(Method((Homely(stay=False),)))))


def test_a_new_site_with_none_gets_the_net_without_the_private_neck():
    session = play(start(Method((Homely(),)), private_at_new_site="none"))
    found = scores(session)["unseen"]["test"]
    net = worker(session).net
    load(net, session.server.shared)
    net.skipped = frozenset({"homely"})
    by_hand = accuracy(net, session.federation.unseen.test)
    net.skipped = frozenset()
    assert found.avg == pytest.approx(by_hand)
    assert session.server.net.skipped == frozenset()


def test_none_has_no_answer_when_more_than_necks_is_private():
    session = play(start(Method((Homely(head_too=True),)), private_at_new_site="none"), 1)
    assert "unseen" not in scores(session)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedbn", {"protocols": ("global",)}),
        ("fedbn", {"protocols": ("unseen", "unseen-adapted")}),
        ("local", {"protocols": ("global",)}),
        (Method((Homely(stay=False, head_too=True),)), {"private_at_new_site": "none"}),
        ("fedavg", {"bn": "local"}),
    ],
)
def test_a_run_that_nothing_could_score_is_refused_before_it_begins(method, changes):
    with pytest.raises(ConfigError, match=r"keeps entries at each site, such as .* asks for one"):
        start(method, **{"protocols": ("global",)} | changes)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedbn", {"protocols": ("global", "personal")}),
        ("fedbn", {"protocols": ("global",), "private_at_new_site": "initial"}),
        (Method((Homely(),)), {"protocols": ("global",), "private_at_new_site": "none"}),
    ],
)
def test_what_can_be_scored_in_some_way_begins(method, changes):
    assert scores(play(start(method, **changes), 1))


def test_a_comparison_is_refused_before_its_first_run(tmp_path):
    scenario = tiny_scenario(protocols=("global",), backbone="cnn")
    with pytest.raises(ConfigError, match="fedbn keeps entries at each site"):
        plan(["fedavg", "fedbn"], [scenario], [0], tmp_path)


BOTH = ("personal", "personal-trained")


@pytest.mark.parametrize("protocols", [BOTH, BOTH[::-1]])
def test_both_moments_are_scored_in_one_visit_and_each_is_what_it_is_alone(protocols):
    both = scores(play(start("fedbn", protocols=protocols)))
    assert tuple(both) == protocols
    aggregated = scores(play(start("fedbn", protocols=("personal",))))["personal"]
    trained = scores(play(start("fedbn", protocols=("personal",), scored="trained")))["personal"]
    assert both["personal"] == aggregated
    assert both["personal-trained"] == trained
    assert aggregated["test"] != trained["test"]  # else this test shows nothing


def test_the_trained_moment_is_the_clients_net_before_aggregation():
    session = play(start("fedavg", protocols=("personal-trained",)))
    found = scores(session)["personal-trained"]["test"].clients
    net = worker(session).net
    asked = (m for m in session.transport.seen if (m.task, m.round) == ("train", 3))
    updates = [m for m in asked if hasattr(m, "steps")]
    assert len(updates) == len(found)
    for update in updates:
        load(net, session.server.initial | update.shared)
        by_hand = accuracy(net, session.federation.sites[update.client].data.test)
        assert found[update.client] == pytest.approx(by_hand)


@pytest.mark.parametrize("transport", ["wire", pytest.param("pool", marks=pytest.mark.exhaustive)])
def test_both_moments_are_the_same_in_every_transport_and_their_models_are_kept(
    transport, tmp_path
):
    result = fedshift.run(
        "fedbn",
        tiny_scenario(protocols=BOTH),
        out=tmp_path / "run",
        transport=transport,
        quiet=True,
    )
    plain = fedshift.run("fedbn", tiny_scenario(protocols=BOTH), quiet=True)
    assert result.history[-1]["scores"] == plain.history[-1]["scores"]
    for protocol in BOTH:
        outcome = result.outcome(protocol)
        for site, known in outcome.metrics.clients.items():
            model = fedshift.load_model(tmp_path / "run", site, protocol=protocol)
            federation = federate(result.config.scenario, 0)
            assert accuracy(model.net, federation.sites[site].data.test) == pytest.approx(known)
