"""Sites with folders of images, and a server without data that meets them on a grid in memory."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import federation as fed
import numpy as np
import pytest
import torch
from PIL import Image

import fedshift
from fedshift.base import seeds
from fedshift.base.errors import ConfigError, DataError, RunError, UnknownNameError
from fedshift.core.config import configure
from fedshift.core.server import Policy
from fedshift.core.state import DiskStore
from fedshift.data.encoders import ENCODERS, ImageEncoder
from fedshift.data.library.datasets import add
from fedshift.data.library.loaded import load as load_data
from fedshift.deploy import session, sites
from fedshift.deploy.checks import own_data
from fedshift.deploy.flower import apps
from fedshift.deploy.folders import SitePaths, SiteSettings, read_site, write_settings
from fedshift.deploy.runs import Request, last_round
from fedshift.deploy.session import deployed, federation_of, play_request
from fedshift.deploy.sites import Facts, own_federation, read_folder
from fedshift.experiment.scenario import find_scenario
from fedshift.runs.record import Record
from fedshift.transports.flower.grid import FlowerGrid, InMemoryGrid

COUNTS = {"cat": 15, "dog": 10}


def images(folder: Path, counts=COUNTS, size: int = 8) -> Path:
    rng = np.random.default_rng(seeds.derive(folder.name))
    for label, count in counts.items():
        (folder / label).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 255, (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{i}.png")
    return folder


def make_site(root: Path, name: str, **changes: object) -> SitePaths:
    paths = SitePaths(root / name)
    paths.root.mkdir()
    given = {"id": name, "server": "127.0.0.1:1", "folder": str(root / f"{name}-images")} | changes
    write_settings(paths.settings, SiteSettings(**given), "site")
    return paths


def folder_run(method: str = "fedbn", target: str | None = None, **changes: object):
    from fedshift.deploy.session import SITES

    given = {"rounds": 2, "batch_size": 4, "backbone_options": {"width": 4}} | changes
    return configure(method, deployed(SITES.change(**given), target))[0]


def test_a_folder_of_images_becomes_a_site_of_its_own(tmp_path: Path):
    images(tmp_path / "berlin-images")
    paths = make_site(tmp_path, "berlin", domain="mri-a")
    own = own_federation(paths, folder_run())
    assert own.classes == ("cat", "dog")
    assert own.shape == (3, 8, 8)
    assert own.sites["berlin"].domain == "mri-a"
    # a fifth of each class for the test; a tenth of the 20 others for validation
    data = own.sites["berlin"].data
    assert [len(part) for part in (data.test, data.val, data.train)] == [3 + 2, 2, 25 - 5 - 2]
    told = sites.facts_of(own, tell_domain=True)
    assert Facts.from_json(told.to_json()) == told
    assert sites.facts_of(own, tell_domain=False).domain == ""


def test_a_site_encodes_its_images_itself_and_once(tmp_path: Path):
    asked = []

    def features(stored):
        asked.append(len(stored))
        return stored.float().mean((1, 2))  # (N, 3)

    images(tmp_path / "berlin-images")
    paths = make_site(tmp_path, "berlin")
    given = {"backbone": "linear", "backbone_options": {}, "data_options": {"encoder": "colours"}}
    ENCODERS.register("colours")(lambda: ImageEncoder("colours", features))
    try:
        own = own_federation(paths, folder_run(**given))
        again = own_federation(paths, folder_run(**given))
    finally:
        ENCODERS.forget("colours")
    assert own.shape == again.shape == (3,)
    assert sum(asked) == 25


@pytest.mark.parametrize("words", ["", "[]", "{}", '{"classes": 3}'])
def test_a_site_that_talks_nonsense_is_refused(words):
    with pytest.raises(RunError, match="sent facts that cannot be read"):
        Facts.from_json(words)


def test_images_are_decoded_once_and_again_when_one_comes_in(tmp_path: Path, monkeypatch):
    folder = images(tmp_path / "berlin-images")
    paths = make_site(tmp_path, "berlin")
    first = sites.open_folder(paths, read_site(paths.root))
    with monkeypatch.context() as patch:
        patch.setattr(
            "fedshift.data.sources.images.decode_items", lambda *_: pytest.fail("decoded again")
        )
        again = sites.open_folder(paths, read_site(paths.root))
    assert again.x.equal(first.x)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "cat" / "new.png")
    assert len(sites.open_folder(paths, read_site(paths.root)).y) == len(first.y) + 1


def test_what_is_wrong_with_a_folder_is_told(tmp_path: Path):
    paths = make_site(tmp_path, "berlin")
    with pytest.raises(DataError, match="is not there; set folder in"):
        sites.open_folder(paths, read_site(paths.root))
    (tmp_path / "berlin-images").mkdir()
    with pytest.raises(DataError, match="has no images; expected"):
        sites.open_folder(paths, read_site(paths.root))
    images(tmp_path / "paris-images")
    other = make_site(tmp_path, "paris", classes=("cat", "cow"))
    with pytest.raises(DataError, match="has the class 'dog', which is not one of cat, cow"):
        sites.open_folder(other, read_site(other.root))


def test_arrays_and_listed_images_are_opened_as_data_add_prepares_them(tmp_path: Path, monkeypatch):
    """An npz with its own split, and a csv that lists images: the same arrays, rows and classes."""
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (30, 8, 8, 3), dtype=np.uint8), np.arange(30) % 2
    given = {
        "classes": np.array(["cat", "dog"]),
        "split": (np.arange(30) % 3 == 0).astype(np.uint8),
    }
    np.savez(tmp_path / "berlin.npz", x=x, y=y, **given)
    images(tmp_path / "pictures")
    paths = sorted(p.relative_to(tmp_path) for p in (tmp_path / "pictures").rglob("*.png"))
    rows = "".join(f"{path},{path.parent.name}\n" for path in paths)
    (tmp_path / "paris.csv").write_text(f"path,label\n{rows}")
    for name, file in (("berlin", "berlin.npz"), ("paris", "paris.csv")):
        site = make_site(tmp_path, name, folder=str(tmp_path / file))
        found = sites.open_folder(site, read_site(site.root))
        add(f"mine-{name}", tmp_path / file)
        (added,) = load_data(f"mine-{name}").values()
        assert found.classes == added.classes
        assert torch.equal(found.x, added.x)
        assert torch.equal(found.y, added.y)
        assert torch.equal(found.split, added.split)
        assert own_data(site, read_site(site.root)).raw == ""  # rows of no table
        assert own_federation(site, folder_run()).classes == ("cat", "dog")


def test_rows_of_several_sites_in_one_file_are_refused(tmp_path: Path):
    images(tmp_path / "pictures")
    (tmp_path / "all.csv").write_text(
        "path,label,site\npictures/cat/0.png,cat,a\npictures/dog/0.png,dog,b\n"
    )
    site = make_site(tmp_path, "berlin", folder=str(tmp_path / "all.csv"))
    with pytest.raises(DataError, match=r"holds 2 sites \(a, b\); give each site its own"):
        sites.open_folder(site, read_site(site.root))


def test_a_class_without_images_can_be_named(tmp_path: Path):
    images(tmp_path / "berlin-images")
    paths = make_site(tmp_path, "berlin", classes=("ant", "cat", "dog"))
    domain = sites.open_folder(paths, read_site(paths.root))
    assert domain.classes == ("ant", "cat", "dog")
    assert set(domain.y.tolist()) == {1, 2}


def facts(client: str, **changes: object) -> Facts:
    given = {
        "domain": "d",
        "classes": ("a", "b"),
        "shape": (3, 8, 8),
    }
    return Facts(client, **(given | changes))


def test_a_site_with_other_classes_or_another_size_is_named():
    scenario = fed.configured("fedavg").scenario
    trio = [facts("x"), facts("y"), facts("z", classes=("a", "c"))]
    with pytest.raises(
        DataError, match=r'site z has classes \["a", "c"\], the others \["a", "b"\]'
    ):
        federation_of(trio, scenario)
    with pytest.raises(DataError, match=r"site x has shape .*16.*; set size in the site.toml of x"):
        federation_of([facts("x", shape=(3, 16, 16)), facts("y"), facts("z")], scenario)


def test_sites_come_in_the_order_of_the_scenarios_domains():
    scenario = fed.configured("fedavg").scenario
    told = [facts("b", domain="bright"), facts("z", domain="other"), facts("d", domain="dark")]
    assert list(federation_of(told, scenario).sites) == ["d", "b", "z"]


def test_a_server_without_data_scores_sites_on_their_own_and_grants_nothing_it_lacks():
    digits = find_scenario("digits")
    there = deployed(digits)
    assert (there.protocols, there.unseen, there.private_at_new_site) == (
        ("personal",),
        None,
        "refuse",
    )
    assert "server_unlabelled" in digits.allow
    assert "server_unlabelled" not in there.allow
    assert there.lr == digits.lr


class Many:
    """The site whose turn it is, for a grid in memory: one process plays them all."""

    def __init__(self, root: Path, monkeypatch) -> None:
        self.root = root
        original = apps.respond

        def respond(message, context, handle):
            monkeypatch.setenv("FEDSHIFT_SITE", str(self.root / context.node_config["name"]))
            return original(message, context, handle)

        monkeypatch.setattr(apps, "respond", respond)
        monkeypatch.setattr("fedshift.transports.flower.grid.respond", respond)

    def request(self, config, *names: str, **changes: object) -> tuple[Request, FlowerGrid]:
        grid = InMemoryGrid(apps.client, [{"name": name} for name in names])
        nodes = {
            name: node
            for node, context in grid._contexts.items()
            for name in [context.node_config["name"]]
        }
        path, expects = self.root / "run", self.root / "expects.json"
        given = {"config": config, "path": path, "expects": expects, "nodes": nodes, "connect": 0.1}
        return Request(**(given | changes)), FlowerGrid(grid)


@pytest.fixture
def two(tmp_path: Path, monkeypatch) -> Many:
    images(tmp_path / "berlin-images")
    images(tmp_path / "paris-images", {"cat": 9, "dog": 12})
    make_site(tmp_path, "berlin")
    make_site(tmp_path, "paris")
    return Many(tmp_path, monkeypatch)


def test_a_run_over_folders_learns_classes_and_shape_and_leaves_state_at_the_sites(two):
    request, post = two.request(folder_run(), "berlin", "paris")
    result = play_request(request, post)
    metrics = result.outcome("personal").metrics
    assert set(metrics.domains) == {"berlin", "paris"}
    assert json.loads(request.expects.read_text()) == {
        "classes": ["cat", "dog"],
        "shape": [3, 8, 8],
    }
    for name in ("berlin", "paris"):
        kept = list((two.root / name / "state").rglob("*.safetensors"))
        assert {p.parent.name for p in kept} == {name}
    assert not (request.path / "checkpoints" / "clients").exists()


def test_a_run_goes_on_after_its_last_round_with_the_same_sites_only(two):
    config = folder_run(rounds=3)
    request, post = two.request(config, "berlin", "paris")
    opened = session.open_session(request, post)
    opened.advance()
    again = session.open_session(request, post)
    assert again.server.round == 1
    less, post = two.request(config, "berlin")
    with pytest.raises(RunError, match="began with other sites; paris joined or left since"):
        session.open_session(less, post)


def test_an_enrolment_forgets_what_an_earlier_try_left(two):
    config = folder_run()
    play_request(*two.request(config, "berlin", "paris"))
    old = two.root / "berlin" / "state" / config.name / "berlin" / "9.safetensors"
    old.write_bytes(b"left over")
    request, post = two.request(config, "berlin", "paris", path=two.root / "second")
    play_request(request, post)
    assert not old.exists()


def test_a_round_that_only_the_sites_have_finished_is_played_again(two, monkeypatch):
    config = folder_run(rounds=3)  # scored each round: scoring rides with the next training
    request, post = two.request(config, "berlin", "paris")
    close = Record._close

    def killed(record, server) -> None:
        if server.round == 2:
            raise KeyboardInterrupt
        close(record, server)

    with monkeypatch.context() as patch:
        patch.setattr(Record, "_close", killed)
        with pytest.raises(KeyboardInterrupt):
            play_request(request, post)
    assert last_round(request.path) == 1
    found = play_request(request, post)
    whole, post = two.request(config, "berlin", "paris", path=two.root / "whole")
    expected = play_request(whole, post)
    assert found.summary["protocols"] == expected.summary["protocols"]
    assert len(found.history) == len(expected.history) == 3
    file = "checkpoints/server.safetensors"
    assert fed.tensors(request.path / file) == fed.tensors(whole.path / file)


def test_a_site_whose_state_is_gone_says_so_instead_of_starting_afresh(two):
    config = folder_run(rounds=3)
    request, post = two.request(config, "berlin", "paris")
    session.open_session(request, post).advance()
    shutil.rmtree(two.root / "paris" / "state")
    with pytest.raises(RunError, match="client paris has lost its state of this run; restore"):
        play_request(request, post)


def restore(path, old):
    """The server's folder as it was, from a copy."""
    shutil.rmtree(path)
    shutil.copytree(old, path)


