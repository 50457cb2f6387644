"""What chaos has found in messages, one test each; what it found in files is in tests/runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedshift.base.errors import RunError
from fedshift.core.config import configure
from fedshift.experiment import run as runner
from fedshift.experiment.session import Options, prepare
from fedshift.testing import play, require_same, start, tiny_scenario
from fedshift.transports.flower.envelope import Envelope
from fedshift.transports.flower.grid import FlowerGrid, InMemoryGrid, client_app
from fedshift.transports.flower.transport import FlowerTransport, SiteReply, introduced

SMALL = {"rounds": 2, "epochs": None, "steps": 1, "protocols": ("personal",), "unseen": None}


def test_predictions_are_there_before_the_run_counts_as_done(tmp_path, monkeypatch):
    """A run that was killed in between had none, and nothing is added to a run that is done."""
    seen = []
    kept = runner.keep_predictions

    def noted(result, method, federation):
        seen.append((result.path / "summary.json").exists())
        kept(result, method, federation)

    monkeypatch.setattr(runner, "keep_predictions", noted)
    runner.run("fedavg", tiny_scenario(**SMALL), out=tmp_path / "run", quiet=True)
    assert seen == [False]
    assert (tmp_path / "run" / "predictions.safetensors").exists()


def test_a_score_that_comes_twice_is_not_a_missing_one():
    """A round with missing scores is not selected; so this decided which round was reported."""
    session = start("fedavg", **SMALL)
    real = session.transport.deliver

    def twice(messages):
        for reply in real(messages):
            yield reply
            if reply.task == "score" and reply.client == "dark-0":
                yield reply.own()

    session.transport.deliver = twice
    require_same(play(start("fedavg", **SMALL)), play(session), "once and twice")
    assert [row["reason"] for row in session.record.losses()["dark-0"]] == [
        "update refused: nobody asked for it"
    ] * 2


class Twice:
    """A grid that hands every reply out two times."""

    def __init__(self, grid):
        self.grid, self.nodes, self.send = grid, grid.nodes, grid.send

    def fetch(self, tickets):
        return [reply for reply in self.grid.fetch(tickets) for _ in range(2)]


def test_a_reply_that_flower_delivers_twice_counts_once():
    def opened(plan):
        worker = plan.worker()
        app = client_app(lambda run, node: worker)
        nodes = [{"client": client} for client in plan.federation.sites]
        grid = Twice(FlowerGrid(InMemoryGrid(app, nodes)))
        return FlowerTransport(grid, plan.config, store=plan.store)

    config, method = configure("scaffold", tiny_scenario(**SMALL))
    session = play(prepare(config, method, None, Options(transport=opened)))
    require_same(play(start("scaffold", **SMALL)), session, "once and twice")


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"name": "a"}', "[" * 100_000])
def test_a_node_that_does_not_say_who_it_is_is_one_line(text):
    class Mute:
        nodes = staticmethod(lambda: {7})
        send = staticmethod(lambda requests: ["ticket"])
        fetch = staticmethod(lambda tickets: [SiteReply("ticket", Envelope(text, {}))])

    config, _ = configure("fedavg", tiny_scenario(**SMALL))
    transport = FlowerTransport(Mute(), config)
    with pytest.raises(RunError, match="node 7 did not say which client it is") as error:
        transport.find(["dark-0"])
    assert len(str(error.value)) < 400
    assert introduced("node 7", SimpleNamespace(text='{"client": "dark-0"}')) == "dark-0"
