"""Deployed sites tell statistics of their tables with noise, as much as their policies allow."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_sites import Many, make_site

from fedshift.base.errors import FedshiftError, NotAllowedError
from fedshift.core.config import configure
from fedshift.deploy import tables
from fedshift.deploy.folders import SitePaths
from fedshift.deploy.policy import SPENT, SitePolicy, describe_policy, write_policy
from fedshift.deploy.session import SITES, RegisteredSites, deployed, open_session, play_request
from fedshift.runs.what_left import require_declared, what_left

NAMES = ("berlin", "paris")
TOLD = {"bounds": "age=0:120,lab=-10:10", "categories": "pain=mild:bad"}
QUESTION = {
    "step": "count",
    "roles": {"age": "numeric", "lab": "numeric", "pain": "categorical"},
    "classes": ["0", "1"],
}


def cells(seed: int) -> list[tuple[float, float, str, int, str]]:
    rng = np.random.default_rng(seed)
    out = []
    for i in range(60):
        age, lab = round(rng.normal(50, 9), 1), round(rng.normal(seed, 1), 3)
        ill = int((age - 50) / 9 + lab - seed > 0)
        out.append((age, lab, ("mild", "bad")[i % 2], ill, "train" if i % 5 else "test"))
    return out


@pytest.fixture
def raw(tmp_path: Path, monkeypatch) -> Many:
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    for seed, name in enumerate(NAMES, start=1):
        lines = [",".join(map(str, row)) for row in cells(seed)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,lab,pain,ill,split", *lines]) + "\n")
        make_site(tmp_path, name, folder=str(tmp_path / f"{name}.csv"))
    return Many(tmp_path, monkeypatch)


def table_run(method: str = "fedavg", **options: object):
    given = {"rounds": 1, "batch_size": 8, "backbone": "linear"}
    told = {"label": "ill"} | options
    return configure(method, deployed(SITES.change(**given, data_options=told)))[0]


def numbers_in(found: object) -> list[float]:
    if isinstance(found, dict):
        return [n for value in found.values() for n in numbers_in(value)]
    if isinstance(found, list):
        return [n for value in found for n in numbers_in(value)]
    return [float(found)] if isinstance(found, int | float) else []


@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_no_exact_statistic_of_a_site_is_in_what_leaves_it(raw, epsilon, monkeypatch):
    """All replies to the server and all of its files; without noise every statistic is there."""
    heard = {name: [] for name in NAMES}
    exchange = RegisteredSites._exchange

    def listen(self, requests):
        for site, reply in exchange(self, requests):
            heard[site].append(reply.envelope.text)
            yield site, reply

    monkeypatch.setattr(RegisteredSites, "_exchange", listen)
    options = TOLD | {"epsilon": epsilon} if epsilon else {"impute": "mean"}
    request, post = raw.request(table_run(**options), *NAMES)
    result = play_request(request, post)
    assert set(result.outcome("personal").metrics.domains) == set(NAMES)
    texts = [text for text in heard["paris"] if text.startswith("{")]
    assert any("total" in text for text in texts)
    texts += [file.read_text() for file in request.path.rglob("*.json")]
    texts += [x for file in request.path.rglob("*.jsonl") for x in file.read_text().splitlines()]
    numbers = np.array([n for text in texts for n in numbers_in(json.loads(text))])
    rows = [row for row in cells(2) if row[4] == "train"]
    both = [row for seed in (1, 2) for row in cells(seed) if row[4] == "train"]
    exact = {}
    for at in (0, 1):
        x, all_x = (np.array([row[at] for row in some]) for some in (rows, both))
        exact |= {(at, "sum"): x.sum(), (at, "squares"): (x**2).sum(), (at, "mean"): all_x.mean()}
        exact |= {(at, "deviation"): all_x.std()}
    found = {name for name, value in exact.items() if np.isclose(numbers, value, rtol=1e-9).any()}
    assert found == (set() if epsilon else set(exact))
    # who knows all rows but one subtracts them from what was told
    told = next(json.loads(text) for text in texts if "total" in text)
    guess = told["lab"]["total"] - sum(row[1] for row in rows[1:])
    assert (abs(guess - rows[0][1]) < 1e-6) == (epsilon is None)
    left = [one for one in what_left(request.path) if one.kind == "preparation"]
    assert len(left) == len(NAMES)
    assert all(("epsilon 1 for one row" in one.declared) == (epsilon is not None) for one in left)
    require_declared(what_left(request.path))


def test_a_description_says_nothing_of_the_rows(raw):
    """It is the same for a table of one row, whatever the row holds."""
    run, (one, two) = table_run(**TOLD, epsilon=1), (SitePaths(raw.root / name) for name in NAMES)
    (raw.root / "paris.csv").write_text("age,lab,pain,ill,split\nx,,?,0,test\n,7,7,1,train\n")
    told = tables.answer(two, run, {"step": "describe"})
    assert told == tables.answer(one, run, {"step": "describe"})
    assert (list(told["columns"]), told["classes"]) == (["age", "lab", "pain"], ["0", "1"])


DP = "fedavg + local-dp[clip=1,noise=1,randomness=system]"


@pytest.mark.parametrize(
    ("policy", "method", "epsilon", "words"),
    [
        (SitePolicy(preparation_epsilon=2), "fedavg", None, "and this run has none; set data.eps"),
        (SitePolicy(preparation_epsilon=2), "fedavg", 3, "epsilon 3, and preparation_epsilon is 2"),
        (SitePolicy(epsilon=3), "fedavg", 1, "with noise for rows, not for the site"),
        (SitePolicy(), DP, 1, "is not covered by local-dp; .*set preparation_epsilon"),
        (SitePolicy(payloads=(), preparation_epsilon=2), "fedavg", 1, "may not leave; name it"),
        (SitePolicy(preparation_epsilon=2), DP, 2, ""),
        (SitePolicy(preparation_epsilon=2, epsilon=3), DP, 1, ""),
        (SitePolicy(payloads=("preparation",)), "fedavg", None, ""),
    ],
)
def test_a_site_decides_how_much_is_told_of_its_rows(raw, policy, method, epsilon, words):
    paths = SitePaths(raw.root / "paris")
    write_policy(paths.policy, policy)
    options = TOLD | {"epsilon": epsilon} if epsilon else {}
    if words:
        with pytest.raises(NotAllowedError, match=words):
            tables.answer(paths, table_run(method, **options), {"step": "describe"})
        with pytest.raises(NotAllowedError, match=words):
            tables.answer(paths, table_run(method, **options), QUESTION)
        assert SPENT not in json.loads(paths.requests.read_text().splitlines()[-1])
    else:
        assert set(tables.answer(paths, table_run(method, **options), QUESTION)) == {
            "age", "lab", "pain",
        }  # fmt: skip


def test_what_is_told_adds_up_over_runs_and_noise_cannot_be_averaged_away(raw):
    paths = SitePaths(raw.root / "paris")
    write_policy(paths.policy, SitePolicy(preparation_epsilon=1.0))
    for epsilon in (0.25, 0.5):
        tables.answer(paths, table_run(**TOLD, epsilon=epsilon), QUESTION)
    assert "statistics of rows spent epsilon 0.75, of 1" in describe_policy(paths)
    with pytest.raises(NotAllowedError, match=r"would have spent epsilon 1\.25"):
        tables.answer(paths, table_run(**TOLD, epsilon=0.5), QUESTION)
    tables.answer(paths, table_run(**TOLD, epsilon=0.25), QUESTION)  # all of it
    write_policy(paths.policy, SitePolicy(repeats=2))
    with pytest.raises(NotAllowedError, match="was counted 2 times for this run"):
        tables.answer(paths, table_run(**TOLD, epsilon=0.25), QUESTION)
    tables.answer(paths, table_run(**TOLD, epsilon=0.125), QUESTION)
    assert "statistics of rows spent epsilon 1.12, no limit" in describe_policy(paths)
    with paths.requests.open("a") as file:
        file.write(json.dumps({SPENT: -5}) + "\n")
    with pytest.raises(FedshiftError, match="damaged"):
        describe_policy(paths)


def test_whatever_the_server_asks_only_declared_things_are_counted(raw):
    """Names of categories that the schema does not declare stay at the site."""
    paths = SitePaths(raw.root / "paris")
    run = table_run(**TOLD, epsilon=1)
    asked = QUESTION | {"roles": {"age": "categorical", "pain": "text"}}
    assert tables.answer(paths, run, asked)["age"]["counts"] == {}
    with pytest.raises(FedshiftError, match="column 'split' has no bounds"):
        tables.answer(paths, run, QUESTION | {"roles": {"split": "numeric"}})
    request, post = raw.request(table_run(bounds="age=0:120", epsilon=1), *NAMES)
    with pytest.raises(FedshiftError, match="column 'lab' has no role, and under epsilon"):
        open_session(request, post)
