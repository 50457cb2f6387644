"""Where runs are played: none twice, lost workers replaced, the same results everywhere."""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from planted import planted

from fedshift.base import extras
from fedshift.base.errors import ConfigError, RunError
from fedshift.base.locks import FolderTakenError, lock_of, only_writer
from fedshift.core.part import Part
from fedshift.experiment import clusters, executors
from fedshift.experiment.compare import compare
from fedshift.experiment.executors import Here, WorkerLostError, scheduled
from fedshift.experiment.run import run
from fedshift.experiment.scenario import find_scenario
from fedshift.experiment.side_by_side import Processes
from fedshift.testing import tiny_scenario


@dataclass(eq=False)
class Unit:
    name: str
    path: Path | None = None

    @property
    def done(self) -> bool:
        return self.path is not None and (self.path / "summary.json").exists()


class Scripted:
    """Gives each submitted run the next of its outcomes, two at a time, the last begun first."""

    slots = 2

    def __init__(self, outcomes: dict[str, list]) -> None:
        self.outcomes, self.begun = outcomes, []
        self.most, self.under_way, self.closed = 0, [], False

    def submit(self, job: Unit) -> None:
        self.begun.append(job.name)
        self.under_way.append(job)
        self.most = max(self.most, len(self.under_way))

    def collect(self, seconds: float) -> list:
        job = self.under_way.pop()
        return [(job, self.outcomes[job.name].pop(0))]

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(executors, "LOOK", 0.01)


def test_runs_are_handed_out_as_slots_become_free():
    made = Scripted({name: [name.upper()] for name in "abcd"})
    found = {job.name: outcome for job, outcome in scheduled([Unit(n) for n in "abcd"], made)}
    assert found == {"a": "A", "b": "B", "c": "C", "d": "D"}
    assert (made.begun, made.most, made.closed) == (["a", "b", "c", "d"], 2, True)


def test_a_run_that_loses_its_worker_is_begun_again_three_times_at_most():
    gone = WorkerLostError("its machine went away")
    made = Scripted({"a": [gone, gone, "A"], "b": ["B"]})
    found = {j.name: o for j, o in scheduled([Unit("a"), Unit("b")], made)}
    assert found == {"a": "A", "b": "B"}
    assert made.begun.count("a") == 3
    made = Scripted({"a": [gone] * 3})
    with pytest.raises(RunError, match="went away; it was tried 3 times"):
        list(scheduled([Unit("a")], made))
    assert made.closed


def test_any_other_error_ends_everything():
    made = Scripted({"a": [ConfigError("no such data")], "b": ["B"]})
    with pytest.raises(ConfigError, match="no such data"):
        list(scheduled([Unit("a")], made))
    assert made.closed


def test_a_run_that_another_process_plays_is_waited_for_and_then_read(tmp_path):
    unit = Unit("a", tmp_path / "a")
    taken, freed = threading.Event(), threading.Event()

    def other() -> None:
        with only_writer(unit.path):
            taken.set()
            assert freed.wait(10)
            unit.path.mkdir()
            (unit.path / "summary.json").write_text("{}")

    thread = threading.Thread(target=other)
    thread.start()
    assert taken.wait(10)
    begun: list[str] = []

    def work(job: Unit) -> str:
        begun.append(job.name)
        if job.done:
            return "read"
        if job.path is None:
            freed.set()  # after the other run there is nothing to do but wait
            return "played"
        with only_writer(job.path):
            return "played"

    found = {j.name: o for j, o in scheduled([unit, Unit("b")], Here(work))}
    thread.join()
    assert found == {"b": "played", "a": "read"}
    assert begun == ["a", "b", "a"]


def test_a_run_whose_player_elsewhere_dies_becomes_ours(tmp_path):
    unit, tried = Unit("a", tmp_path / "a"), []
    lock_of(unit.path).write_text("elsewhere 1\n")

    def work(job: Unit) -> str:
        tried.append(time.time())
        try:
            with only_writer(job.path):
                return "played"
        except FolderTakenError:
            import os

            os.utime(lock_of(unit.path), (0, 0))  # no sign of life for long
            raise

    assert [o for _, o in scheduled([unit], Here(work))] == ["played"]
    assert len(tried) == 2


