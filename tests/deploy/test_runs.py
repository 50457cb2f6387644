"""Starting, joining and continuing runs, with a SuperLink that is only played."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import federation as fed
import pytest

from fedshift.base.errors import ConfigError, RunError, UnknownNameError
from fedshift.deploy import runs
from fedshift.deploy.flower.control import RegisteredSite
from fedshift.deploy.folders import ServerPaths, write_private
from fedshift.deploy.runs import Request, Terms, Ticket, chosen
from fedshift.experiment.listener import Listener


@dataclass
class Played:
    """Plays a run in this process when it is started."""

    paths: ServerPaths
    fails: str = ""
    states: dict[int, tuple[str, str]] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def nodes(self) -> dict[str, RegisteredSite]:
        return {name: RegisteredSite(i, name, "online", b"") for i, name in enumerate(fed.SITES)}

    def start(self, request: str) -> int:
        self.requests.append(Request.read(Path(request)))
        if not self.fails:
            fed.in_process(self.requests[-1].config, self.requests[-1].path)
        number = len(self.requests)
        self.states[number] = ("finished", self.fails)
        return number

    def stop(self, number: int) -> None:
        self.stopped.append(number)

    def state(self, number: int) -> tuple[str, str]:
        return self.states[number]


class Heard(Listener):
    def __init__(self) -> None:
        self.rounds: list[int] = []

    def round_done(self, row):
        self.rounds.append(row["round"])


@pytest.fixture
def control(tmp_path: Path) -> Played:
    paths = ServerPaths(tmp_path / "server")
    paths.flower.mkdir(parents=True)
    write_private(paths.secret, b"one start")
    return Played(paths)


def go(control: Played, error_from_site: Listener | None = None):
    config = fed.configured("fedavg")
    path = control.paths.runs / config.name
    return runs.run(control, config, path, Terms(), error_from_site or Listener())


def test_a_run_is_asked_for_once_watched_and_then_read(control):
    error_from_site = Heard()
    result = go(control, error_from_site)
    assert error_from_site.rounds == [1, 2]
    assert control.requests[0].nodes == {"bright-0": 1, "dark-0": 0}
    assert go(control).summary == result.summary
    assert len(control.requests) == 1


def test_a_run_that_fails_says_why_and_is_asked_for_again(control):
    control.fails = "ServerApp failed with exception: site a failed: no power."
    with pytest.raises(RunError, match=r"^site a failed: no power$"):
        go(control)
    control.fails = ""
    go(control)
    assert len(control.requests) == 2


def test_a_run_that_is_under_way_is_joined(control, monkeypatch):
    ticket = Ticket(control.paths, control.paths.runs / fed.configured("fedavg").name)
    ticket.number.parent.mkdir()
    ticket.note(7)
    control.states[7] = ("running", "")

    def finish(seconds: float) -> None:
        fed.in_process(fed.configured("fedavg"), ticket.path)
        control.states[7] = ("finished", "")

    monkeypatch.setattr(runs.time, "sleep", finish)
    error_from_site = Heard()
    go(control, error_from_site)
    assert error_from_site.rounds == [1, 2]
    assert control.requests == control.stopped == []


def test_a_run_that_died_with_its_server_is_not_joined(control):
    ticket = Ticket(control.paths, control.paths.runs / fed.configured("fedavg").name)
    ticket.number.parent.mkdir()
    ticket.note(7)
    control.states[7] = ("running", "")
    write_private(control.paths.secret, b"another start")
    go(control)
    assert control.stopped == [7]
    assert len(control.requests) == 1


def test_sites_are_chosen_by_name():
    nodes = {name: RegisteredSite(i, name, "offline", b"") for i, name in enumerate("abc")}
    assert chosen(nodes, []) == {"a": 0, "b": 1, "c": 2}
    assert chosen(nodes, ["c", "a"]) == {"a": 0, "c": 2}
    with pytest.raises(UnknownNameError, match="no registered site is called 'd'"):
        chosen(nodes, ["d"])
    with pytest.raises(ConfigError, match="no site is registered; run `fedshift server register"):
        chosen({}, [])


def test_noise_from_a_seed_is_refused_before_anybody_is_asked(control):
    config = fed.configured("fedavg + local-dp")
    with pytest.raises(ConfigError, match=r"local-dp\[randomness=system\]"):
        runs.run(control, config, control.paths.runs / config.name, Terms(), Listener())
    assert not control.requests


def test_a_target_is_asked_for_before_anybody_is_waited_for(control):
    for method, words in (
        ("fedka", "needs unlabelled inputs of a target at the server; name a folder"),
        ("fedka[target_at=client]", "needs the target's inputs at every site"),
    ):
        config = fed.configured("fedavg").model_copy(
            update={"method": fed.configured(method, target="scenario").method}
        )
        with pytest.raises(ConfigError, match=words):
            runs.run(control, config, control.paths.runs / "x", Terms(), Listener())
    assert control.requests == []
