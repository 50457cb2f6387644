"""The papers' scenarios say what the papers say; the expected values are the papers'."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedshift.base.errors import ConfigError, DataError
from fedshift.core.registry import BACKBONES, SCENARIOS
from fedshift.data.library import loaded
from fedshift.engine.federation import federate, holdings
from fedshift.experiment.run import run
from fedshift.experiment.scenario import find_scenario

REAL = Path(os.environ.get("FEDSHIFT_SOURCES") or Path(__file__).parents[3] / "shared" / "data")
OURS = ("digits/",)  # questions on the embedded digits, at one scale
PAPERS = sorted(n for n in SCENARIOS.entries() if "/" in n and not n.startswith(OURS))

FDSE = {
    "rounds": 500,
    "batch_size": 50,
    "weight_decay": 1e-3,
    "clip": 10.0,
    "lr_decay": 0.998,
    "momentum": 0.0,
    "backbone": "alexnet-bn",
    "pixels": "unit",
    "augment": "none",
    "data_options": {"size": 256},
    "protocols": ("personal",),
    "selection": "validation",
}
F2DC = {
    "rounds": 100,
    "epochs": 10,
    "batch_size": 64,
    "lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 1e-5,
    "backbone": "resnet10",
    "pixels": "imagenet",
    "protocols": ("global",),
}
FEDKA = {
    "rounds": 200,
    "batch_size": 16,
    "optimiser": "adam",
    "lr": 3e-4,
    "optimiser_state": "keep",
    "selection": "oracle",
    "pixels": "unit",
    "protocols": ("unseen",),
    "analyses": ("group-effect",),
}
CSAC = {"rounds": 40, "batch_size": 64, "momentum": 0.5, "protocols": ("unseen",)}
DEBIAS = {"steps": 50, "momentum": 0.0, "pixels": "unit", "protocols": ("global",)}
EXPECTED = {
    "fdse/pacs": FDSE | {"lr": 0.05, "epochs": 5},
    "fdse/office-caltech10": FDSE | {"lr": 0.1, "epochs": 1},
    "fdse/domainnet": FDSE | {"epochs": 5},
    "f2dc/digits": F2DC | {"augment": "f2dc-digits", "data_options": {"size": 32}},
    "f2dc/office-caltech": F2DC | {"augment": "f2dc", "data_options": {"size": 32}},
    "f2dc/pacs": F2DC | {"augment": "f2dc", "data_options": {"size": 128}},
    "fedka/digit-five/mnist-m": FEDKA | {"steps": 32, "backbone": "fedka-cnn"},
    "fedka/office-caltech10/dslr": FEDKA | {"steps": 32, "unseen": "dslr"},
    "fedka/amazon/kitchen": FEDKA | {"steps": 8, "backbone": "mlp"},
    "csac/pacs/sketch": CSAC | {"lr": 0.01, "steps": 200, "augment": "csac", "unseen": "sketch"},
    "csac/pacs-imagenet/sketch": CSAC
    | {"lr": 0.01, "steps": 200, "augment": "csac", "unseen": "sketch", "data": "pacs"}
    | {"backbone": "efficientnet-lite0", "data_options": {"size": 224}, "pixels": "inception"}
    | {"backbone_options": {"bottleneck": 256, "pretrained": "imagenet"}},
    "csac/vlcs/voc2007": CSAC | {"lr": 0.001, "backbone": "resnet18"},
    "csac/rotated-mnist/deg75": CSAC | {"steps": 100, "backbone": "mnist-cnn"},
    "csac/office-caltech-home/art": CSAC | {"lr": 0.01},
    "feddebias/rotated-mnist": DEBIAS
    | {"lr": 0.001, "batch_size": 64, "rounds": 1000, "backbone": "feddebias-cnn"},
    "feddebias/cifar10": DEBIAS
    | {"lr": 0.01, "batch_size": 32, "rounds": 1000, "backbone": "vgg11"},
    "feddebias/clean-cifar10": DEBIAS | {"lr": 0.01, "rounds": 1000},
    "feddebias/cifar100": DEBIAS
    | {"rounds": 800, "backbone": "cct-7-3x1", "momentum": 0.9, "pixels": "cifar100"},
    "feddebias/pacs": DEBIAS | {"rounds": 400, "data_options": {"size": 32}},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_papers_scale_is_the_papers(name):
    scenario = find_scenario(name, scale="paper")
    found = {key: getattr(scenario, key) for key in EXPECTED[name]}
    assert found == EXPECTED[name]
    assert scenario.changed == ""


@pytest.mark.parametrize("name", PAPERS)
def test_the_laptops_scale_is_smaller_and_says_what_it_changed(name):
    paper, laptop = find_scenario(name, scale="paper"), find_scenario(name)
    assert laptop.scale == "laptop"
    assert laptop.rounds < paper.rounds
    assert f"rounds {paper.rounds} -> {laptop.rounds}" in laptop.changed
    for key in ("domains", "unseen", "split", "partition", "pixels", "augment", "selection"):
        assert getattr(paper, key) == getattr(laptop, key)
    assert "smaller than the paper's" in laptop.confounders()
    assert laptop.backbone in BACKBONES.entries()


def test_every_target_has_its_scenario():
    ends = {name.rpartition("/")[0] for name in PAPERS}
    assert {"fedka/digit-five", "csac/pacs", "csac/vlcs", "csac/office-caltech-home"} <= ends
    for group, targets in (
        ("csac/pacs", 4),
        ("csac/pacs-imagenet", 4),
        ("fedka/digit-five", 5),
        ("csac/rotated-mnist", 6),
    ):
        assert sum(name.startswith(f"{group}/") for name in PAPERS) == targets


def test_f2dc_has_twenty_ten_and_ten_clients():
    for name, clients in (("digits", 20), ("office-caltech", 10), ("pacs", 10)):
        assert sum(find_scenario(f"f2dc/{name}").partition.clients.values()) == clients


def test_a_scenario_of_one_scale_has_no_other():
    with pytest.raises(ConfigError, match="comes in one scale"):
        find_scenario("digits", scale="paper")


@pytest.fixture
def real(monkeypatch, tmp_path_factory):
    if not (REAL / "pacs").is_dir():
        pytest.skip(f"no real data at {REAL}; set FEDSHIFT_SOURCES to run this")
    monkeypatch.setenv("FEDSHIFT_SOURCES", str(REAL))
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path_factory.getbasetemp() / "prepared"))
    loaded._LOADED.clear()
    yield
    loaded._LOADED.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "fdse/office-caltech10",
        "fedka/amazon/books",
        pytest.param("f2dc/office-caltech", marks=pytest.mark.exhaustive),
        pytest.param("csac/rotated-mnist/deg75", marks=pytest.mark.exhaustive),
        pytest.param("feddebias/clean-cifar10", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.usefixtures("real")
def test_each_papers_scenario_runs_end_to_end_on_real_data(name):
    result = run("fedavg", name, rounds=1)
    (protocol,) = result.summary["protocols"]
    outcome = result.outcome(protocol)
    assert outcome is not None
    assert set(outcome.metrics.domains) == (
        {result.config.scenario.unseen}
        if protocol == "unseen"
        else set(result.config.scenario.domains)
    )


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("name", PAPERS)
def test_every_scenario_with_data_deals_it_out_and_the_others_say_where_to_get_it(name):
    try:
        made = federate(find_scenario(name), 0)
    except DataError as error:
        text = str(error)
        assert "fedshift data prepare" in text or "add it as" in text
        return
    assert min(len(site.data.train) for site in made.sites.values()) > 1
    shown = holdings(find_scenario(name), 0)
    assert shown.counts.sum() == sum(len(s.data.train) for s in made.sites.values())


@pytest.mark.usefixtures("real")
def test_a_datasets_name_is_a_scenario_of_one_client_per_domain():
    made = federate(find_scenario("office-caltech10", data_options={"size": 32}), 0)
    assert [site.domain for site in made.sites.values()] == list(made.domains)
    assert made.shape == (3, 32, 32)
