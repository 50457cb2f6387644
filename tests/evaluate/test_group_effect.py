"""Sun et al., ACML 2022, Eqs. 11 and 12, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rich.console import Console

from fedshift.base.errors import ConfigError
from fedshift.core.method import Method
from fedshift.core.net import load
from fedshift.core.part import Part
from fedshift.evaluate.analyses.group_effect import GroupEffect
from fedshift.experiment.run import run
from fedshift.report.screen import detail
from fedshift.runs.summary import summarise
from fedshift.testing import numbers, play, start, tiny_scenario

ON = {"analyses": ("group-effect",)}


def accuracy(session, *entries):
    """Eq. 11, sample by sample."""
    net = session.server.net
    load(net, session.server.initial, *entries)
    net.eval()
    test = session.federation.unseen.test
    x, y = test.take(torch.arange(len(test)))
    answers = net(x).logits.detach().numpy().argmax(1)
    return 100.0 * np.mean([a == b for a, b in zip(answers, y.tolist(), strict=True)])


def updates(session):
    last = session.server.round
    seen = session.transport.seen
    return [m for m in seen if m.task == "train" and m.round == last and hasattr(m, "steps")]


@pytest.mark.parametrize("method", ["fedavg", "fedavg + federated-voting"])
def test_it_is_the_clients_mean_less_the_average_model(method):
    session = play(start(method, **ON), 2)
    row = session.record.metrics[-1]["group-effect"]
    local = np.mean([accuracy(session, u.shared) for u in updates(session)])
    aggregated = accuracy(session, session.server.aggregated)
    final = accuracy(session, session.server.shared)
    assert row == pytest.approx(
        {
            "local": local,
            "aggregated": aggregated,
            "tta": final,
            "group_effect": local - aggregated,
            "group_effect_refined": local - final,
        }
    )
    assert row["tta"] == session.record.metrics[-1]["scores"]["unseen"]["test"]["avg"]


class Swap(Part):
    """A server phase that names the next class, always: the head's rows move on by one."""

    def refine(self, server):
        turned = {k: v.roll(1, 0) for k, v in server.shared.items() if k.startswith("head.")}
        server.shared = server.shared | turned


def test_a_server_phase_counts_after_the_average():
    session = play(start(Method((Swap(),)), rounds=1, epochs=20, **ON))
    row = session.record.metrics[-1]["group-effect"]
    assert row["aggregated"] == accuracy(session, session.server.aggregated)
    assert row["tta"] == accuracy(session, session.server.shared)
    assert row["tta"] != row["aggregated"]
    assert row["group_effect"] == row["local"] - row["aggregated"]
    assert row["group_effect_refined"] == row["local"] - row["tta"]


def test_equal_clients_have_no_group_effect():
    session = play(start("fedavg"), 1)
    one = updates(session)[0]
    session.server.aggregated = session.server.shared = one.shared
    found = GroupEffect().measure(session.server, [one, one, one], session.federation)
    assert found["group_effect"] == found["group_effect_refined"] == 0.0


def test_statistics_that_are_recomputed_come_from_the_average():
    session = play(start("fedavg", bn="recompute", **ON), 1)
    row = session.record.metrics[-1]["group-effect"]
    aggregated = session.server.aggregated
    local = np.mean([accuracy(session, aggregated, u.shared) for u in updates(session)])
    assert row["local"] == pytest.approx(local)


def test_measuring_changes_no_number():
    measured, plain = play(start("fedka", **ON)), play(start("fedka"))
    rows = [{k: v for k, v in r.items() if k != "group-effect"} for r in numbers(measured)]
    assert rows == numbers(plain)


def test_the_summary_tells_it_at_the_last_evaluation():
    session = play(start("fedavg", **ON))
    summary = summarise(session.record.config, session.record.metrics)
    assert summary["group-effect"] == session.record.metrics[-1]["group-effect"]
    plain = play(start("fedavg"))
    assert "group-effect" not in summarise(plain.record.config, plain.record.metrics)


def test_it_needs_an_unseen_domain():
    with pytest.raises(ConfigError, match="group-effect is measured on the unseen domain"):
        tiny_scenario(unseen=None, protocols=("personal",), **ON)


def test_one_run_shows_it_on_the_screen(capsys):
    result = run("fedavg", tiny_scenario(rounds=1, **ON))
    Console(width=200).print(detail(result))
    effect = result.summary["group-effect"]
    assert f"group effect {effect['group_effect']:.1f}" in capsys.readouterr().out