@pytest.mark.exhaustive
def test_a_killed_process_is_replaced_and_its_run_continued(tmp_path):
    """A real process of the pool kills itself the first time; its successor finishes the work."""
    marker = tmp_path / "killed"
    code = f"import os, signal, pathlib; m = pathlib.Path({str(marker)!r})\n"
    code += "if not m.exists(): m.touch(); os.kill(os.getpid(), signal.SIGKILL)"
    found = list(scheduled([code], Processes(exec, 1, {}, [])))
    assert found == [(code, None)]
    assert marker.exists()


def test_a_process_that_ended_is_a_lost_worker(monkeypatch):
    monkeypatch.setattr(Processes, "_pool", lambda self: SimpleNamespace(shutdown=lambda **_: None))
    made = Processes(exec, 1, {}, [])
    lost = made.lost(BrokenProcessPool("it ended"), "run")
    assert isinstance(lost, WorkerLostError)
    assert "a process of the comparison ended" in str(lost)
    other = ConfigError("no such data")
    assert made.lost(other, "run") is other
    made.close()


# clusters


@pytest.fixture
def played(monkeypatch) -> list[str]:
    names: list[str] = []
    execute = planted(lambda config, round_: (50.0 + round_, 40.0 + round_), names)
    monkeypatch.setattr("fedshift.experiment.compare.execute", execute)
    # The data of these tests are registered by a module that other machines would not import.
    monkeypatch.setattr(clusters, "needs_script", lambda *sent: False)
    return names


def spread(out: Path, executor: str, **options):
    return compare(
        ["fedavg", "fedprox"],
        tiny_scenario(rounds=2),
        seeds=[0, 1],
        out=out,
        executor=executor,
        executor_options=options,
        workers=1 if executor == "local" else None,
        quiet=True,
    )


SUBMITIT = pytest.mark.skipif(not extras.is_installed("submitit"), reason="needs the extra slurm")


class FakeSubmitit:
    """What we use of submitit: jobs are played when submitted; killed ones have no result."""

    def __init__(self, lose: int = 0) -> None:
        self.parameters, self.cluster, self.lose = {}, "", lose

    def AutoExecutor(self, folder: Path, cluster: str):  # noqa: N802
        self.cluster, self.folder = cluster, folder
        return self

    def update_parameters(self, **given) -> None:
        if "colour" in given:
            raise NameError("unknown argument: colour")
        self.parameters = given

    def submit(self, function, *args):
        if self.lose:
            self.lose -= 1
            return SimpleNamespace(done=lambda: True, result=self._killed, job_id="7")
        made = function(*args)
        return SimpleNamespace(done=lambda: True, result=lambda: made, job_id="7")

    @staticmethod
    def _killed():
        raise RuntimeError("Job has not produced any output\nit was killed")


@pytest.fixture
def submitit(monkeypatch) -> FakeSubmitit:
    fake = FakeSubmitit()
    monkeypatch.setitem(sys.modules, "submitit", fake)
    monkeypatch.setattr(extras, "is_installed", lambda name: True)
    return fake


def test_slurm_jobs_give_the_same_comparison_and_play_no_run_twice(played, tmp_path, submitit):
    submitit.lose = 2
    found = spread(tmp_path / "there", "slurm", cluster="local", slurm_partition="cpu")
    assert submitit.parameters == {**clusters.SLURM, "slurm_partition": "cpu"}
    assert (submitit.cluster, submitit.folder) == ("local", tmp_path / "there" / "slurm")
    alone = spread(tmp_path / "here", "local")
    assert [r.config.name for r in found.results] == [r.config.name for r in alone.results]
    assert [r.history for r in found.results] == [r.history for r in alone.results]
    assert len(played) == 8
    spread(tmp_path / "there", "slurm", cluster="local")
    assert len(played) == 8
    assert all(r.path.is_absolute() for r in found.results)


@SUBMITIT
@pytest.mark.exhaustive
def test_slurm_jobs_are_processes(tmp_path):
    """submitit's local executor: each job is a process of its own."""
    found = compare(
        "fedavg",
        find_scenario("digits", rounds=1, steps=1),
        out=tmp_path,
        executor="slurm",
        executor_options={"cluster": "local"},
        quiet=True,
    )
    assert found.results[0].history[0]["losses"] == alone()