def test_a_server_that_is_behind_its_sites_is_told(two, tmp_path):
    config = folder_run(rounds=3)
    request, post = two.request(config, "berlin", "paris")
    opened = session.open_session(request, post)
    opened.advance()
    old = tmp_path / "old"
    shutil.copytree(request.path, old)
    opened.advance()
    restore(request.path, old)
    again = session.open_session(request, post)
    again.advance()  # one round may be lost: that is what states of two rounds are for
    opened.advance()
    restore(request.path, old)
    with pytest.raises(RunError, match=r"has played round 3, and the server asks for round [12]"):
        play_request(request, post)


def test_a_site_under_another_name_than_its_keys_is_refused(two):
    request, post = two.request(folder_run(), "berlin", "paris")
    swapped = {"berlin": request.nodes["paris"], "paris": request.nodes["berlin"]}
    with pytest.raises(ConfigError, match=r"registered as '(berlin|paris)' calls itself"):
        play_request(request.model_copy(update={"nodes": swapped}), post)


def test_a_site_that_is_not_there_is_named(two):
    request, post = two.request(folder_run(), "berlin")
    nodes = request.nodes | {"paris": 7}
    with pytest.raises(RunError, match="no site called paris has connected"):
        play_request(request.model_copy(update={"nodes": nodes}), post)


