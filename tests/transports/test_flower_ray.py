"""Flower's simulation on Ray: the same bits, loopback only. One start of Ray serves all tests."""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path

import pytest

from fedshift.base.errors import DivergedError
from fedshift.core.config import configure
from fedshift.core.state import DiskStore
from fedshift.engine.federation import federate
from fedshift.experiment.session import Options, prepare
from fedshift.testing import play, require_same, start, tiny_scenario
from fedshift.transports.flower.transport import FlowerTransport

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("ray"),
    # Ray's own: it leaves files open, and does not wait for its daemons.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
FURTHER = ("fedavg", "scaffold", "fedbn", "f2dc", "fedka", "csac", "feddebias")
# All with make test-all: starting Ray takes a minute, and the apps are tested in memory.
METHODS = [pytest.param(name, marks=pytest.mark.exhaustive) for name in ("fdse", *FURTHER)]
flower = pytest.importorskip("fedshift.transports.flower.grid")  # before Ray: it sets its address


def site_app(folder):
    """A ClientApp that plays whatever run a message speaks of, in actors that know no tests."""

    def open_worker(run, node):
        import fedshift.testing  # noqa: F401  registers the data
        from fedshift.core.state import DiskStore
        from fedshift.engine.build import Plan

        store = DiskStore(folder / run.name)
        return Plan(run, run.build(), federate(run.scenario, run.seed), store).worker()

    def whoami(run, node):
        return ("bright-1", "dark-0", "bright-0", "dark-1")[node["partition-id"]]

    return flower.client_app(open_worker, whoami)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    simulation = flower.Simulation(site_app(folder), nodes=4, workers=2)

    def build(method, **changes):
        config, whole = configure(method, tiny_scenario(**changes))
        grid, store = flower.FlowerGrid(simulation.grid), DiskStore(folder / config.name)

        def connect(plan):
            return FlowerTransport(grid, plan.config, store=store)

        return prepare(config, whole, None, Options(transport=connect))

    yield build
    simulation.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Ray does not wait for its daemons
        gc.collect()


@pytest.mark.parametrize("method", METHODS)
def test_ray_gives_the_bits_of_one_process(simulated, method):
    require_same(play(start(method)), play(simulated(method)), "in process and on Ray")


@pytest.mark.exhaustive
def test_a_divergence_in_an_actor_is_the_same_error_as_here(simulated):
    with pytest.raises(DivergedError) as here:
        play(start("fedavg", lr=1e20))
    with pytest.raises(DivergedError) as there:
        play(simulated("fedavg", lr=1e20))
    assert str(here.value) == str(there.value)


def descendants(pid):
    """Processes below ``pid``, it included."""
    found = {pid}
    for entry in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in entry.read_text().split():
            found |= descendants(int(child))
    return found


def ray_processes():
    """Ray's daemons leave the tree of processes but not the session's folder on their lines."""
    import ray

    session = ray._private.worker._global_node.get_session_dir_path().rpartition("/")[2]
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_text()
        except OSError:
            continue
        if session in line:
            found.add(int(path.parts[2]))
    return found


def sockets(pids):
    """(local, remote) addresses of the TCP and UDP sockets that the processes hold, in hex."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = []
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in inodes:
                found.append((words[1], words[2]))
    return found


LOOPBACK = {
    "0100007F",  # 127.0.0.1
    "00000000000000000000000001000000",  # ::1
    "0000000000000000FFFF00000100007F",  # ::ffff:127.0.0.1
}
NOBODY = {"00000000", "0" * 32}  # the remote end of a socket that listens


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="looks at /proc")
def test_every_socket_is_on_the_loopback_interface(simulated):
    session = simulated("fedavg", rounds=2)
    play(session)
    found = sockets(descendants(os.getpid()) | ray_processes())
    assert len(found) > 4, "Ray's own sockets were not found"
    for local, remote in found:
        assert local.partition(":")[0] in LOOPBACK, local
        assert remote.partition(":")[0] in LOOPBACK | NOBODY, remote
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