def alone() -> dict:
    return run("fedavg", find_scenario("digits", rounds=1, steps=1)).history[0]["losses"]


def test_a_job_that_ends_without_a_result_is_lost_and_our_errors_come_back(tmp_path, submitit):
    def work(job: Unit) -> str:
        raise ConfigError("no such data", "data=DIR")

    made = clusters.SlurmJobs(work, 2, {"cluster": "local"}, tmp_path)
    made.submit(Unit("refused"))
    submitit.lose = 1
    made.submit(Unit("lost"))
    (refused, lost) = (outcome for _, outcome in made.collect(1.0))
    assert isinstance(refused, ConfigError)
    assert refused.options == ("data=DIR",)
    assert isinstance(lost, WorkerLostError)
    assert "it was killed" in str(lost)
    with pytest.raises(ConfigError, match="submitit does not take"):
        clusters.SlurmJobs(work, 2, {"cluster": "local", "colour": "red"}, tmp_path)


class FakeRay:
    """What we use of Ray, in threads."""

    class exceptions:  # noqa: N801
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            pass

    def __init__(self) -> None:
        self.given, self.up, self.lose = {}, False, 1

    def is_initialized(self) -> bool:
        return self.up

    def init(self, **given) -> None:
        self.given, self.up = given, True

    def shutdown(self) -> None:
        self.up = False

    def remote(self, **need):
        from concurrent.futures import Future

        def decorated(function):
            def start(*args):
                done: Future = Future()
                if self.lose:
                    self.lose -= 1
                    done.set_exception(self.exceptions.RayError("node died"))
                else:
                    done.set_result(function(*args))
                return SimpleNamespace(future=lambda: done)

            return SimpleNamespace(remote=start)

        return decorated


def test_ray_tasks_give_the_same_comparison_and_lost_ones_are_played_again(
    played, tmp_path, monkeypatch
):
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(extras, "is_installed", lambda name: True)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    found = spread(tmp_path, "ray")
    assert len(found.results) == 4
    assert len(played) == 4
    assert ray.given["address"] == "local"
    assert not ray.up
    spread(tmp_path, "ray", address="ray://head:10001")
    assert ray.given["address"] == "ray://head:10001"
    assert "num_cpus" not in ray.given


@pytest.mark.exhaustive
@pytest.mark.skipif(not extras.is_installed("ray"), reason="needs the extra flower")
@pytest.mark.filterwarnings("ignore")
def test_a_run_on_ray_itself_has_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    scenario = find_scenario("digits", rounds=1, steps=1)
    found = compare("fedavg", scenario, out=tmp_path, executor="ray", workers=1, quiet=True)
    assert found.results[0].history[0]["losses"] == alone()


def test_what_an_executor_lacks_is_one_line(played, tmp_path, monkeypatch):
    if extras.is_installed("submitit"):
        monkeypatch.setattr("shutil.which", lambda name: None)
        with pytest.raises(ConfigError, match="there is no SLURM here"):
            spread(tmp_path, "slurm")
    monkeypatch.setattr(extras, "is_installed", lambda name: False)
    with pytest.raises(ConfigError, match=r'needs submitit.*"fedshift\[slurm\]"'):
        spread(tmp_path, "slurm")
    with pytest.raises(ConfigError, match=r'needs Ray.*"fedshift\[flower\]"'):
        spread(tmp_path, "ray")


def test_what_only_a_script_defines_cannot_go_to_other_machines(monkeypatch):
    monkeypatch.setattr(clusters, "needs_script", lambda *sent: True)
    with pytest.raises(ConfigError, match="FEDSHIFT_PLUGINS"):
        clusters.cluster("ray", Part, 1, {}, [])


def test_the_error_of_a_run_survives_its_way_through_bytes():
    import pickle  # noqa: TID251  what executors do with results

    error = pickle.loads(pickle.dumps(FolderTakenError("taken", "out=DIR")))  # noqa: S301
    assert (str(error), error.options) == ("taken", ("out=DIR",))
    assert json.dumps(error.options)