def test_a_run_begins_with_all_its_sites_however_lenient(two):
    request, post = two.request(folder_run(), "berlin", policy=Policy("skip"))
    nodes = request.nodes | {"paris": 7}
    with pytest.raises(RunError, match="site paris is not online, and a run begins with all"):
        play_request(request.model_copy(update={"nodes": nodes}), post)


def test_a_site_that_fails_later_is_skipped_where_the_policy_says_so(two):
    config = folder_run("fedavg", rounds=2)
    request, post = two.request(config, "berlin", "paris", policy=Policy("skip"))
    opened = session.open_session(request, post)
    shutil.rmtree(two.root / "paris" / "state")  # it will refuse to train on from nothing
    opened.advance()
    lost = [row for row in opened.record.ledger if "lost its state" in str(row)]
    assert {row["client"] for row in lost} == {"paris"}
    assert opened.server.round == 1


def test_a_request_comes_back_from_its_file(two, tmp_path: Path):
    request, _ = two.request(folder_run(), "berlin", policy=Policy("wait", 30.0, 2))
    request.write(tmp_path / "request.json")
    assert Request.read(tmp_path / "request.json") == request
    assert (tmp_path / "request.json").stat().st_mode & 0o777 == 0o600


def test_a_site_of_another_version_hears_of_it_and_so_does_the_server(two, monkeypatch, caplog):
    request, post = two.request(folder_run(), "berlin", "paris")
    opened = session.RegisteredSites(post, request)
    monkeypatch.setattr("fedshift.transports.flower.site.__version__", "9.9")
    with pytest.raises(ConfigError, match=r"this site has fedshift 9\.9, the server 0"):
        opened.find(request.nodes)
    assert any("this site has fedshift 9.9" in m for m in caplog.messages)


