"""A site's word about its size moves the model by no more than ``max_weight``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedshift.base.errors import RunError
from fedshift.cli import main
from fedshift.cli.runs import configured
from fedshift.core.aggregate import bounded
from fedshift.core.server import Policy
from fedshift.testing import RecordingTransport, play, start, worker

SIZES = {"dark-0": 11, "dark-1": 11, "bright-0": 7, "bright-1": 6}


class Boasting(RecordingTransport):
    """One site claims a size, and sends a model of its own."""

    checks_finite = False

    def __init__(self, site, examples, value):
        super().__init__(site)
        self.examples, self.value = examples, value

    def deliver(self, messages):
        for reply in super().deliver(messages):
            if reply.client != "dark-0":
                yield reply
                continue
            own = {k: torch.full_like(v, self.value) for k, v in reply.shared.items()}
            yield replace(reply, examples=self.examples, shared=own)


def boast(examples, max_weight=None, method="fedavg", **changes):
    """One round after a claim at enrolment; the session."""
    session = start(method, steps=1, evaluate_every=99, max_weight=max_weight, **changes)
    session.transport = Boasting(worker(session), examples, 9.0)
    server = session.server
    server.roster = server.roster | {"dark-0": replace(server.roster["dark-0"], examples=examples)}
    return play(session, 1)


def mean_of(session, weights):
    """The weighted mean of what was sent, in NumPy."""
    sent = [m for m in session.transport.seen if m.task == "train" and hasattr(m, "steps")]
    models = {m.client: m.shared["head.weight"].numpy() for m in sent}
    models["dark-0"] = np.full_like(models["dark-0"], 9.0)
    return sum(w * models[c] for c, w in weights.items())


def others(share):
    total = sum(n for c, n in SIZES.items() if c != "dark-0")
    return {c: share * n / total for c, n in SIZES.items() if c != "dark-0"}


@pytest.mark.parametrize("examples", [10**4, 10**8, 10**9])
def test_a_claim_moves_the_mean_by_max_weight_and_no_more(examples):
    session = boast(examples, 0.4)
    wanted = mean_of(session, {"dark-0": 0.4} | others(0.6))
    np.testing.assert_allclose(session.server.shared["head.weight"], wanted, rtol=1e-5)


def test_without_it_the_claim_takes_the_model_over():
    session = boast(10**9)
    np.testing.assert_allclose(session.server.shared["head.weight"], 9.0, rtol=1e-5)


def test_a_trillion_examples_are_not_believed_at_all():
    with pytest.raises(RunError, match=r"client dark-0 .*examples is 1000000000000, not a whole"):
        boast(10**12)


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_summed_as_they_arrive_or_all_at_once(policy):
    session = start("fedavg", steps=1, evaluate_every=99, max_weight=0.3)
    session.server.policy = Policy(policy)
    play(session, 1)
    sent = [m for m in session.transport.seen if m.task == "train" and hasattr(m, "steps")]
    models = {m.client: m.shared["head.weight"].numpy() for m in sent}
    rest = {"bright-0": 0.4 * 7 / 13, "bright-1": 0.4 * 6 / 13}  # 11 of 35 are above 0.3, twice
    weights = {"dark-0": 0.3, "dark-1": 0.3} | rest
    wanted = sum(w * models[c] for c, w in weights.items())
    np.testing.assert_allclose(session.server.shared["head.weight"], wanted, rtol=1e-5)


def test_secure_sums_are_bounded_too():
    session = start("secure-aggregation", steps=1, evaluate_every=99, max_weight=0.4)
    server = session.server
    server.roster = server.roster | {"dark-0": replace(server.roster["dark-0"], examples=10**6)}
    real = session.transport.deliver

    def boasting(messages):
        for reply in real(messages):
            yield replace(reply, examples=server.roster[reply.client].examples)

    session.transport.deliver = boasting
    play(session, 1)
    sent = {m.client: m for m in session.transport.seen if m.task == "train" and m.shared}
    weights = {c: int(m.payload["secure-aggregation/weight"]) for c, m in sent.items()}
    assert {c: n for c, n in weights.items() if c != "dark-0"} == {
        c: n for c, n in SIZES.items() if c != "dark-0"
    }
    assert weights["dark-0"] == 16  # 16 of 16 + 24 are 0.4
    assert server.capped.keys() == {"dark-0"}


def test_who_was_bounded_is_told_in_ledger_metrics_and_on_the_screen():
    session = boast(10**8, 0.4)
    (row,) = [r for r in session.record.ledger if r["task"] == "weight"]
    assert (row["round"], row["client"], row["direction"]) == (1, "dark-0", "none")
    assert row["reason"] == "a weight of 1 in the mean, and max_weight is 0.4"
    assert session.record.metrics[-1]["capped"].keys() == {"dark-0"}
    assert session.record.book.capped() == {
        "dark-0": {"rounds": 1, "weight": pytest.approx(1.0, abs=1e-6)}
    }
    assert session.server.scenario.confounders()["largest weight of a client"] == "0.4"


@pytest.mark.parametrize("command", ["run", "compare", "server run nowhere"])
def test_the_option_is_checked_in_every_command_that_trains(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--method", "fedavg", "--max-weight", "1.5"])
    assert ended.value.code == 2
    assert "max_weight is 1.5" in capsys.readouterr().err


def test_the_option_is_part_of_the_runs_identity():
    given = dict.fromkeys(("scenario", "scale", "seed", "settings"))
    names = []
    for most in (None, 0.4):
        config, _ = configured(
            None, method="fedavg", allow=(), without=(), max_weight=most, **given
        )
        assert config.scenario.max_weight == most
        names.append(config.name)
    assert len(set(names)) == 2


def test_weights_below_the_bound_keep_their_bits():
    weights = torch.tensor([0.4, 0.35, 0.25], dtype=torch.float64)
    assert bounded(weights, 0.4) is weights
    assert bounded(weights, 1.0) is weights


@pytest.mark.parametrize(
    ("weights", "most", "wanted"),
    [
        ([0.9, 0.06, 0.04], 0.5, [0.5, 0.3, 0.2]),
        ([0.8, 0.15, 0.05], 0.4, [0.4, 0.4, 0.2]),  # 0.45 would be the second's share
        ([0.9, 0.1], 0.1, [0.5, 0.5]),  # nobody can have less than 1 / n
        ([1.0, 0.0, 0.0], 0.5, [0.5, 0.25, 0.25]),  # those without a weight share the rest
        ([1.0], 0.4, [1.0]),
    ],
)
def test_what_is_taken_goes_to_the_others_in_proportion(weights, most, wanted):
    found = bounded(torch.tensor(weights, dtype=torch.float64), most)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
