"""Where and how a process computes: what is chosen, what it may not change."""

import json
import shutil

import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.config import configure
from fedshift.core.registry import BACKBONES
from fedshift.engine import compute as module
from fedshift.engine.compute import Compute, faster_layout, find_device, in_layout, try_layouts
from fedshift.experiment.run import run
from fedshift.experiment.session import Options, prepare
from fedshift.testing import start, tiny_scenario, worker

ACCELERATORS = [
    name
    for name, there in (
        ("cuda", torch.cuda.is_available()),
        ("mps", torch.backends.mps.is_available()),
    )
    if there
]


@pytest.fixture
def net():
    return BACKBONES.get("cnn").build((3, 16, 16), 4)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path))
    return tmp_path / "layouts.json"


def test_the_faster_layout_is_taken_and_tried_once(net, cache, monkeypatch):
    tried = []

    def trial(net, size):
        tried.append(size)
        return {"channels-last": 1.0, "contiguous": 0.5}

    monkeypatch.setattr(module, "try_layouts", trial)
    assert faster_layout(net, 8) == faster_layout(net, 8) == "contiguous"
    assert tried == [8]
    assert list(json.loads(cache.read_text()).values()) == ["contiguous"]
    assert faster_layout(net, 16) == "contiguous"
    assert tried == [8, 16]


def test_noise_does_not_decide(net, cache, monkeypatch):
    times = {"channels-last": 1.1, "contiguous": 1.0}
    monkeypatch.setattr(module, "try_layouts", lambda *_: times)
    assert faster_layout(net, 8) == "channels-last"


def test_a_damaged_cache_is_tried_again(net, cache, monkeypatch):
    cache.write_text("{torn")
    monkeypatch.setattr(module, "try_layouts", lambda *_: {"channels-last": 1, "contiguous": 1})
    assert faster_layout(net, 8) == "channels-last"
    assert json.loads(cache.read_text())


def test_a_trial_times_both_and_leaves_no_trace(net):
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = torch.get_rng_state()
    seconds = try_layouts(net.eval(), 4)
    assert all(value > 0 for value in seconds.values())
    assert not net.training
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_net_without_convolutions_is_not_tried(cache):
    assert faster_layout(BACKBONES.get("mlp").build((8,), 2), 4) == "contiguous"
    assert not cache.exists()


@pytest.mark.parametrize("layout", ["channels-last", "contiguous"])
def test_weights_lie_as_chosen_and_keep_their_values(net, layout):
    before = {k: v.clone() for k, v in net.state_dict().items()}
    in_layout(net, layout)
    kind = torch.channels_last if layout == "channels-last" else torch.contiguous_format
    convolutions = [p for p in net.parameters() if p.dim() == 4 and p.shape[1] > 1]
    assert convolutions
    assert all(p.is_contiguous(memory_format=kind) for p in convolutions)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


@pytest.mark.parametrize("layout", ["channels-last", "contiguous"])
def test_stored_images_follow_the_layout_of_the_weights(net, layout):
    x = torch.rand(2, 16, 16, 3).permute(0, 3, 1, 2)  # as stored: channels-last in memory
    maps = next(v for v in in_layout(net, layout)(x).taps.values() if v.dim() == 4)
    assert maps.is_contiguous() is (layout == "contiguous")


def test_what_leaves_a_site_lies_the_same_whatever_the_layout():
    session = start("fedavg")
    entries = worker(session).entries
    assert any(not v.is_contiguous() for v in entries.values()), "convolutions are channels-last"
    sent = worker(session).visit(session.server.broadcast("train", "dark-0")).shared
    assert all(v.is_contiguous() for v in sent.values())


def test_a_layout_moves_no_more_than_the_last_bits():
    runs = [
        prepare(*configure("fedavg", tiny_scenario(rounds=1)), None, Options(compute=chosen))
        for chosen in (Compute(layout="channels-last"), Compute(layout="contiguous"))
    ]
    for session in runs:
        session.advance()
    a, b = (session.server.shared for session in runs)
    for key, value in a.items():
        torch.testing.assert_close(value, b[key], rtol=1e-4, atol=1e-5)


def test_a_run_remembers_how_it_began(tmp_path):
    config, whole = configure("fedavg", tiny_scenario(rounds=2))
    began = Options(compute=Compute(layout="contiguous"))
    prepare(config, whole, tmp_path / "r", began).advance()
    again = prepare(config, whole, tmp_path / "r", Options(resume=True))
    held = json.loads((tmp_path / "r" / "config.json").read_text())["compute"]
    assert held == {"device": "cpu", "layout": "contiguous", "compile": False}
    weights = [p for p in again.transport.worker.net.parameters() if p.dim() == 4]
    assert all(p.is_contiguous() for p in weights)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Compute(device="abacus"), "no device 'abacus'"),
        (Compute(layout="diagonal"), "channels-last"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(given, words):
    with pytest.raises(ConfigError, match=words):
        run("fedavg", tiny_scenario(), compute=given)


def test_without_a_compiler_there_is_no_compilation(monkeypatch, net):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ConfigError, match=r"C\+\+ compiler"):
        Compute(compile=True).decided(net, 4)


def test_auto_takes_what_the_machine_has():
    assert find_device("auto") == (ACCELERATORS[0] if ACCELERATORS else "cpu")


def test_lower_precision_moves_the_weights_a_little_and_keeps_their_type():
    scenarios = [tiny_scenario(rounds=1, precision=p) for p in ("float32", "bfloat16")]
    sessions = [prepare(*configure("fedavg", scenario)) for scenario in scenarios]
    for session in sessions:
        session.advance()
    a, b = (session.server.shared for session in sessions)
    assert all(v.dtype == b[k].dtype for k, v in a.items())
    assert any(not torch.equal(v, b[k]) for k, v in a.items())
    for key, value in a.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, b[key], rtol=0.1, atol=0.05)


@pytest.mark.skipif(not ACCELERATORS, reason="no accelerator on this machine")
@pytest.mark.parametrize("method", ["fedavg", "fedbn", "scaffold", "moon"])
@pytest.mark.parametrize("device", ACCELERATORS)
def test_an_accelerator_gives_the_processors_numbers(device, method):
    sessions = [
        prepare(
            *configure(method, tiny_scenario(rounds=2)), None, Options(compute=Compute(device=d))
        )
        for d in ("cpu", device)
    ]
    for session in sessions:
        session.advance()
        session.advance()
    a, b = (session.server.shared for session in sessions)
    for key, value in a.items():
        torch.testing.assert_close(value, b[key], rtol=1e-3, atol=1e-3)


@pytest.mark.exhaustive  # the compiler alone takes a minute
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
@pytest.mark.filterwarnings("ignore")  # of torch about itself
def test_a_compiled_net_gives_the_same_numbers():
    scenario = tiny_scenario(rounds=1, backbone="mlp", backbone_options={})
    sessions = [
        prepare(*configure("fedavg", scenario), None, Options(compute=Compute(compile=c)))
        for c in (False, True)
    ]
    for session in sessions:
        session.advance()
    a, b = (session.server.shared for session in sessions)
    for key, value in a.items():
        torch.testing.assert_close(value, b[key], rtol=1e-3, atol=1e-4)