def test_a_site_with_too_few_images_hears_of_it(two, caplog):
    images(two.root / "rome-images", {"cat": 1})
    make_site(two.root, "rome", classes=("cat", "dog"))
    request, post = two.request(folder_run(), "berlin", "rome")
    with pytest.raises(DataError, match="client rome has"):
        play_request(request, post)
    assert any(m.startswith("client rome has") for m in caplog.messages)


def test_a_trial_site_that_the_scenario_does_not_have_is_told(tmp_path: Path):
    paths = make_site(tmp_path, "nowhere-0", trial=True, folder=None)
    with pytest.raises(UnknownNameError, match="'nowhere-0'"):
        own_federation(paths, fed.configured("fedavg"))
    assert os.environ.get("FEDSHIFT_SITE") is None


def test_a_target_of_unlabelled_images_lies_at_the_server_alone(two):
    target = images(two.root / "rome-images", {"found": 7}, size=20)
    (target / "notes.txt").write_text("not an image")
    config = folder_run("fedka", target=str(target))
    request, post = two.request(config, "berlin", "paris", target=str(target))
    opened = session.open_session(request, post)
    held = opened.server.resources["server_unlabelled"]
    assert held.x.shape == (7, 8, 8, 3), "in the sites' size"
    assert set(held.labels.tolist()) == {-1}
    assert play_request(request, post).history[-1]["round"] == 2


def test_fedka_with_the_scenarios_target_equals_one_process(tmp_path: Path, monkeypatch):
    for name in fed.SITES:
        make_site(tmp_path, name, trial=True, folder=None)
    config = fed.configured("fedka", target="scenario")
    many = Many(tmp_path, monkeypatch)
    found = play_request(*many.request(config, *fed.SITES, target="scenario"))
    expected = fed.in_process(config, tmp_path / "alone")
    assert found.summary["protocols"] == expected.summary["protocols"]
    file = "checkpoints/server.safetensors"
    assert fed.tensors(found.path / file) == fed.tensors(tmp_path / "alone" / file)


