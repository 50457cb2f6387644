"""Sites with raw tables agree on a preparation over the grid, the one that a simulation has."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from test_sites import Many, make_site

import fedshift
from fedshift.base.errors import ConfigError, DataError, FedshiftError, NotAllowedError, RunError
from fedshift.core.config import configure
from fedshift.data.catalogue import Variant
from fedshift.data.library.datasets import add
from fedshift.data.library.loaded import load
from fedshift.data.library.prepare import store_of
from fedshift.deploy import tables
from fedshift.deploy.checks import describe, own_data
from fedshift.deploy.folders import SitePaths, read_site
from fedshift.deploy.policy import SitePolicy, write_policy
from fedshift.deploy.session import SITES, deployed, open_session, play_request
from fedshift.deploy.sites import open_folder
from fedshift.runs.what_left import require_declared, what_left

NAMES = ("berlin", "paris")


def write_table(path: Path, seed: int, header=("patient_id", "age", "lab", "pain", "ill")) -> None:
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(header)
        for i in range(60):
            age, lab, pain = rng.normal(50, 9), rng.normal(3 + seed, 1), rng.choice(["mild", "bad"])
            ill = int((age - 50) / 9 + (lab - 3 - seed) + (pain == "bad") > 0.5)
            gap = seed == 2 and rng.random() < 0.2
            cells = [f"p{i // 2}", "?" if gap else f"{age:.1f}", f"{lab:.3f}", pain]
            word = ("well", "ill")[ill]
            out.writerow([*cells, word.title() if seed == 1 else word])


@pytest.fixture
def raw(tmp_path: Path, monkeypatch) -> Many:
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    (tmp_path / "tables").mkdir()
    for seed, name in enumerate(NAMES, start=1):
        write_table(tmp_path / "tables" / f"{name}.csv", seed)
        make_site(tmp_path, name, folder=str(tmp_path / "tables" / f"{name}.csv"))
    return Many(tmp_path, monkeypatch)


def table_run(method: str = "fedavg", **options: object):
    given = {"rounds": 2, "batch_size": 8, "backbone": "linear"}
    told = {"label": "ill"} | options
    return configure(method, deployed(SITES.change(**given, data_options=told)))[0]


@pytest.mark.parametrize("statistics", ["federated", "site"])
def test_the_sites_end_with_the_arrays_of_a_simulation(raw, statistics):
    config = table_run(statistics=statistics)
    request, post = raw.request(config, *NAMES)
    result = play_request(request, post)
    card, _ = add("both", raw.root / "tables", table={"label": "ill", "statistics": statistics})
    simulated = load("both")
    for name in NAMES:
        paths = SitePaths(raw.root / name)
        own = open_folder(paths, read_site(paths.root), config.name)
        assert own.x.equal(simulated[name].x)
        assert own.y.equal(simulated[name].y)
        assert own.split.equal(simulated[name].split)
        model = fedshift.load_model(paths.models / config.name, name)
        predicted = model.predict(raw.root / "tables" / f"{name}.csv", reference=(
            raw.root / "tables" / f"{name}.csv"))  # fmt: skip
        assert len(predicted) == 60
    agreed = json.loads((request.path / "preparation.json").read_text())["table"]
    kept = json.loads((store_of(card, Variant()) / "preparation.json").read_text())
    for key in ("statistics", "classes", "owners", "objective", "told", "leaves"):
        assert agreed[key] == kept[key], key
    assert ("all" in agreed) == (statistics == "federated")
    assert agreed.get("all") == kept.get("all")
    left = [one for one in what_left(request.path) if one.kind == "preparation"]
    assert {one.client: one.bytes for one in left} == kept["told"]
    assert all(one.round == 0 and "names of categories" in one.declared for one in left)
    require_declared(what_left(request.path))
    assert set(result.outcome("personal").metrics.domains) == set(NAMES)
    again, post = raw.request(config, *NAMES)  # finished: the same lines, once
    open_session(again, post)
    assert len([x for x in what_left(request.path) if x.kind == "preparation"]) == 2


def test_a_resumed_run_uses_the_stored_preparation(raw, monkeypatch):
    config = table_run()
    request, post = raw.request(config, *NAMES)
    open_session(request, post).advance()
    held = (request.path / "preparation.json").read_bytes()
    (raw.root / "paris" / "preparations" / f"{config.name}.json").unlink()
    monkeypatch.setattr(tables, "agree", lambda *_: pytest.fail("asked again"))
    assert play_request(request, post).history[-1]["round"] == 2
    assert (request.path / "preparation.json").read_bytes() == held
    assert (raw.root / "paris" / "preparations" / f"{config.name}.json").exists()
    assert [one.kind for one in what_left(request.path)].count("preparation") == len(NAMES)


DP = "fedavg + local-dp[clip=1,noise=1,randomness=system]"


@pytest.mark.parametrize(
    ("policy", "method", "words"),
    [
        (SitePolicy(payloads=()), "fedavg", "payload of preparation may not leave"),
        (SitePolicy(epsilon=3.0), "fedavg", "leaves without noise, and this site spends at most"),
        (SitePolicy(), DP, "what a preparation needs is not covered by local-dp"),
    ],
)
def test_a_site_may_refuse_to_tell_of_its_table(raw, policy, method, words):
    paths = SitePaths(raw.root / "paris")
    allowed = policy.model_copy(update={"payloads": ("preparation",), "epsilon": None})
    write_policy(SitePaths(raw.root / "berlin").policy, allowed)
    write_policy(paths.policy, policy)
    with pytest.raises(NotAllowedError, match=words):
        play_request(*raw.request(table_run(method), *NAMES))
    rows = [json.loads(line) for line in paths.requests.read_text().splitlines()]
    assert [(row["task"], "refused" in row) for row in rows] == [("preparation: describe", True)]
    assert not (raw.root / "run" / "preparation.json").exists()
    write_policy(paths.policy, allowed)
    request, post = raw.request(table_run(method), *NAMES)
    open_session(request, post)
    told = [json.loads(line)["task"] for line in paths.requests.read_text().splitlines()]
    assert told[1:3] == ["preparation: describe", "preparation: count"]


def test_sites_that_do_not_fit_together_are_named(raw):
    header = ("patient_id", "age", "labor", "pain", "ill")
    write_table(raw.root / "tables" / "paris.csv", 2, header)
    with pytest.raises(DataError, match="berlin and paris do not both have the column lab, labor"):
        play_request(*raw.request(table_run(), *NAMES))
    write_table(raw.root / "tables" / "paris.csv", 2)
    with pytest.raises(FedshiftError, match="has no column 'outcome'; it has patient_id"):
        play_request(*raw.request(table_run(label="outcome"), *NAMES))
    with pytest.raises(FedshiftError, match="impute=drop is not done at sites"):
        play_request(*raw.request(table_run(impute="drop"), *NAMES))
    card, _ = add("one", raw.root / "tables" / "berlin.csv", table={"label": "ill"})
    agreed = store_of(card, Variant()) / "preparation.json"
    table = str(raw.root / "tables" / "berlin.csv")
    make_site(raw.root, "rome", folder=table, preparation=str(agreed))
    with pytest.raises(ConfigError, match="paris has a table without a preparation, and rome is"):
        play_request(*raw.request(table_run(), "paris", "rome"))


def test_what_the_server_may_not_ask_and_may_not_send(raw):
    paths, config = SitePaths(raw.root / "paris"), table_run()
    with pytest.raises(RunError, match="was asked to rows, which it does not know"):
        tables.answer(paths, config, {"step": "rows"})
    with pytest.raises(RunError, match="sent a preparation that cannot be read"):
        tables.keep(paths, config, {"all": 3})
    assert not list(paths.preparations.iterdir())
    for text in ("[]", "nonsense"):
        with pytest.raises(RunError, match="site x described its table in a way that cannot"):
            tables.agree(lambda _asked, text=text: {"x": text}, config)
    with pytest.raises(DataError, match="a site described its table in a way that is not"):
        tables.agree(lambda _asked: {"x": '{"columns": {"a": {}}}'}, config)
    many = {"step": "count", "roles": {"patient_id": "categorical"}, "classes": ["ill", "well"]}
    asked = tables.answer(paths, table_run(one_hot=10), many)
    assert (asked["patient_id"]["counts"], asked["patient_id"]["many"]) == ({}, True)


def test_site_check_says_that_a_table_is_not_prepared_yet(raw):
    paths = SitePaths(raw.root / "paris")
    words = describe(own_data(paths, read_site(paths.root)))
    assert words == "60 rows of 5 columns; a run's sites agree on how they are prepared"


def test_options_of_the_data_are_the_schema():
    schema = tables.schema_of_run(
        table_run(missing="-9,none", rename_label="ill=1, well=0", one_hot=7, drop="a,b")
    )
    assert schema.missing == ("-9", "none")
    assert schema.rename_label == {"ill": "1", "well": "0"}
    assert (schema.one_hot, schema.drop, schema.objective) == (7, ("a", "b"), "classification")