def test_what_cannot_be_a_target_is_refused(tmp_path: Path):
    scenario = find_scenario("digits")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty has no images; a target takes"):
        deployed(scenario, str(tmp_path / "empty"))
    with pytest.raises(DataError, match="nowhere is not a folder"):
        deployed(scenario, str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="has no unseen domain to be the target"):
        deployed(deployed(scenario), "scenario")
    (tmp_path / "broken.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"broken\.png: is not an image; replace or delete"):
        read_folder(tmp_path, (3, 8, 8), "unit")
    with pytest.raises(DataError, match=r"shape \(384,\), and the target's images cannot"):
        read_folder(tmp_path, (384,), "unit")


def test_a_table_becomes_a_site_with_the_preparation_of_the_federation(tmp_path: Path, monkeypatch):
    from fedshift.data.catalogue import Variant
    from fedshift.data.library.datasets import add
    from fedshift.data.library.loaded import load
    from fedshift.data.library.prepare import store_of

    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    table = tmp_path / "berlin.csv"
    table.write_text("label,x\n" + "".join(f"{i % 2},{i * i % 13}\n" for i in range(30)))
    card, _ = add("mine", table)
    agreed = store_of(card, Variant()) / "preparation.json"
    bare = make_site(tmp_path, "paris", folder=str(table))
    with pytest.raises(DataError, match="is a table, and no preparation is named; set preparation"):
        sites.open_folder(bare, read_site(bare.root))
    paths = make_site(tmp_path, "berlin", folder=str(table), preparation=str(agreed))
    own = own_federation(paths, folder_run(backbone="mlp", backbone_options={}))
    assert (own.classes, own.shape) == (("0", "1"), (1,))
    simulated = load("mine")["berlin"]  # copies on one side, as in a simulation
    assert own.sites["berlin"].data.test.rows.tolist() == simulated.rows(2).tolist()
    assert own.sites["berlin"].data.test.x.equal(simulated.x)
    with monkeypatch.context() as patch:
        patch.setattr(sites, "replay", lambda *_: pytest.fail("read again"))
        sites.open_folder(paths, read_site(paths.root))
    table.write_text(table.read_text() + "1,5\n")
    assert len(sites.open_folder(paths, read_site(paths.root)).y) == 31


def test_every_site_has_the_complete_model_of_the_selected_round(two, monkeypatch):
    """FedBN keeps entries private: the server has no whole model, each site has its own."""
    private, save = {}, DiskStore.save

    def noted(store, client, round_, state):
        private[client, round_] = {k: v.clone() for k, v in state["net"].items()}
        save(store, client, round_, state)

    monkeypatch.setattr(DiskStore, "save", noted)
    config, rounds = folder_run(rounds=4, lr=0.3), set()
    for seed in range(6):  # until a round that is not among the last two states is selected
        config = config.model_copy(update={"seed": seed})
        request, post = two.request(config, "berlin", "paris", path=two.root / f"run-{seed}")
        result = play_request(request, post)
        reported = result.outcome("personal")
        rounds.add(reported.round)
        for name in ("berlin", "paris"):
            folder = two.root / name / "models" / config.name
            assert [p.name for p in (folder / "best").iterdir() if p.is_dir()] == [
                str(reported.round)
            ]
            model = fedshift.load_model(folder, name)
            assert (model.round, model.sites) == (reported.round, (name,))
            entries = model.net.state_dict()
            for key, value in private[name, reported.round].items():
                assert entries[key].equal(value), key
            test = own_federation(SitePaths(two.root / name), config).sites[name].data.test
            x, y = test.take(torch.arange(len(test)))
            right = 100 * float((model.logits(x).argmax(1) == y).double().mean())
            assert right == pytest.approx(reported.metrics.domains[name])
            with pytest.raises(RunError, match=r"entries of site .* never left it; load its model"):
                fedshift.load_model(request.path, name)
        if min(rounds) < 3:
            break
    assert min(rounds) < 3
    found = model.predict(two.root / "paris-images")
    assert len(found) == 21


def test_a_site_that_is_away_at_the_end_is_named_and_the_run_is_done(two, caplog, monkeypatch):
    request, post = two.request(folder_run(rounds=1), "berlin", "paris")

    def full(*_args):
        raise RunError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("fedshift.deploy.models.keep_model", full)
        assert play_request(request, post).history[-1]["round"] == 1
    assert any("site berlin has not got the selected model: " in m for m in caplog.messages)
    transport = session.RegisteredSites(post, request)
    monkeypatch.setattr(transport, "find", full)
    caplog.clear()
    transport.hand_over(session.final_messages(request.path, 1, ["paris"]))
    assert "site paris has not got the selected model: the disk is full" in caplog.text
